import asyncio

import pytest
from tiny_models import prompt, request, tiny

from laurel.rollout.collect import collect
from laurel.rollout.pool import EnginePool
from laurel.rollout.seeds import sample_seed
from laurel.types import Completion, Prompt, SamplingParams, Score, Unscored

PROMPTS = [
    Prompt(index=10 + i, input_ids=(i, i + 1), messages=(), data_source="test", ground_truth=i) for i in range(3)
]
SAMPLING = SamplingParams(max_tokens=4)


def at_once(function):
    """A score that is there without waiting."""

    async def score(trajectory, one):
        return function(trajectory, one)

    return score


def run(prompts=PROMPTS, n=2, **given):
    async def answer(position, one):
        await asyncio.sleep(0.01 * (5 - position))  # later prompts first
        return Completion(one.id, (position, one.seed % 100), (-0.5, -0.25), "stop", policy_version=3)

    settings = {
        "generate": answer,
        "seed": lambda position, sample: 100 * position + sample,
        "score": at_once(lambda trajectory, one: Score(one.ground_truth + trajectory.sample / 10)),
        "decode": lambda ids: "-".join(map(str, ids)),
    }
    return asyncio.run(collect(prompts, n=n, sampling=SAMPLING, **{**settings, **given}))


def test_groups_come_in_prompt_order_and_scored():
    progress = []
    groups = run(on_done=lambda done, total: progress.append((done, total)))
    assert [group.prompt.index for group in groups] == [10, 11, 12]
    assert [[t.text for t in group.trajectories] for group in groups] == [
        ["0-0", "0-1"],
        ["1-0", "1-1"],
        ["2-0", "2-1"],
    ]
    assert [[t.score.value for t in group.trajectories] for group in groups] == [[0.0, 0.1], [1.0, 1.1], [2.0, 2.1]]
    last = groups[2].trajectories[1]
    assert (last.sample, last.finish_reason, last.policy_version) == (1, "stop", 3)
    assert (last.response_ids, last.turns[0].log_probs, last.turns[0].sampled) == ((2, 1), (-0.5, -0.25), True)
    assert progress == [(i, 6) for i in range(1, 7)]


def test_requests_name_their_group_and_carry_seed_and_sampling():
    asked = []

    async def answer(position, one):
        asked.append((position, one))
        return Completion(one.id, (1,), None, "length", 0)

    run(generate=answer, tag="step7/")
    assert [(position, one.id, one.group, one.seed) for position, one in asked] == [
        (0, "step7/0/0", "step7/0", 0),
        (0, "step7/0/1", "step7/0", 1),
        (1, "step7/1/0", "step7/1", 100),
        (1, "step7/1/1", "step7/1", 101),
        (2, "step7/2/0", "step7/2", 200),
        (2, "step7/2/1", "step7/2", 201),
    ]
    assert asked[3][1].prompt_ids == (1, 2)
    assert asked[3][1].sampling == SAMPLING


def test_a_baseline_is_one_more_answer_with_its_own_settings():
    asked = {}
    greedy = SamplingParams(max_tokens=4, temperature=0.0)

    async def answer(position, one):
        asked[one.id] = (one.group, one.sampling)
        return Completion(one.id, (position, len(asked)), None, "stop", 0)

    groups = run(generate=answer, baseline=greedy)
    assert {name for name, (_, sampling) in asked.items() if sampling == greedy} == {"0/2", "1/2", "2/2"}
    assert asked["1/2"] == ("1", greedy), "it shares the prompt's prefill"
    assert asked["1/1"] == ("1", SAMPLING)
    assert [len(group.trajectories) for group in groups] == [2, 2, 2]
    assert [(group.baseline.sample, group.baseline.score.value) for group in groups] == [(2, 0.2), (2, 1.2), (2, 2.2)]
    assert [group.baseline.response_ids for group in groups] == [(0, 3), (1, 6), (2, 9)]


