"""What null stands for. Every rule reads the settings as given and the machine, so that no room has to guess."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laurel.config.estimators import ESTIMATORS
from laurel.config.losses import LOSSES
from laurel.config.machine import visible_gpus
from laurel.config.tree import Model

Values = dict[str, Any]
ACTOR, ROLLOUT, REF, CRITIC = (
    "actor_rollout_ref.actor.",
    "actor_rollout_ref.rollout.",
    "actor_rollout_ref.ref.",
    "critic.",
)
CPU_MEMORY: Values = {
    ACTOR + "ppo_max_token_len_per_gpu": 16384,
    CRITIC + "ppo_max_token_len_per_gpu": 32768,
    ROLLOUT + "log_prob_max_token_len_per_gpu": 16384,
    REF + "log_prob_max_token_len_per_gpu": 16384,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    ACTOR + "fsdp_config.optimizer_offload": False,
    REF + "fsdp_config.optimizer_offload": False,
    CRITIC + "fsdp_config.optimizer_offload": False,
}
RAY_SESSION = re.compile(r"^/tmp/ray/session_[^/]*(/|$)|/session_[^/]+/runtime_resources(/|$)")
FILE_LISTS = ("data.train_files", "data.val_files")
FOLDERS = ("trainer.rollout_data_dir", "trainer.resume_from_path", "data.cache_dir")
PERHAPS_LOCAL = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.tokenizer_path",
    "critic.model.path",
    "critic.model.tokenizer_path",
    "reward.custom_reward_function.path",
)


def derive(values: Mapping[str, Any], given: frozenset[str]) -> tuple[Values, list[str]]:
    """The values with nulls replaced, and what to say about it. ``values`` maps every key of the tree to its value."""
    values = dict(values)
    notes = _machine(values, given)
    _paths(values)
    notes += _folders(values)
    _batches(values, given)
    _algorithm(values, given)
    _memory(values)
    _critic_model(values, given)
    return values, notes


def in_ray_session(path: str | Path) -> bool:
    """Whether Ray deletes this folder at its will: its session folder, or the copy of a job's working_dir in it."""
    return RAY_SESSION.search(str(path)) is not None


def _machine(values: Values, given: frozenset[str]) -> list[str]:
    notes = []
    automatic = values["trainer.device"] == "auto"
    gpus = visible_gpus() if automatic or values["trainer.n_gpus_per_node"] is None else 0
    if automatic:
        # Who asks for several GPUs means GPUs: the command may be typed on a head node that has none
        # (a number that is refused is null here)
        several = "trainer.n_gpus_per_node" in given and (values["trainer.n_gpus_per_node"] or 0) > 1
        values["trainer.device"] = "cuda" if gpus or several else "cpu"
        if several and not gpus:
            notes.append(
                f"trainer.device is cuda, since trainer.n_gpus_per_node={values['trainer.n_gpus_per_node']} was given; "
                "set trainer.device=cpu to run that many processes on CPUs"
            )
        elif not gpus:
            notes.append(
                "trainer.device is cpu, since this machine shows no NVIDIA GPU; if nodes have some, set "
                "trainer.device=cuda"
            )
    if values["trainer.n_gpus_per_node"] is None:
        values["trainer.n_gpus_per_node"] = max(1, gpus) if values["trainer.device"] == "cuda" else 1
    return notes


def _paths(values: Values) -> None:
    """``~`` is the home folder; what lies on this machine gets its whole path, since workers start elsewhere."""
    for key in FILE_LISTS:
        values[key] = [os.path.expanduser(file) for file in values[key]]
    for key in PERHAPS_LOCAL:
        path = values[key]
        if path is not None and Path(path).expanduser().exists():
            values[key] = str(Path(path).expanduser().absolute())
    if values["data.cache_dir"] is None:
        values["data.cache_dir"] = "~/.cache/laurel/prompts"


