"""Keys without effect are said so, once, and only when it is so."""

import pytest

from laurel.config.idle import IDLE
from laurel.config.load import load

A, R, REF = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.ref."
GDPO = "algorithm.adv_estimator=gdpo"
RC = "algorithm.rollout_correction."
GRPO, KL, TWO = "algorithm.adv_estimator=grpo", A + "use_kl_loss=True", "trainer.n_gpus_per_node=2"
VAL, VAL_ONLY, ONE_UPDATE = "data.val_files=v.parquet", "trainer.val_only=True", ["data.train_batch_size=8"]

# For each row of the table, by its first key: what is idle, and beside which other words it is and is not.
CASES = [
    ("critic.optim.lr=1e-5", [GRPO], []),
    ("trainer.critic_warmup=1", [GRPO, "trainer.total_training_steps=9"], ["trainer.total_training_steps=9"]),
    ("algorithm.gamma=0.9", [GRPO], []),
    ("algorithm.gamma=0.9", [GRPO], ["algorithm.adv_estimator=reinforce_plus_plus"]),
    ("algorithm.lam=0.9", ["algorithm.adv_estimator=reinforce_plus_plus"], []),
    ("algorithm.norm_adv_by_std_in_grpo=False", [], [GRPO]),
    ("algorithm.norm_adv_by_std_in_grpo=False", ["algorithm.adv_estimator=rloo"], [GDPO]),
    ("algorithm.gdpo_reward_keys=[a]", [GRPO], [GDPO]),
    ("algorithm.gdpo_reward_weights=[2]", [GRPO], [GDPO]),
    ("algorithm.kl_ctrl.kl_coef=0.1", ["algorithm.use_kl_in_reward=False"], []),
    ("algorithm.kl_penalty=mse", [], ["algorithm.kl_ctrl.kl_coef=0.1"]),
    (
        "algorithm.kl_ctrl.horizon=10",
        ["algorithm.use_kl_in_reward=True"],
        ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive"],
    ),
    ("algorithm.filter_groups.metric=score", [], ["algorithm.filter_groups.enable=True"]),
    ("data.gen_batch_size=1024", [], ["algorithm.filter_groups.enable=True"]),
    (A + "kl_loss_coef=0.1", [], [KL]),
    (REF + "log_prob_micro_batch_size_per_gpu=4", [], [KL]),
    (A + "clip_ratio_c=4", ONE_UPDATE, ["data.train_batch_size=512"]),
    (A + "clip_ratio_c=4", ONE_UPDATE, [*ONE_UPDATE, A + "ppo_epochs=2"]),
    (A + "clip_ratio_c=4", ONE_UPDATE, [*ONE_UPDATE, A + "ppo_mini_batch_size=4"]),
    (
        R + "log_prob_max_token_len_per_gpu=4096",
        ONE_UPDATE,
        [*ONE_UPDATE, "algorithm.adv_estimator=optimal_token_baseline"],
    ),
    (R + "log_prob_max_token_len_per_gpu=4096", ONE_UPDATE, [*ONE_UPDATE, "algorithm.use_kl_in_reward=True"]),
    (A + "clip_ratio=0.1", [A + "clip_ratio_low=0.1", A + "clip_ratio_high=0.1"], [A + "clip_ratio_high=0.1"]),
    (A + "clip_ratio_c=4", [A + "policy_loss.loss_mode=gspo"], []),
    (A + "clip_ratio_low=0.1", [A + "policy_loss.loss_mode=sapo"], [A + "policy_loss.loss_mode=cispo"]),
    (A + "tau_pos=2", [], [A + "policy_loss.loss_mode=sapo"]),
    (A + "tau_pos=2", [*ONE_UPDATE, A + "policy_loss.loss_mode=sapo"], None),
    (A + "policy_loss.dro_beta=2", [], [A + "policy_loss.loss_mode=dro"]),
    (A + "policy_loss.dro_beta=2", [*ONE_UPDATE, A + "policy_loss.loss_mode=dro"], None),
    (A + "policy_loss.clip_cov_lb=2", [], [*ONE_UPDATE, A + "policy_loss.loss_mode=clip_cov"]),
    (A + "policy_loss.kl_cov_ratio=0.1", [], [A + "policy_loss.loss_mode=kl_cov"]),
    (A + "policy_loss.kl_cov_ratio=0.1", [*ONE_UPDATE, A + "policy_loss.loss_mode=kl_cov"], None),
    (A + "clip_ratio_c=4", ONE_UPDATE, [*ONE_UPDATE, RC + "rollout_is=token"]),
    (A + "clip_ratio_c=4", ONE_UPDATE, [*ONE_UPDATE, RC + "bypass_mode=True"]),
    (R + "log_prob_max_token_len_per_gpu=4096", [RC + "bypass_mode=True"], [RC + "rollout_is=token"]),
    (RC + "rollout_is=token", [RC + "bypass_mode=True"], []),
    (RC + "rollout_token_veto_threshold=0.1", [RC + "bypass_mode=True"], []),
    (RC + "rollout_is_threshold=3", [], [RC + "rollout_is=token"]),
    (RC + "rollout_rs_threshold=3", [], [RC + "rollout_rs=token"]),
    (A + "loss_scale_factor=9", [], [A + "loss_agg_mode=seq-mean-token-sum-norm"]),
    (A + "shuffle=True", ["data.train_batch_size=8"], ["data.train_batch_size=512"]),
    (A + "ppo_micro_batch_size_per_gpu=4", [A + "use_dynamic_bsz=True"], []),
    (R + "log_prob_micro_batch_size_per_gpu=4", [R + "log_prob_use_dynamic_bsz=True"], []),
    (REF + "log_prob_micro_batch_size_per_gpu=4", [KL, REF + "log_prob_use_dynamic_bsz=True"], [KL]),
    ("critic.ppo_micro_batch_size_per_gpu=4", ["critic.use_dynamic_bsz=True"], []),
    (A + "ppo_max_token_len_per_gpu=4096", [A + "ppo_micro_batch_size_per_gpu=4"], []),
    (R + "log_prob_max_token_len_per_gpu=4096", [R + "log_prob_micro_batch_size_per_gpu=4"], []),
    (REF + "log_prob_max_token_len_per_gpu=4096", [KL, REF + "log_prob_micro_batch_size_per_gpu=4"], [KL]),
    ("critic.ppo_max_token_len_per_gpu=4096", ["critic.ppo_micro_batch_size_per_gpu=4"], []),
    (A + "optim.lr_warmup_steps_ratio=0.1", [A + "optim.lr_warmup_steps=3"], []),
    ("critic.optim.lr_warmup_steps_ratio=0.1", ["critic.optim.lr_warmup_steps=3"], []),
    (A + "optim.min_lr_ratio=0.1", [], [A + "optim.lr_scheduler_type=cosine"]),
    ("critic.optim.min_lr_ratio=0.1", [], ["critic.optim.lr_scheduler_type=cosine"]),
    (R + "val_kwargs.temperature=0.5", [], [R + "val_kwargs.do_sample=True"]),
    (R + "gpu_memory_utilization=0.4", ["trainer.device=cpu"], ["trainer.device=cuda"]),
    (R + "val_kwargs.n=4", [], [R + "val_kwargs.do_sample=True"]),
    (A + "fsdp_config.param_offload=True", ["trainer.n_gpus_per_node=1"], [TWO]),
    ("critic.fsdp_config.param_offload=True", ["trainer.n_gpus_per_node=1"], [TWO]),
    (REF + "fsdp_config.param_offload=True", [KL, "trainer.n_gpus_per_node=1"], [KL, TWO]),
    (REF + "fsdp_config.optimizer_offload=True", [KL], None),
    ("data.truncation=left", [], ["data.filter_overlong_prompts=False"]),
    (R + "engine_kwargs.vllm.swap_space=4", [], [R + "name=vllm"]),
    ("data.seed=3", ["data.shuffle=False"], []),
    ("trainer.resume_from_path=/x", [], ["trainer.resume_mode=resume_path"]),
    ("trainer.total_epochs=3", ["trainer.total_training_steps=9"], []),
    ("trainer.test_freq=3", [], [VAL]),
    ("trainer.log_val_generations=3", [VAL, "trainer.logger=[file]"], [VAL]),
    ("trainer.save_freq=3", [VAL, VAL_ONLY], [VAL]),
    ("critic.optim.lr=1e-5", [VAL, VAL_ONLY], [VAL]),
    ("reward.custom_reward_function.name=f", [], ["reward.custom_reward_function.path=r.py"]),
    ("reward.timeout=5", ["reward.num_workers=0"], ["reward.num_workers=1"]),
    ("reward.memory_limit_mb=500", ["reward.num_workers=0"], []),
]


