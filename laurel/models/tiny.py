"""Random small models with a character tokenizer, written to disk as Hugging Face folders, for tests and examples.

A model that never succeeds learns nothing from rewards (it collapses to one constant answer), so ``warm_start`` gives
it a few seconds of supervised training on right, or partly right, answers.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from laurel.models.gguf import write_folder
from laurel.types import LaurelError

CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CHAT_TEMPLATE = (
    "{{ '<bos>' }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<eos>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def write_tiny_model(
    out_dir: str | Path,
    *,
    characters: str = CHARACTERS,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    seed: int = 0,
    architecture: Literal["llama", "qwen2"] = "llama",
    max_length: int = 1024,
    tied: bool = True,
) -> Path:
    """Write a randomly initialised causal model and its tokenizer; the same arguments give the same bytes of weights.

    Token ids: ``<pad>`` 0, ``<bos>`` 1, ``<eos>`` 2, ``<unk>`` 3, four role marks, then one id for each character in
    the order of ``characters``. A chat renders as ``<bos><|user|>2+3=<|assistant|>``; ``<eos>`` ends an assistant turn.
    ``hidden`` must be a multiple of ``heads``, and ``heads`` of ``kv_heads``. Returns ``out_dir``.
    """
    if hidden % heads or heads % kv_heads:
        raise LaurelError(f"hidden={hidden} must be a multiple of heads={heads}, and heads of kv_heads={kv_heads}")
    tokenizer = _character_tokenizer(characters, max_length)
    config = _config(
        architecture,
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_length,
        tie_word_embeddings=tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)

    def write(folder: Path) -> None:
        module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return write_folder(Path(out_dir), write)


def _config(architecture: str, **shape: Any) -> Any:
    from transformers import LlamaConfig, Qwen2Config

    if architecture == "llama":
        return LlamaConfig(**shape)
    if architecture == "qwen2":
        return Qwen2Config(**shape)
    raise LaurelError(f"architecture={architecture!r} is unknown; use 'llama' or 'qwen2'")


def _character_tokenizer(characters: str, max_length: int) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    repeated = sorted({c for c in characters if characters.count(c) > 1})
    if repeated:
        raise LaurelError(f"characters={characters!r} repeats {repeated}; give each character once")
    special = [PAD, BOS, EOS, UNK, *ROLES]
    vocab = {token: i for i, token in enumerate([*special, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNK,
        extra_special_tokens=list(ROLES),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
    )


def warm_start(
    model_dir: str | Path,
    pairs: Sequence[tuple[str, str]],
    steps: int,
    *,
    batch_size: int = 64,
    lr: float = 1e-3,
    seed: int = 0,
) -> float:
    """Train the model of ``model_dir`` on (user message, answer) pairs for ``steps`` AdamW updates and save it back.

    The loss is the mean cross-entropy of the answer's tokens and the ``<eos>`` after it. Each update draws
    ``batch_size`` pairs with replacement from a generator of its own, so the result depends on the arguments and the
    thread count alone. Returns the last loss, in nats per token.
    """
    if not pairs or steps < 1:
        raise LaurelError(f"warm_start needs pairs and steps >= 1, not {len(pairs)} pairs and steps={steps}")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    module = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    input_ids, labels = _supervised_rows(tokenizer, pairs)
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(len(pairs), (min(batch_size, len(pairs)),), generator=generator)
        # Rows are padded on the right, so causal attention never sees the padding and needs no mask.
        logits = module(input_ids=input_ids[rows], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[rows][:, 1:].flatten(), ignore_index=-100
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def write(folder: Path) -> None:
        module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    write_folder(Path(model_dir), write)
    return float(loss.detach())


def _supervised_rows(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded token ids and labels, both (pairs, longest); labels are -100 outside the answers."""
    rows = []
    for question, answer in pairs:
        messages = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        rows.append((prompt, tokenizer(answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]))
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    input_ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
    labels = torch.full((len(rows), longest), -100)
    for i, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        input_ids[i, :end] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : end] = torch.tensor(answer)
    return input_ids, labels
