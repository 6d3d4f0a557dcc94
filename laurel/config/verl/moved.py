"""Keys, and a few values, that verl has under another name as well. They are read under the name they have here."""

from __future__ import annotations

from laurel.config.verl.retired import ACTOR, CRITIC

# A key, or a group with everything under it (``.*``), and where it is now.
MOVED: dict[str, str] = {
    "custom_reward_function.reward_kwargs.*": "reward.reward_kwargs.*",
    "custom_reward_function.path": "reward.custom_reward_function.path",
    "custom_reward_function.name": "reward.custom_reward_function.name",
    "reward.custom_reward_function.reward_kwargs.*": "reward.reward_kwargs.*",
    "reward_model.reward_kwargs.*": "reward.reward_kwargs.*",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_manager.name": "reward.reward_manager.name",
    ACTOR + "grad_clip": ACTOR + "optim.clip_grad",
    CRITIC + "grad_clip": CRITIC + "optim.clip_grad",
    ACTOR + "optim.warmup_style": ACTOR + "optim.lr_scheduler_type",
    CRITIC + "optim.warmup_style": CRITIC + "optim.lr_scheduler_type",
    "critic.model.fsdp_config.*": "critic.fsdp_config.*",
    "critic.model.tokenizer": "critic.model.tokenizer_path",
}

# Other spellings of a choice, by the last part of the key.
SPELLINGS: dict[str, dict[str, str]] = {
    "kl_penalty": {"k1": "kl", "k2": "mse", "k3": "low_var_kl"},
    "kl_loss_type": {"k1": "kl", "k2": "mse", "k3": "low_var_kl"},
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
