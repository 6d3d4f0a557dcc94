"""Loading Hugging Face causal models, and value models made of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from laurel.config.tree import Model
from laurel.models import attention as packed
from laurel.models.hub import fetch
from laurel.models.served import untrained
from laurel.types import LaurelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

VALUE_HEAD = "value_head"


def load_model_config(model: Model) -> PretrainedConfig:
    """The model's config with ``override_config`` applied. Raises LaurelError naming the path or the field."""
    from transformers import AutoConfig

    config = _fetch(AutoConfig.from_pretrained, model, "config.json")
    for name, value in model.override_config.items():
        if name not in config.to_dict():
            raise LaurelError(
                f"model.override_config.{name}: {type(config).__name__} has no field {name!r}; check the name"
            )
        setattr(config, name, value)
    return config


def inspect(model: Model, *, say: Callable[[str], object] = print) -> None:
    """Fetch a hub id's files and read its config with the overrides: what is wrong with it comes before a rank starts.

    Raises LaurelError naming the model or the field.
    """
    fetch(model, say=say)
    check_served(load_model_config(model))


def load_policy(
    model: Model, *, dtype: torch.dtype, device: torch.device | str = "cpu", attention: str = packed.NAME
) -> PreTrainedModel:
    """The causal language model of ``model.path`` (a folder or a hub id) with parameters in ``dtype`` on ``device``.

    On a CPU compute in float32: bfloat16 is some hundred times slower there. The module is in eval mode.
    """
    from transformers import AutoModelForCausalLM

    packed.register()
    config = load_model_config(model)
    check_served(config)
    module = _fetch(
        AutoModelForCausalLM.from_pretrained,
        model,
        "model weights",
        config=config,
        dtype=dtype,
        attn_implementation=attention,
    )
    return _prepared(module, model).to(torch.device(device))  # type: ignore[arg-type]


class ValueModel(nn.Module):
    """A causal model's backbone with a scalar head: the value of the state after each token.

    Parameters are named ``model.*`` as in the causal model, and ``value_head.*``. The head stays float32 whatever the
    backbone is, since values are regressed on, and starts at 0, so a fresh critic says 0 everywhere.
    """

    def __init__(self, backbone: PreTrainedModel):
        super().__init__()
        self.model = backbone
        self.value_head = nn.Linear(backbone.config.hidden_size, 1, dtype=torch.float32)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    @property
    def config(self) -> PretrainedConfig:
        return self.model.config

    def forward(self, **inputs: Any) -> Tensor:
        """Keywords of the backbone's forward to values (B, L) float32."""
        hidden = self.model(**inputs).last_hidden_state
        return self.value_head(hidden.to(self.value_head.weight.dtype))[..., 0].float()


def load_value_model(
    model: Model, *, dtype: torch.dtype, device: torch.device | str = "cpu", attention: str = packed.NAME
) -> ValueModel:
    """A value model from a causal model (the head starts at 0) or from a folder that ``save_module`` wrote."""
    from transformers import AutoModel

    packed.register()
    config = load_model_config(model)
    check_served(config)
    backbone = _fetch(
        AutoModel.from_pretrained, model, "model weights", config=config, dtype=dtype, attn_implementation=attention
    )
    value_model = ValueModel(_prepared(backbone, model))
    folder = Path(model.path or "").expanduser()
    saved = folder / f"{VALUE_HEAD}.safetensors"
    if saved.is_file():
        from safetensors.torch import load_file

        value_model.value_head.load_state_dict(load_file(saved))
    return value_model.to(device)


def save_module(module: PreTrainedModel | ValueModel, folder: Path) -> None:
    """Write a Hugging Face folder: config and weights; a value model's head goes into a file of its own."""
    if isinstance(module, ValueModel):
        from safetensors.torch import save_file

        module.model.save_pretrained(folder)
        head = {name: tensor.detach().contiguous() for name, tensor in module.value_head.state_dict().items()}
        save_file(head, folder / f"{VALUE_HEAD}.safetensors")
        return
    module.save_pretrained(folder)


def module_of_weights(
    folder: Path, weights: Mapping[str, Tensor], *, value_model: bool
) -> PreTrainedModel | ValueModel:
    """The module that ``folder``'s config.json describes, holding ``weights`` (names of ``named_parameters``)."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    dtype = next(iter(weights.values())).dtype
    kind = AutoModel if value_model else AutoModelForCausalLM
    plain = kind.from_config(config, dtype=dtype)
    module = ValueModel(plain) if value_model else plain
    own = dict(module.named_parameters())
    if own.keys() != weights.keys():
        raise LaurelError(
            f"{folder}: weights do not fit the model; they differ in {sorted(own.keys() ^ weights.keys())[:8]}"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    if not value_model and (folder / "generation_config.json").is_file():
        from transformers import GenerationConfig

        module.generation_config = GenerationConfig.from_pretrained(folder)
    return module


def save_description(module: PreTrainedModel | ValueModel, model: Model, folder: Path) -> None:
    """Write what turns weights into a usable model: config, generation config and tokenizer, without weights.

    The config names the dtype that the model was published in, not the one that it is trained in.
    """
    from laurel.models.tokenizer import load_tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    config = type(module.config).from_dict(module.config.to_dict())
    config.dtype = load_model_config(model).dtype or torch.float32
    config.save_pretrained(folder)
    generation = None if isinstance(module, ValueModel) else module.generation_config
    if generation is not None:
        generation.save_pretrained(folder)
    load_tokenizer(model).save_pretrained(folder)


def backbone_of(module: Any) -> Any:
    """The part of a causal model or value model that gives hidden states."""
    return module.model if isinstance(module, ValueModel) else module.base_model


def check_served(config: PretrainedConfig) -> None:
    """Raise LaurelError for a model that packed attention or the chunked head would compute wrongly."""
    reason = untrained(config.to_dict())
    if reason is not None:
        raise LaurelError(reason)


def _prepared(module: PreTrainedModel, model: Model) -> PreTrainedModel:
    if not module._supports_attention_backend:
        raise LaurelError(
            f"{type(module).__name__} computes attention by itself, so it cannot be packed; choose another model"
        )
    if model.enable_gradient_checkpointing:
        # The second name is the one before transformers 5.20 or so
        enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    return module.eval()


def _fetch(load: Any, model: Model, what: str, **kwargs: Any) -> Any:
    """Call a from_pretrained on ``model.path``; what goes wrong becomes one LaurelError with the path and the cure."""
    from transformers.utils.logging import disable_progress_bar

    folder = fetch(model)
    disable_progress_bar()  # bars of every rank would run into each other in one log
    try:
        return load(folder, trust_remote_code=model.trust_remote_code, **kwargs)
    except (OSError, ValueError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        cure = f"check the folder {folder}"
        if "trust_remote_code" in str(error):
            cure = "if you trust the code that comes with it, set actor_rollout_ref.model.trust_remote_code=True"
        raise LaurelError(f"{what} of {model.path!r} could not be loaded ({said}); {cure}") from error