def idle(word, others):
    key = word.partition("=")[0].removesuffix(".vllm.swap_space")
    return [note for note in load([word, *others]).notes if "no effect" in note and key in note.partition(" ha")[0]]


@pytest.mark.parametrize(("word", "silent", "_loud"), CASES, ids=[f"{word}|{silent}" for word, silent, _ in CASES])
def test_said_once_when_idle(word, silent, _loud):
    assert len(idle(word, silent)) == 1


@pytest.mark.parametrize(("word", "_silent", "loud"), CASES, ids=[f"{word}|{loud}" for word, _, loud in CASES])
def test_not_said_when_it_works(word, _silent, loud):
    if loud is not None:
        assert idle(word, loud) == []


def test_every_row_has_a_case():
    because = {row.because for row in IDLE}
    said = {note.partition("effect: ")[2] for word, silent, _ in CASES for note in idle(word, silent)}
    assert because <= said


def test_keys_of_one_row_share_a_line():
    notes = load([GRPO, "critic.optim.lr=1e-5", "critic.model.path=x", R + "n=4"]).notes
    assert "critic.model.path, critic.optim.lr have no effect: algorithm.adv_estimator trains no critic" in notes


def test_what_was_not_given_is_not_mentioned():
    assert not any("no effect" in note for note in load([GRPO]).notes)


def test_validation_alone_names_the_keys_of_training_in_one_line():
    given = [VAL, VAL_ONLY, R + "n=8", A + "optim.lr=1e-6", "trainer.total_epochs=3", "critic.optim.lr=1e-5", GRPO]
    (line,) = [note for note in load(given).notes if "no effect" in note]
    assert line.endswith("have no effect: trainer.val_only validates and stops")
    assert all(word.partition("=")[0] in line for word in given[2:])


def test_what_validation_alone_reads_is_not_idle():
    read = [VAL, VAL_ONLY, "trainer.resume_mode=disable", TWO, A + "fsdp_config.fsdp_size=1", R + "max_num_seqs=8"]
    assert not any("no effect" in note for note in load(read).notes)


def test_one_greedy_answer_is_not_remarked_on():
    assert idle(R + "val_kwargs.n=1", []) == []