def _folders(values: Values) -> list[str]:
    start = Path.cwd()
    moved = in_ray_session(start)
    base = Path.home() if moved else start
    relative = values["trainer.default_local_dir"] or (
        f"checkpoints/{values['trainer.project_name']}/{values['trainer.experiment_name']}"
    )
    folder = _under(base, relative)
    values["trainer.default_local_dir"] = folder
    values["trainer.validation_data_dir"] = _under(
        base, values["trainer.validation_data_dir"] or f"{folder}/validation"
    )
    for key in FOLDERS:
        if values[key] is not None:
            values[key] = _under(base, values[key])
    if moved and not Path(relative).expanduser().is_absolute():
        return [f"trainer.default_local_dir is {folder}, since the job runs in a folder that Ray deletes"]
    return []


def _under(base: Path, path: str) -> str:
    return os.path.normpath(base / Path(path).expanduser())


def _batches(values: Values, given: frozenset[str]) -> None:
    if values["data.gen_batch_size"] is None:
        values["data.gen_batch_size"] = values["data.train_batch_size"]
    mini = ACTOR + "ppo_mini_batch_size"
    if mini not in given:
        values[mini] = min(values[mini], values["data.train_batch_size"])
    for key in ("ppo_mini_batch_size", "ppo_epochs"):
        if values[CRITIC + key] is None:
            values[CRITIC + key] = values[ACTOR + key]
    for prefix, kind in ((ACTOR, ""), (CRITIC, ""), (ROLLOUT, "log_prob_"), (REF, "log_prob_")):
        size = f"{prefix}{kind or 'ppo_'}micro_batch_size_per_gpu"
        flag = f"{prefix}{kind}use_dynamic_bsz"
        # With a size on a GPU the plan decides: more trajectories than that go together if they fit
        if values[flag] is None and (values[size] is None or values["trainer.device"] == "cpu"):
            values[flag] = values[size] is None
    if values[ROLLOUT + "max_model_len"] is None:
        values[ROLLOUT + "max_model_len"] = values["data.max_prompt_length"] + values["data.max_response_length"]


def _memory(values: Values) -> None:
    """On a CPU, which pages; a GPU's memory is planned when it is known (trainer/fit.py), and null until then."""
    if values["trainer.device"] == "cpu":
        for key, value in CPU_MEMORY.items():
            if values[key] is None:
                values[key] = value


def _algorithm(values: Values, given: frozenset[str]) -> None:
    for side in ("clip_ratio_low", "clip_ratio_high"):
        if values[ACTOR + side] is None:
            values[ACTOR + side] = values[ACTOR + "clip_ratio"]
    if values[ACTOR + "loss_agg_mode"] is None:
        values[ACTOR + "loss_agg_mode"] = LOSSES[values[ACTOR + "policy_loss.loss_mode"]].loss_agg_mode
    if values[ACTOR + "loss_scale_factor"] is None:
        values[ACTOR + "loss_scale_factor"] = float(values["data.max_response_length"])
    if values["algorithm.use_kl_in_reward"] is None:
        values["algorithm.use_kl_in_reward"] = "algorithm.kl_ctrl.kl_coef" in given
    if values["critic.enable"] is None:
        uses_values = ESTIMATORS[values["algorithm.adv_estimator"]].needs_critic
        values["critic.enable"] = uses_values and not values["trainer.val_only"]


def _critic_model(values: Values, given: frozenset[str]) -> None:
    """A critic without a path of its own is the actor's model in every field that was not given; another model is only
    trusted and checkpointed alike."""
    own = values["critic.model.path"]
    same = own is None or own == values["actor_rollout_ref.model.path"]
    for name in Model.model_fields if same else ("trust_remote_code", "enable_gradient_checkpointing"):
        if f"critic.model.{name}" not in given or values[f"critic.model.{name}"] is None:
            values[f"critic.model.{name}"] = values[f"actor_rollout_ref.model.{name}"]
