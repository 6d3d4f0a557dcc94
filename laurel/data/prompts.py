"""Data files to tokenized prompts: read, check each row, tokenize once, apply one policy to over-long prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

from laurel.config.tree import Data
from laurel.data import token_cache
from laurel.data.table import DataError, Row, read_rows, resolve
from laurel.tracking.console import Progress, stamped
from laurel.types import Prompt

Render = Callable[[Any], list[int]]


@dataclass(frozen=True)
class PromptTable(Sequence[Prompt]):
    """The prompts of one split in file order. ``dropped`` and ``truncated`` count over-long ones; ``report`` says it
    all.
    """

    prompts: tuple[Prompt, ...]
    dropped: int
    truncated: int
    report: str

    def __len__(self) -> int:
        return len(self.prompts)

    @overload
    def __getitem__(self, place: int) -> Prompt: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Prompt]: ...
    def __getitem__(self, place: int | slice) -> Prompt | Sequence[Prompt]:
        return self.prompts[place]

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)


@dataclass(frozen=True)
class _Source:
    """Where a row came from, for messages."""

    file: str
    row: int

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}"


def load_prompts(
    files: Sequence[str],
    data: Data,
    render: Render,
    *,
    cache_key: str,
    limit: int = -1,
    say: Callable[[str], None] | None = None,
) -> PromptTable:
    """The first ``limit`` rows (-1: all) of the files, in file order, as prompts of at most ``data.max_prompt_length``
    tokens.

    ``render`` turns chat messages, or the plain text of a row that has no messages, into token ids; ``cache_key`` must
    change whenever ``render`` would answer differently. ``Prompt.index`` is the row's place over all files, over-long
    rows counted. ``say`` gets plain lines (default: standard output). Raises DataError naming file and row, and for a
    table without prompts.
    """
    say = say or _say
    prompts: list[Prompt] = []
    places: list[_Source] = []
    for file in files:
        left = -1 if limit < 0 else limit - len(prompts)
        if left == 0:
            break
        rows = read_rows(
            file,
            required=[data.prompt_key, data.reward_fn_key, "reward_model"],
            optional=["ability", "extra_info"],
            limit=left,
        )
        parsed = [_parse_row(row, data, index=len(prompts) + i, place=_Source(file, i)) for i, row in enumerate(rows)]
        contents = [content for _, content in parsed]
        ids = _token_ids(file, contents, data, render, cache_key=cache_key, say=say)
        prompts += [replace(prompt, input_ids=tuple(row)) for (prompt, _), row in zip(parsed, ids, strict=True)]
        places += [_Source(file, i) for i in range(len(rows))]
    return _apply_length_policy(prompts, places, data, files)


def truncate(input_ids: Sequence[int], length: int, side: str) -> tuple[int, ...]:
    """``input_ids`` cut to ``length`` tokens; ``side`` names where tokens are lost: left, right, or middle."""
    ids = tuple(input_ids)
    if len(ids) <= length:
        return ids
    if side == "left":
        return ids[-length:]
    if side == "right":
        return ids[:length]
    head = length // 2
    return ids[:head] + ids[len(ids) - (length - head) :]


def _parse_row(row: Row, data: Data, *, index: int, place: _Source) -> tuple[Prompt, Any]:
    """A prompt without token ids, and what is to be rendered: its messages, or its text."""
    value = row[data.prompt_key]
    content: str | tuple[Mapping[str, Any], ...]
    messages: tuple[Mapping[str, Any], ...]
    if isinstance(value, str) and value:
        content, messages = value, ({"role": "user", "content": value},)
    else:
        content = messages = _messages(value, data.prompt_key, place)
    source = row[data.reward_fn_key]
    if not isinstance(source, str) or not source:
        raise DataError(f"{place}: {data.reward_fn_key}={source!r} must be a name")
    reward_model = row["reward_model"]
    if not isinstance(reward_model, Mapping) or reward_model.get("ground_truth") is None:
        raise DataError(f"{place}: reward_model={reward_model!r} must hold a ground_truth, as {{style, ground_truth}}")
    extra_info = row.get("extra_info") or {}
    if not isinstance(extra_info, Mapping):
        raise DataError(f"{place}: extra_info={extra_info!r} must be an object with named values")
    prompt = Prompt(
        index=index,
        input_ids=(),
        messages=tuple(messages),
        data_source=source,
        ground_truth=reward_model["ground_truth"],
        ability=row.get("ability") or "",
        extra_info=dict(extra_info),
    )
    return prompt, content


def _messages(value: Any, column: str, place: _Source) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise DataError(f"{place}: {column}={value!r} must be text or a list of messages {{role, content}}")
    messages = []
    for message in value:
        good = (
            isinstance(message, Mapping)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
        )
        if not good:
            raise DataError(f"{place}: {column} holds {message!r}; a message is {{role, content}}, both text")
        # parquet gives every message the fields that any message has, with None where there was none
        messages.append({key: field for key, field in message.items() if field is not None})
    return tuple(messages)


def _token_ids(
    file: str, contents: Sequence[Any], data: Data, render: Render, *, cache_key: str, say: Callable[[str], None]
) -> list[list[int]]:
    """Token ids of every row of a file, from the cache if it has them."""
    folder = Path(data.cache_dir).expanduser() if data.cache_dir is not None else token_cache.default_folder()
    key = token_cache.file_key(resolve(file), column=data.prompt_key, rows=len(contents), cache_key=cache_key)
    ids, warning = token_cache.read(folder, key, rows=len(contents))
    if warning:
        say(warning)
    if ids is not None:
        return ids
    with Progress().phase(f"tokenize {Path(file).name}", total=len(contents), unit="rows") as phase:
        ids = []
        for i, content in enumerate(contents):
            try:
                ids.append([int(token) for token in render(content)])
            except Exception as error:
                raise DataError(
                    f"{_Source(file, i)}: the prompt cannot be rendered ({type(error).__name__}: {error})"
                ) from error
            phase.advance()
    warning = token_cache.write(folder, key, ids)
    if warning:
        say(warning)
    return ids


def _apply_length_policy(
    prompts: Sequence[Prompt], places: Sequence[_Source], data: Data, files: Sequence[str]
) -> PromptTable:
    where = f"{len(files)} file{'s' if len(files) != 1 else ''}"
    if not prompts:
        raise DataError(f"no rows in {', '.join(files) or 'an empty list of files'}; give files that hold prompts")
    limit = data.max_prompt_length
    long = [i for i, prompt in enumerate(prompts) if len(prompt.input_ids) > limit]
    longest = max(len(prompt.input_ids) for prompt in prompts)
    if not long:
        return PromptTable(
            tuple(prompts), 0, 0, f"{len(prompts)} prompts from {where}, the longest of {longest} tokens"
        )
    count = f"{len(long)} of {len(prompts)} prompts from {where}"
    rule = f"longer than data.max_prompt_length={limit} (the longest has {longest} tokens)"
    if data.filter_overlong_prompts:
        if len(long) == len(prompts):
            raise DataError(f"all {len(prompts)} prompts are {rule}; raise it to {longest} to keep all")
        kept = tuple(prompt for prompt in prompts if len(prompt.input_ids) <= limit)
        return PromptTable(kept, len(long), 0, f"{count} left out: {rule}")
    if data.truncation == "error":
        shown = "; ".join(str(places[i]) for i in long[:10]) + ("; ..." if len(long) > 10 else "")
        raise DataError(
            f"{count} are {rule}: {shown}. Raise it to {longest}, or set data.filter_overlong_prompts=True, "
            "or data.truncation=left, right or middle"
        )
    cut = tuple(replace(prompt, input_ids=truncate(prompt.input_ids, limit, data.truncation)) for prompt in prompts)
    return PromptTable(cut, 0, len(long), f"{count} cut ({data.truncation}): {rule}")


def _say(line: str) -> None:
    print(stamped(line), flush=True)
