"""What is chosen for which GPU, and that what was given is obeyed."""

import pytest
from unit.trainer.memory_cases import *  # noqa: F403
from unit.trainer.memory_cases import A100, ACTOR, GIB, H200, MODEL, REF, ROLLOUT, WORK_G, WORK_L, WORK_P

from laurel.config.keys import value_of
from laurel.models.memory import usable
from laurel.trainer.fit import BUDGET, BUDGETS, OFFLOAD, RECOMPUTE, plan_memory, sequences_of, without_plan
from laurel.trainer.fit_run import fit_run, told
from laurel.trainer.memory import models_of, phases
from laurel.types import LaurelError


def planned(config, free, validation_rows=0):
    return plan_memory(config, models_of(config), free, sequences_of(config, validation_rows))


def chosen(plan, role="actor"):
    """Token budget, recomputation, offload."""
    return tuple(value_of(plan.config, keys[role]) for keys in (BUDGET, RECOMPUTE, OFFLOAD))


@pytest.mark.parametrize(
    ("name", "work", "free", "expected"),
    [
        ("0.5b", WORK_G, H200, (65_536, False, False)),
        ("0.5b", WORK_G, A100, (49_152, False, False)),
        ("0.5b", WORK_G, 23 * GIB, (49_152, True, False)),
        ("7b", WORK_L, H200, (16_384, False, True)),
        ("7b", WORK_L, A100, (40_960, True, True)),
    ],
)
def test_the_largest_micro_batches_that_fit(settings, name, work, free, expected):
    plan = planned(settings(name, *work), free)
    assert chosen(plan) == expected
    # With the next larger budget, full to the last token, it would not fit
    full = phases(plan.config, models_of(plan.config), plan.serving, longest=True)
    assert max(phase.peak for phase in full) <= usable(free)
    if expected[0] < BUDGETS[0]:
        budget = BUDGETS[BUDGETS.index(expected[0]) - 1]
        keys = (BUDGET["actor"], RECOMPUTE["actor"], OFFLOAD["actor"])
        values = (budget, *expected[1:])
        larger = settings(name, *work, *(f"{key}={value}" for key, value in zip(keys, values, strict=True)))
        more = phases(larger, models_of(larger), plan.serving, longest=True)
        assert max(phase.peak for phase in more) > usable(free)


def test_budgets_fall_in_quarters_of_powers_of_two():
    assert BUDGETS[:6] == (65_536, 57_344, 49_152, 40_960, 32_768, 28_672)
    assert BUDGETS[-1] == 1024


def test_seven_billion_on_eight_gpus_need_no_offload(settings):
    plan = planned(settings("7b", *WORK_L, ranks=8), A100)
    assert chosen(plan) == (57_344, True, False)
    assert plan.serving.slots == 64


def test_critic_and_actor_are_chosen_for_apart(settings):
    plan = planned(settings("0.5b", *WORK_P), A100)
    assert chosen(plan)[:2] == (40_960, False)
    assert chosen(plan, "critic")[:2] == (65_536, False)  # it has no logits
    assert plan.config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu == 65_536
    assert plan.config.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu == 65_536


def test_given_values_are_obeyed(settings):
    given = {
        BUDGET["actor"]: 20_000,
        RECOMPUTE["actor"]: True,
        OFFLOAD["actor"]: True,
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 5000,
        f"{REF}.log_prob_max_token_len_per_gpu": 6000,
        BUDGET["critic"]: 7000,
        RECOMPUTE["critic"]: False,
        OFFLOAD["critic"]: False,
        f"{ROLLOUT}.max_num_seqs": 37,
    }
    plan = planned(settings("0.5b", *WORK_P, *(f"{key}={value}" for key, value in given.items())), H200)
    assert {key: value_of(plan.config, key) for key in given} == given
    assert plan.reasons == {}
    assert plan.serving.slots == 37


