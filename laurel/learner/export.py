"""From a checkpoint to a Hugging Face folder that transformers, vLLM and others load. Needs no GPU and no Ray."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from laurel.learner.shards import DESCRIPTION, parameters, read_state
from laurel.models.load import module_of_weights, save_module
from laurel.types import LaurelError


def export_checkpoint(checkpoint_dir: str | Path, out_dir: str | Path, *, role: str = "actor") -> Path:
    """Write the weights of ``role`` in a checkpoint (``global_step_N``) as a model folder, and return it.

    Weights have the dtype that the model was published in; config, generation config and tokenizer are those of
    training. A critic's value head goes into value_head.safetensors, which ``critic.model.path`` reads again.
    """
    folder, out = Path(checkpoint_dir).expanduser() / role, Path(out_dir).expanduser()
    if not folder.is_dir():
        raise LaurelError(
            f"{checkpoint_dir} holds no {role}; give a checkpoint folder such as checkpoints/PROJECT/RUN/global_step_8"
        )
    if out.exists() and any(out.iterdir()):
        raise LaurelError(f"{out} is not empty; give a new folder for the exported model")
    state = read_state(folder)
    description = folder / DESCRIPTION
    dtype = _dtype(description)
    weights = {
        name: tensor if name.startswith("value_head.") else tensor.to(dtype) for name, tensor in parameters(folder)
    }
    module = module_of_weights(description, weights, value_model=state["value_model"])
    out.mkdir(parents=True, exist_ok=True)
    # The weights' own config comes last: it is the same, and names the class that was saved
    shutil.copytree(description, out, dirs_exist_ok=True)
    save_module(module, out)
    return out


def _dtype(description: Path) -> torch.dtype:
    """The dtype named in a config.json."""
    name = json.loads((description / "config.json").read_text())["dtype"]
    return getattr(torch, name)
