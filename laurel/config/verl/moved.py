"""Keys, and a few values, that verl has under another name as well. They are read under the name they have here."""

from __future__ import annotations

from laurel.config.verl.retired import ACTOR, CRITIC, ROLLOUT

# A key, or a group with everything under it (``.*``), and where it is now.
MOVED: dict[str, str] = {
    "custom_reward_function.reward_kwargs.*": "reward.reward_kwargs.*",
    "custom_reward_function.path": "reward.custom_reward_function.path",
    "custom_reward_function.name": "reward.custom_reward_function.name",
    "reward.custom_reward_function.reward_kwargs.*": "reward.reward_kwargs.*",
    "reward_model.reward_kwargs.*": "reward.reward_kwargs.*",
    "reward_model.overlong_buffer.*": "reward.reward_kwargs.overlong_buffer_cfg.*",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.num_workers": "reward.num_workers",
    "reward_manager.name": "reward.reward_manager.name",
    "algorithm.rollout_correction.bypass_old_logprob_for_rollout": "algorithm.rollout_correction.bypass_mode",
    ACTOR + "grad_clip": ACTOR + "optim.clip_grad",
    CRITIC + "grad_clip": CRITIC + "optim.clip_grad",
    ACTOR + "optim.warmup_style": ACTOR + "optim.lr_scheduler_type",
    CRITIC + "optim.warmup_style": CRITIC + "optim.lr_scheduler_type",
    "critic.model.fsdp_config.*": "critic.fsdp_config.*",
    # Settings of vLLM's own; the native engine says that it has no use for them
    **{
        ROLLOUT + name: ROLLOUT + "engine_kwargs.vllm." + name
        for name in ("enforce_eager", "enable_chunked_prefill", "enable_prefix_caching")
    },
    "critic.model.tokenizer": "critic.model.tokenizer_path",
}

_K = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
# A + changes a gradient: k2 has it already, and a reward has none
_K_LOSS = _K | {"k1+": "kl+", "k2+": "mse", "mse+": "mse", "k3+": "low_var_kl+"}
_K_REWARD = _K | {f"{name}+": k for name, k in _K.items()} | {f"{k}+": k for k in ("kl", "abs", "mse", "low_var_kl")}

# Other spellings of a choice, by the key or by its last part.
SPELLINGS: dict[str, dict[str, str]] = {
    "reward.reward_manager.name": {"gdpo": "naive"},
    "kl_penalty": _K_REWARD,
    "kl_loss_type": _K_LOSS,
    "rollout_rs": {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "geometric"},
    "adv_estimator": {
        "grpo_vectorized": "grpo",
        "rloo_vectorized": "rloo",
        "tir_optimal_token_baseline": "optimal_token_baseline",
    },
}


def new_name(key: str) -> str | None:
    """Where a moved key is now; None if it is not one."""
    for old, new in MOVED.items():
        if old.endswith(".*"):
            group = old.removesuffix("*")
            if key.startswith(group) or key == group.removesuffix("."):
                return new.removesuffix(".*") + key.removeprefix(group.removesuffix("."))
        elif key == old:
            return new
    return None
