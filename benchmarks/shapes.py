"""Model shapes with random weights: what the benchmarks run, since speed does not depend on what a model has learned.

    python -m benchmarks.shapes 0.5b FOLDER     # write the Hugging Face folder FOLDER/0.5b, weights included

A model is named by ``tiny``, ``0.5b`` (Qwen2.5-0.5B's shape) or ``7b`` (Qwen2.5-7B's), or by a config.json, or by a
folder that holds one; its weights are drawn anew. The tokenizer is that of benchmarks/words.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.words import BOS, EOS, PAD, build_tokenizer

_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "use_sliding_window": False,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "tie_word_embeddings": True,
    },
    "0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "7b": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
}


def name_of(model: str) -> str:
    """A short name for folders and tables. Example: ``.gpu/qwen05.json`` is qwen05."""
    return model if model in SHAPES else Path(model).resolve().stem


def fields_of(model: str) -> dict[str, Any]:
    """The config.json of a model's shape, with the special ids of the tokenizer written here."""
    if model in SHAPES:
        return {**_QWEN2, **SHAPES[model]}
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise SystemExit(f"--model {model}: no such shape or file; use {', '.join(SHAPES)} or a config.json")
    fields = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("torch_dtype", "dtype")}
    return {**fields, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}


@dataclass(frozen=True)
class Sizes:
    """Counts of a Llama-like decoder. ``backbone`` and ``head`` are parameters that multiply, per token: the embedding
    look-up is not among them, and a tied embedding multiplies once, in the head. ``width`` is heads times head size.
    """

    backbone: int
    head: int
    embedding: int
    layers: int
    width: int
    cache_per_token: int

    @property
    def multiplying(self) -> int:
        return self.backbone + self.head


def sizes_of(fields: Mapping[str, Any]) -> Sizes:
    """Qwen2's projections of query, key and value have a bias; norms are counted with the backbone.

    Example: ``tiny`` has 64-wide layers with 16-wide heads: the cache holds 2 * 2 layers * 2 heads * 16 = 128 numbers
    for each token, and the head is 512 * 64.
    """
    hidden, layers, heads = fields["hidden_size"], fields["num_hidden_layers"], fields["num_attention_heads"]
    kv_heads = fields.get("num_key_value_heads") or heads
    head_dim = fields.get("head_dim") or hidden // heads
    wide, narrow = heads * head_dim, kv_heads * head_dim
    attention = 2 * hidden * wide + 2 * hidden * narrow + (wide + 2 * narrow if fields["model_type"] == "qwen2" else 0)
    layer = attention + 3 * hidden * fields["intermediate_size"] + 2 * hidden
    embedding = fields["vocab_size"] * hidden
    return Sizes(layers * layer + hidden, embedding, embedding, layers, wide, 2 * layers * narrow)


def random_module(fields: Mapping[str, Any], *, device: str, dtype: Any, attention: str | None = None) -> Any:
    """A causal model with random weights, made on ``device`` itself: nothing passes through disk or host memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**fields)
    chosen = {} if attention is None else {"attn_implementation": attention}
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, **chosen).eval()


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def write_folder(model: str, parent: Path, *, weights: bool = True) -> Path:
    """A Hugging Face folder of ``model`` under ``parent``, in bf16; made once, complete or not there at all.

    Without ``weights`` it holds config and tokenizer, for an engine that draws dummy weights itself.
    """
    fields = fields_of(model)
    folder = parent / (name_of(model) if weights else f"{name_of(model)}-no-weights")
    mark = folder / "shape.json"
    if mark.exists() and json.loads(mark.read_text()) == fields:
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=parent))
    build_tokenizer(fields["vocab_size"]).save_pretrained(made)
    if weights:
        import torch

        random_module(fields, device=default_device(), dtype=torch.bfloat16).save_pretrained(made)
    else:
        (made / "config.json").write_text(json.dumps({**fields, "dtype": "bfloat16"}))
    (made / mark.name).write_text(json.dumps(fields))
    shutil.rmtree(folder, ignore_errors=True)
    try:
        os.replace(made, folder)
    except OSError:  # another call put it there in between; any two of one shape are as good
        shutil.rmtree(made)
        if not mark.exists() or json.loads(mark.read_text()) != fields:
            raise
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("parent", type=Path)
    parser.add_argument("--no-weights", action="store_true")
    args = parser.parse_args()
    print(write_folder(args.model, args.parent, weights=not args.no_weights), flush=True)


if __name__ == "__main__":
    main()
