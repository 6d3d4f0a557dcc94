"""A byte-level BPE tokenizer for random weights: made in a second, of any size, and exact.

Models of the Qwen2 kind get Qwen2's tokenizer class whatever their folder says, so this one is of that kind: ids 0 to 2
are pad, begin and end, then come the 256 bytes, pairs such as ``aB``, words such as ``aBcD``, and the same words after
a space. A sequence of the last kind, and only of it, is text that gives exactly these ids back: prompts are made of
them. What a model samples may be anything.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

PAD, BOS, EOS = 0, 1, 2
SPECIAL = ("<pad>", "<bos>", "<eos>")
_SPACE = "Ġ"  # how byte-level BPE writes a space


def _pairs(vocab: int) -> list[str]:
    """A lower letter and a capital: no merge begins inside another. A small vocabulary takes fewer letters."""
    letters = 26 if vocab > 4096 else 8
    return [a + b for a in string.ascii_lowercase[:letters] for b in string.ascii_uppercase[:letters]]


def _plain(vocab: int) -> int:
    """Id of the first word without a space. Example: 3 + 256 + 676 = 935 for a large vocabulary."""
    return len(SPECIAL) + 256 + len(_pairs(vocab))


def spaced(vocab: int) -> range:
    """The ids that prompts are made of: words after a space. Example: 512 ids leave 94 words, ids 417 to 510."""
    first = _plain(vocab)
    count = (vocab - first) // 2
    if count < 1:
        raise ValueError(f"a vocabulary of {vocab} has no room for words; use at least {first + 2}")
    return range(first + count, first + 2 * count)


def _word(number: int, pairs: Sequence[str]) -> tuple[str, str]:
    return pairs[number // len(pairs)], pairs[number % len(pairs)]


def text_of(ids: Sequence[int], vocab: int) -> str:
    """Text that the tokenizer turns into ``ids``, all of them in ``spaced(vocab)``."""
    pairs, first = _pairs(vocab), spaced(vocab).start
    return "".join(" " + "".join(_word(i - first, pairs)) for i in ids)


def build_tokenizer(vocab: int) -> Any:
    """The tokenizer with exactly ``vocab`` ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pairs, count = _pairs(vocab), len(spaced(vocab))
    words = [_word(number, pairs) for number in range(count)]
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *pairs]
    tokens += ["".join(word) for word in words] + [_SPACE + "".join(word) for word in words]
    tokens += [f"<filler{i}>" for i in range(vocab - len(tokens))]
    merges = [(pair[0], pair[1]) for pair in pairs] + words + [(_SPACE, "".join(word)) for word in words]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    pad, bos, eos = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=pad,
        clean_up_tokenization_spaces=False,
    )
