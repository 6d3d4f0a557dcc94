from contextlib import nullcontext

import pytest

from laurel.batch.build import build_batch
from laurel.config.load import load
from laurel.rewards.pool import Scored
from laurel.rewards.reward_fn import RewardError
from laurel.rollout.filter_groups import EveryGroup, InformativeGroups
from laurel.rollout.pool import EnginePool
from laurel.rollout.seeds import sample_seed
from laurel.tracking.console import Progress
from laurel.tracking.timer import Timer
from laurel.trainer.rollouts import Rollouts, greedy_sampling, numbered_draws
from laurel.types import Completion, Prompt, Request, SamplingParams, Score, Unscored


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
    """Row 13 cannot be scored in its first ``fails`` samples."""

    def __init__(self, fails: int = 0):
        self.fails = fails

    async def score(self, text: str, prompt: Prompt, sample: int, *, length: int) -> Scored:
        if prompt.index == 13 and sample < self.fails:
            return Scored(Unscored("time", f"sample {sample} was too slow"), 12.0)
        return Scored(self.of(prompt, sample, length), 0.5)

    def of(self, prompt: Prompt, sample: int, length: int) -> Score:
        return Score(float(prompt.index + sample), {"acc": float(sample == 0 and prompt.index > 3), "length": length})


GREEDY = SamplingParams(max_tokens=4, temperature=0.0)


def rollouts(engine: Engine, *, baseline=None, select=None, fails=0) -> Rollouts:
    return Rollouts(
        pool=EnginePool([engine]),
        wake=nullcontext,
        scorer=Reward(fails),
        decode=lambda ids: "text",
        seed=9,
        n=2,
        sampling=SamplingParams(max_tokens=4),
        baseline=baseline,
        select=select or EveryGroup(),
        val_n=3,
        val_sampling=SamplingParams(max_tokens=4, temperature=0.0),
        timer=Timer(),
        progress=Progress(),
    )


def prompt(index: int) -> Prompt:
    return Prompt(index, (5,), (), "d", "1")


def test_draws_of_one_row_are_numbered_on_and_on():
    drawn = {}
    assert numbered_draws([prompt(3), prompt(5), prompt(3), prompt(3)], drawn) == [0, 0, 1, 2]
    assert numbered_draws([prompt(3), prompt(6), prompt(5)], drawn) == [3, 0, 1]


def test_a_row_drawn_twice_in_a_step_gets_other_random_numbers():
    engine = Engine()
    groups, _ = rollouts(engine).collect(lambda: [prompt(3), prompt(3)], step=6)
    assert [request.seed for request in engine.asked] == [sample_seed(9, 6, 3, sample) for sample in range(4)]
    assert [[t.score.value for t in group.trajectories] for group in groups] == [[3, 4], [3, 4]]


def test_a_row_drawn_once_has_the_seed_of_seed_step_row_and_sample_wherever_it_stands():
    engine = Engine()
    rollouts(engine).collect(lambda: [prompt(8), prompt(3)], step=6)
    assert {request.seed for request in engine.asked} == {sample_seed(9, 6, i, s) for i in (8, 3) for s in (0, 1)}


def test_the_reward_sees_the_length_in_tokens():
    groups, _ = rollouts(Engine()).collect(lambda: [prompt(3)], step=6)
    assert [t.score.extras["length"] for t in groups[0].trajectories] == [1, 1]


def informative(want: int) -> InformativeGroups:
    return InformativeGroups(want=want, metric="acc", most=9, rows=9, say=lambda line: None)


def test_generation_batches_of_one_step_share_no_random_numbers():
    """Row 3 never differs and row 4 does (see Reward): both are drawn until 2 groups are there."""
    engine = Engine()
    batches = iter([[prompt(3), prompt(4)], [prompt(3), prompt(4)], [prompt(8)]])
    groups, metrics = rollouts(engine, select=informative(2)).collect(lambda: next(batches), step=6)
    assert [group.prompt.index for group in groups] == [4, 4]
    assert len({request.seed for request in engine.asked}) == 8
    assert {request.seed for request in engine.asked} == {sample_seed(9, 6, i, s) for i in (3, 4) for s in range(4)}
    assert [prompt.index for prompt in next(batches)] == [8], "no more were drawn than needed"
    assert metrics["train/num_gen_batches"] == 2
    assert metrics["rollout/discarded_tokens"] == 4, "the two samples of row 3, twice, of one token each"


def test_a_greedy_baseline_is_sampled_scored_and_discarded():
    engine = Engine()
    groups, metrics = rollouts(engine, baseline=GREEDY).collect(lambda: [prompt(3), prompt(5)], step=6)
    assert [request.sampling == GREEDY for request in engine.asked] == [False, False, True] * 2
    assert [group.baseline.score.value for group in groups] == [5, 7]
    assert metrics["rollout/discarded_tokens"] == 2
    assert build_batch(groups).greedy_scores.tolist() == [5, 5, 7, 7]


def test_nothing_is_discarded_where_every_sample_is_learned_from():
    assert rollouts(Engine()).collect(lambda: [prompt(3)], step=6)[1]["rollout/discarded_tokens"] == 0


def test_one_score_that_fails_is_counted_and_said_and_not_learned_from(capsys):
    groups, metrics = rollouts(Engine(), fails=1).collect(lambda: [prompt(13), prompt(4), prompt(5)], step=6)
    assert metrics["reward/unscored"] == metrics["reward/unscored/time"] == 1
    assert (metrics["timing_s/scoring/mean"], metrics["timing_s/scoring/max"]) == (14.5 / 6, 12.0)
    said = capsys.readouterr().out
    assert "no score, left out: sample 0 was too slow" in said
    assert "slowest of 6 scores: row 13 sample 0 12.0 s, row 13 sample 1 0.5 s" in said
    assert build_batch(groups).weight.tolist() == [0, 0, 1, 1, 1, 1], "what is left alone has nothing to compare with"


def test_if_half_of_the_scores_fail_the_run_ends_with_the_first_reason():
    with pytest.raises(RewardError, match=r"^2 of 4 trajectories have no score; the first: sample 0 was too slow$"):
        rollouts(Engine(), fails=2).collect(lambda: [prompt(13), prompt(4)], step=6)


def test_the_baseline_is_greedy_in_the_same_limits():
    given = ["data.max_response_length=9", "actor_rollout_ref.rollout.top_k=5", "actor_rollout_ref.rollout.top_p=0.5"]
    config = load([*given, "actor_rollout_ref.rollout.ignore_eos=True"]).config
    assert greedy_sampling(config) == SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)


def test_validation_has_its_own_number_of_samples_and_random_numbers_and_leaves_nothing_out():
    engine = Engine()
    (group,) = rollouts(engine, baseline=GREEDY, select=informative(5)).answer([prompt(3)])
    assert group.baseline is None
    assert len(engine.asked) == 3
    assert all(request.sampling.temperature == 0 for request in engine.asked)
    assert not {r.seed for r in engine.asked} & {sample_seed(9, step, 3, s) for step in range(100) for s in range(3)}