def test_a_given_size_decides_recomputation(settings):
    for budget, recompute in ((16_384, False), (57_344, False), (131_072, True)):
        plan = planned(settings("0.5b", *WORK_G, f"{BUDGET['actor']}={budget}"), A100)
        assert chosen(plan)[:2] == (budget, recompute)
    rows = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    for size, recompute in ((32, False), (200, True)):
        assert chosen(planned(settings("0.5b", *WORK_G, f"{rows}={size}"), A100))[1] is recompute


def test_rows_longer_than_any_budget_go_alone(settings):
    plan = planned(settings("0.5b", *WORK_G, "data.max_response_length=99872"), H200)
    assert chosen(plan) == (100_000, False, False)
    assert plan.reasons[BUDGET["actor"]] == "larger ones are no faster"
    assert chosen(planned(settings("0.5b", *WORK_G, "data.max_response_length=99872"), A100))[:2] == (100_000, True)


def test_a_small_update_needs_no_recomputation(settings):
    """Less than 8,192 tokens are all that there is to compute at once."""
    words = (*WORK_G, f"{ROLLOUT}.n=2", f"{ACTOR}.ppo_mini_batch_size=2")
    assert chosen(planned(settings("0.5b", *words), 21 * GIB))[1] is False
    assert chosen(planned(settings("0.5b", *WORK_G), 21 * GIB))[1] is True


def test_a_cache_that_stays_takes_its_part(settings):
    plan = planned(settings("0.5b", *WORK_G, f"{ROLLOUT}.free_cache_engine=False"), A100)
    assert chosen(plan)[0] == 40_960  # 49,152 if it is freed
    assert plan.phases[-1].parts["KV cache"] == plan.phases[0].parts["KV cache"] > 0


def test_logits_are_held_in_what_is_left(settings):
    assert planned(settings("0.5b", *WORK_G), H200).keep_logits == 65_536
    assert planned(settings("0.5b", *WORK_G), A100).keep_logits == 16_384
    tight = planned(settings("0.5b", *WORK_G, f"{BUDGET['actor']}=60000", f"{RECOMPUTE['actor']}=False"), A100)
    assert tight.keep_logits == 0


def test_slots_are_for_the_most_sequences_at_once(settings):
    config = settings("0.5b", *WORK_G, "data.train_batch_size=8")
    assert planned(config, H200).serving.slots == 64
    assert planned(config, H200, validation_rows=300).serving.slots == 300
    assert sequences_of(settings("0.5b", *WORK_G, f"{ROLLOUT}.val_kwargs.n=3", "trainer.val_only=True"), 100) == 300
    assert sequences_of(settings("0.5b", *WORK_G, ranks=3), 100) == 342  # of 1,024
    assert planned(settings("0.5b", *WORK_G), H200, validation_rows=5000).serving.slots == 1024


def test_gpu_memory_utilization_counts_weights_and_cache(settings):
    cache = {}
    for share in (0.3, 0.6):
        plan = planned(settings("7b", *WORK_L, f"{ROLLOUT}.gpu_memory_utilization={share}"), H200)
        parts = plan.phases[0].parts
        cache[share] = parts["KV cache"] + parts["logits"] + parts["sampling"]
        assert cache[share] == pytest.approx(share * H200 - 2 * 7_615_616_512, rel=0.01) or plan.serving.slots == 512
    assert cache[0.3] < cache[0.6]


def test_validation_alone_plans_no_learning(settings):
    plan = planned(settings("0.5b", *WORK_G, "trainer.val_only=True"), H200, validation_rows=1319)
    assert [phase.name for phase in plan.phases] == ["rollout"]
    assert (plan.serving.slots, plan.keep_logits) == (1024, 0)
    assert None not in (
        value_of(plan.config, key) for key in (*BUDGET.values(), *RECOMPUTE.values(), *OFFLOAD.values())
    )


# --- the run ----------------------------------------------------------------------------------------------------------