def test_without_baseline_settings_there_is_none():
    assert [group.baseline for group in run()] == [None] * 3


def test_a_score_sees_the_whole_trajectory():
    groups = run(score=at_once(lambda t, one: Score(len(t.response_ids), {"text": len(t.text)})))
    assert groups[0].trajectories[1].score == Score(2, {"text": 3})


def test_nothing_asked_is_nothing_collected():
    assert run(prompts=[]) == []


def test_what_is_missing_is_named_while_nothing_arrives():
    lines = []

    async def stuck(position, one):
        await asyncio.sleep(0.25 if one.id == "1/1" else 0)
        return Completion(one.id, (1,), None, "stop", 0)

    run(generate=stuck, wait_s=0.1, on_wait=lines.append)
    assert lines == ["nothing arrived for 0 s; waiting for 1 of 6 trajectories: prompt 11 sample 1"] * 2


def test_the_first_error_ends_it_and_cancels_the_rest():
    cancelled = []

    async def broken(position, one):
        if one.id == "0/1":
            raise RuntimeError("engine lost")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(one.id)
            raise

    with pytest.raises(RuntimeError, match="engine lost"):
        run(generate=broken)
    assert sorted(cancelled) == ["0/0", "1/0", "1/1", "2/0", "2/1"]


def test_an_error_of_the_score_is_raised():
    with pytest.raises(ZeroDivisionError):
        run(score=at_once(lambda trajectory, one: Score(1 / 0)))


def test_what_cannot_be_scored_is_an_outcome_like_another():
    lost = Unscored("time", "too slow")
    groups = run(score=at_once(lambda t, one: lost if (one.index, t.sample) == (11, 1) else Score(1.0)))
    assert [[t.unscored for t in group.trajectories] for group in groups] == [[None] * 2, [None, lost], [None] * 2]
    assert groups[1].trajectories[1].score is None


def test_scoring_overlaps_sampling_and_other_scores():
    """Every score waits until all have begun, and the last answer until a score has: neither could end otherwise."""
    begun, first, every = [], asyncio.Event(), asyncio.Event()

    async def answer(position, one):
        if one.id == "2/1":
            await first.wait()
        return Completion(one.id, (1,), None, "stop", 0)

    async def score(trajectory, one):
        begun.append(one.index)
        first.set()
        if len(begun) == 6:
            every.set()
        await asyncio.wait_for(every.wait(), 20)
        return Score(1.0)

    assert len(run(generate=answer, score=score)) == 3
    assert len(begun) == 6


def test_a_score_that_is_waited_for_is_named():
    lines = []

    async def slow(trajectory, one):
        await asyncio.sleep(0.3 if (one.index, trajectory.sample) == (10, 1) else 0)
        return Score(1.0)

    run(score=slow, wait_s=0.15, on_wait=lines.append)
    assert lines[0].endswith("waiting for 1 of 6 trajectories: the score of prompt 10 sample 1")


def test_over_native_engines_the_number_of_replicas_does_not_matter(engine):
    """Two replicas give what one gives (tiny model, same seeds), and each prompt is prefilled once."""
    module = tiny()
    prompts = [Prompt(i, prompt(4 + i), (), "test", None) for i in range(4)]

    def tokens(engines):
        groups = run(
            prompts,
            n=3,
            generate=EnginePool(engines).generate,
            seed=lambda position, sample: sample_seed(1, 5, position, sample),
            score=at_once(lambda trajectory, one: Score(0.0)),
        )
        return [[t.response_ids for t in group.trajectories] for group in groups]

    one = engine(module, max_slots=16)
    alone = tokens([one])
    assert one.counters.prefill_tokens == 4 + 5 + 6 + 7
    assert tokens([engine(tiny()), engine(tiny())]) == alone
    direct = one.submit(request("direct", prompt(6), seed=sample_seed(1, 5, 2, 1), max_tokens=4)).result(60)
    assert direct.token_ids == alone[2][1]
