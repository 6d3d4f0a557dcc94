from contextlib import nullcontext

from laurel.rollout.pool import EnginePool
from laurel.rollout.seeds import sample_seed
from laurel.tracking.console import Progress
from laurel.tracking.timer import Timer
from laurel.trainer.rollouts import Rollouts, numbered_draws
from laurel.types import Completion, Prompt, Request, SamplingParams, Score


class Engine:
    """Answers with one token and remembers what it was asked."""

    def __init__(self):
        self.asked: list[Request] = []

    async def generate(self, request: Request) -> Completion:
        self.asked.append(request)
        return Completion(request.id, (7,), (-0.5,), "stop", policy_version=4)

    async def abort(self, ids) -> None:
        raise AssertionError("nothing is aborted here")


class Reward:
    def score(self, text: str, prompt: Prompt, sample: int) -> Score:
        return Score(float(prompt.index + sample))


def rollouts(engine: Engine) -> Rollouts:
    return Rollouts(
        pool=EnginePool([engine]),
        wake=nullcontext,
        reward=Reward(),
        decode=lambda ids: "text",
        seed=9,
        n=2,
        sampling=SamplingParams(max_tokens=4),
        val_n=3,
        val_sampling=SamplingParams(max_tokens=4, temperature=0.0),
        timer=Timer(),
        progress=Progress(),
    )


def prompt(index: int) -> Prompt:
    return Prompt(index, (5,), (), "d", "1")


def test_draws_of_one_row_are_numbered():
    assert numbered_draws([prompt(3), prompt(5), prompt(3), prompt(3)]) == [0, 0, 1, 2]


def test_a_row_drawn_twice_in_a_step_gets_other_random_numbers():
    engine = Engine()
    groups = rollouts(engine).collect([prompt(3), prompt(3)], step=6, keep=lambda group: True)
    assert [request.seed for request in engine.asked] == [sample_seed(9, 6, 3, sample) for sample in range(4)]
    assert [[t.score.value for t in group.trajectories] for group in groups] == [[3, 4], [3, 4]]


def test_a_row_drawn_once_has_the_seed_of_seed_step_row_and_sample_wherever_it_stands():
    engine = Engine()
    rollouts(engine).collect([prompt(8), prompt(3)], step=6, keep=lambda group: True)
    assert {request.seed for request in engine.asked} == {sample_seed(9, 6, i, s) for i in (8, 3) for s in (0, 1)}


def test_validation_has_its_own_number_of_samples_and_random_numbers():
    engine = Engine()
    rollouts(engine).answer([prompt(3)])
    assert len(engine.asked) == 3
    assert all(request.sampling.temperature == 0 for request in engine.asked)
    assert not {r.seed for r in engine.asked} & {sample_seed(9, step, 3, s) for step in range(100) for s in range(3)}