def test_ranks_are_told_what_was_planned(settings):
    said = []
    config = settings("0.5b", *WORK_G)
    fit = fit_run(config, int(H200), validation_rows=1319, say=said.append)
    plan = planned(config, int(H200), 1319)
    assert (fit.config, fit.sequences, fit.keep_logits, fit.predicted) == (plan.config, 1319, 65_536, plan.predicted)
    assert said == [told(plan)]
    assert said[0].startswith("memory: 89.5 of 139.3 GiB at the fullest, in the phase actor's update; 1,024 sequences")


def test_a_cpu_keeps_its_settings(settings):
    config = settings("0.5b", *WORK_G, "trainer.device=cpu")
    fit = fit_run(config, 0, validation_rows=1319, say=print)
    assert (fit.config, fit.sequences, fit.keep_logits, fit.predicted) == (config, None, 0, None)
    assert chosen(fit) == (16_384, True, False)
    only = settings("0.5b", *WORK_G, "trainer.device=cpu", "trainer.val_only=True")
    assert fit_run(only, 0, validation_rows=1319, say=print).sequences == 1319


def test_an_unknown_model_gets_what_a_cpu_gets_and_it_is_said(settings):
    said = []
    fit = fit_run(settings("none", *WORK_P), int(H200), validation_rows=0, say=said.append)
    assert (chosen(fit), chosen(fit, "critic")) == ((16_384, True, False), (32_768, True, False))
    assert "not known" in said[0]
    given = without_plan(
        settings("none", *WORK_P, f"{BUDGET['critic']}=9", f"{MODEL}.enable_gradient_checkpointing=False")
    )
    assert value_of(given, BUDGET["critic"]) == 9
    assert value_of(given, RECOMPUTE["critic"]) is False  # the critic's model is the actor's


def test_what_fits_in_no_way_is_one_error_with_parts_and_cures(settings):
    with pytest.raises(LaurelError) as error:
        fit_run(settings("7b", *WORK_L), 40 * GIB, validation_rows=0, say=print)
    text = str(error.value)
    assert (
        "the actor's update on one row of 1,536 tokens takes 34.5 GiB (gradients 28.4, masters and moments in use 6.1)"
        in text
    )
    assert "21.7 are left of a GPU with 40.0 (usable 35.9; always held: actor's weights 14.2)" in text
    assert "share the model over more GPUs (trainer.n_gpus_per_node)" in text
    assert OFFLOAD["actor"] not in text  # that was done

    with pytest.raises(LaurelError, match=r"leave .*actor\.fsdp_config\.optimizer_offload to the plan"):
        fit_run(settings("7b", *WORK_L, f"{OFFLOAD['actor']}=False"), int(H200), validation_rows=0, say=print)
    low = settings("7b", *WORK_L, f"{ROLLOUT}.gpu_memory_utilization=0.1")
    with pytest.raises(LaurelError, match=r"sampling one sequence.*raise .*gpu_memory_utilization=0\.1"):
        fit_run(low, int(H200), validation_rows=0, say=print)


def test_offload_has_to_be_worth_it(settings):
    """Of rows of 100,000 tokens a quarter of 1,024 would never fit, and 5.5 GiB make no difference."""
    plan = planned(settings("0.5b", *WORK_G, "data.max_response_length=99872"), H200)
    assert chosen(plan)[2] is False
    assert plan.serving.cache_tokens < 0.25 * 1024 * 100_000


def test_a_given_budget_that_is_too_large_is_no_error(settings):
    """Memory that runs out makes micro-batches smaller, as far as one row."""
    words = (f"{BUDGET['actor']}=1000000", f"{RECOMPUTE['actor']}=False", f"{OFFLOAD['actor']}=False")
    fit = fit_run(settings("0.5b", *WORK_G, *words), int(A100), validation_rows=0, say=print)
    assert chosen(fit) == (1_000_000, False, False)
    assert fit.predicted > A100
