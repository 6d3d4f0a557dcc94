from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from laurel.config.tree import Data
from laurel.data.prompts import load_prompts, truncate
from laurel.data.table import DataError


def row(content, truth="1", **more):
    prompt = content if isinstance(content, (str, list)) else None
    return {
        "data_source": "openai/gsm8k",
        "prompt": prompt,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train"},
        **more,
    }


def chat(content):
    return [{"role": "user", "content": content}]


class Render:
    """One token per character of the content, and a count of calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, messages):
        self.calls += 1
        text = messages if isinstance(messages, str) else "".join(m["content"] for m in messages)
        return [ord(c) for c in text]


def write(path: Path, rows) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def data(tmp_path, **settings) -> Data:
    return Data(**{"cache_dir": str(tmp_path / "cache"), "max_prompt_length": 4, **settings})


def test_rows_of_several_files_become_prompts_in_file_order(tmp_path):
    files = [
        write(tmp_path / "a.parquet", [row(chat("ab"), "7"), row(chat("c"))]),
        write(tmp_path / "b.parquet", [row(chat("d"), ability="x", extra_info={"n": 3})]),
    ]
    table = load_prompts(files, data(tmp_path), Render(), cache_key="k")
    assert [p.index for p in table] == [0, 1, 2]
    assert [p.input_ids for p in table] == [(97, 98), (99,), (100,)]
    assert table[0].messages == ({"role": "user", "content": "ab"},)
    assert (table[0].ground_truth, table[0].data_source, table[0].ability) == ("7", "openai/gsm8k", "math")
    assert (table[2].ability, table[2].extra_info) == ("x", {"n": 3})
    assert (len(table), table.dropped, table.truncated) == (3, 0, 0)
    assert table.report == "3 prompts from 2 files, the longest of 2 tokens"


def test_limit_takes_the_first_rows_over_all_files(tmp_path):
    files = [write(tmp_path / f"{n}.parquet", [row(chat(n + str(i))) for i in range(3)]) for n in "ab"]
    table = load_prompts(files, data(tmp_path), Render(), cache_key="k", limit=4)
    assert ["".join(map(chr, p.input_ids)) for p in table] == ["a0", "a1", "a2", "b0"]
    assert len(load_prompts(files, data(tmp_path), Render(), cache_key="k", limit=3)) == 3


def test_a_plain_string_is_rendered_as_it_is(tmp_path):
    seen = []
    file = write(tmp_path / "a.parquet", [row("ab")])
    table = load_prompts([file], data(tmp_path), lambda m: seen.append(m) or [1], cache_key="k")
    assert seen == ["ab"]
    assert table[0].messages == ({"role": "user", "content": "ab"},)


def test_other_columns_may_hold_prompt_and_source(tmp_path):
    file = write(tmp_path / "a.parquet", [{"q": chat("ab"), "kind": "aime", "reward_model": {"ground_truth": "1"}}])
    table = load_prompts([file], data(tmp_path, prompt_key="q", reward_fn_key="kind"), Render(), cache_key="k")
    assert (table[0].data_source, table[0].ability, table[0].extra_info) == ("aime", "", {})


def test_fields_that_parquet_fills_with_none_are_left_out_of_messages(tmp_path):
    messages = [{"role": "user", "content": "a", "name": "x"}, {"role": "assistant", "content": "b"}]
    file = write(tmp_path / "a.parquet", [row(messages)])
    table = load_prompts([file], data(tmp_path), Render(), cache_key="k")
    assert table[0].messages[1] == {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row([]), r"row 1: prompt=\[\] must be text or a list of messages"),
        (row([{"role": "user", "content": None}]), r"row 1: prompt holds .* a message is \{role, content\}, both text"),
        (row(chat("a"), None), r"row 1: reward_model=.* must hold a ground_truth"),
        (row(chat("a"), data_source=None), r"row 1: data_source=None must be a name"),
    ],
)
def test_a_bad_row_is_named(tmp_path, bad, message):
    file = write(tmp_path / "a.parquet", [row(chat("a")), bad])
    with pytest.raises(DataError, match=r"a\.parquet, " + message):
        load_prompts([file], data(tmp_path), Render(), cache_key="k")


def test_a_prompt_that_cannot_be_rendered_is_named_and_keeps_its_cause(tmp_path):
    def render(messages):
        raise KeyError("tools")

    file = write(tmp_path / "a.parquet", [row(chat("a"))])
    with pytest.raises(DataError, match=r"row 0: the prompt cannot be rendered \(KeyError: 'tools'\)") as error:
        load_prompts([file], data(tmp_path), render, cache_key="k")
    assert isinstance(error.value.__cause__, KeyError)


# ---- over-long prompts


def test_overlong_prompts_are_left_out_counted_and_keep_the_index_of_others(tmp_path):
    file = write(tmp_path / "a.parquet", [row(chat("abcde")), row(chat("abcd")), row(chat("abcdefgh")), row(chat("x"))])
    table = load_prompts([file], data(tmp_path), Render(), cache_key="k")
    assert [p.index for p in table] == [1, 3]
    assert (table.dropped, table.truncated) == (2, 0)
    assert table.report == (
        "2 of 4 prompts from 1 file left out: longer than data.max_prompt_length=4 (the longest has 8 tokens)"
    )


def test_overlong_prompts_can_be_an_error_that_names_rows(tmp_path):
    file = write(tmp_path / "a.parquet", [row(chat("a")), row(chat("abcde")), row(chat("abcdefgh"))])
    settings = data(tmp_path, filter_overlong_prompts=False)
    with pytest.raises(DataError, match=r"2 of 3 prompts .*a\.parquet, row 1; .*a\.parquet, row 2\. Raise it to 8"):
        load_prompts([file], settings, Render(), cache_key="k")


@pytest.mark.parametrize(("side", "kept"), [("left", "efgh"), ("right", "abcd"), ("middle", "abgh")])
def test_overlong_prompts_can_be_cut(tmp_path, side, kept):
    file = write(tmp_path / "a.parquet", [row(chat("abcdefgh")), row(chat("xy"))])
    settings = data(tmp_path, filter_overlong_prompts=False, truncation=side)
    table = load_prompts([file], settings, Render(), cache_key="k")
    assert ["".join(map(chr, p.input_ids)) for p in table] == [kept, "xy"]
    assert (table.dropped, table.truncated) == (0, 1)
    assert f"1 of 2 prompts from 1 file cut ({side})" in table.report


def test_truncate_by_hand():
    ids = (1, 2, 3, 4, 5, 6, 7)
    assert truncate(ids, 3, "left") == (5, 6, 7)
    assert truncate(ids, 3, "right") == (1, 2, 3)
    assert truncate(ids, 3, "middle") == (1, 6, 7)
    assert truncate(ids, 1, "middle") == (7,)
    assert truncate(ids, 7, "left") == ids


def test_a_table_that_ends_empty_is_an_error(tmp_path):
    file = write(tmp_path / "a.parquet", [row(chat("abcde"))])
    with pytest.raises(DataError, match=r"all 1 prompts are longer .* raise it to 5"):
        load_prompts([file], data(tmp_path), Render(), cache_key="k")
    with pytest.raises(DataError, match="no rows in an empty list of files"):
        load_prompts([], data(tmp_path), Render(), cache_key="k")


# ---- the cache


def load(tmp_path, file, *, key="k", limit=-1, **settings):
    render, lines = Render(), []
    table = load_prompts([file], data(tmp_path, **settings), render, cache_key=key, limit=limit, say=lines.append)
    return render.calls, [p.input_ids for p in table], lines


def test_a_second_load_renders_nothing_and_gives_the_same(tmp_path):
    file = write(tmp_path / "a.parquet", [row(chat("abc")), row(chat("d"))])
    first = load(tmp_path, file)
    assert first == (2, [(97, 98, 99), (100,)], [])
    assert load(tmp_path, file) == (0, *first[1:])
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(Path(file).read_bytes())
    assert load(tmp_path, str(copy))[0] == 0


def test_what_changes_the_tokens_makes_the_cache_anew(tmp_path):
    file = write(tmp_path / "a.parquet", [row(chat("abc"), other=chat("z")), row(chat("d"), other=chat("z"))])
    assert load(tmp_path, file)[0] == 2
    assert load(tmp_path, file, key="another tokenizer")[0] == 2
    assert load(tmp_path, file, limit=1)[0] == 1
    assert load(tmp_path, file, prompt_key="other")[:2] == (2, [(122,), (122,)])
    write(Path(file), [row(chat("abc")), row(chat("e"))])
    assert load(tmp_path, file)[:2] == (2, [(97, 98, 99), (101,)])


def test_the_length_policy_is_applied_to_cached_tokens(tmp_path):
    file = write(tmp_path / "a.parquet", [row(chat("abcde")), row(chat("d"))])
    assert load(tmp_path, file)[:2] == (2, [(100,)])
    assert load(tmp_path, file, max_prompt_length=5)[:2] == (0, [(97, 98, 99, 100, 101), (100,)])
    assert load(tmp_path, file, filter_overlong_prompts=False, truncation="right")[1][0] == (97, 98, 99, 100)


@pytest.mark.parametrize("damage", ["garbage", "empty", "flipped", "short"])
def test_a_damaged_cache_file_is_made_again_with_a_warning(tmp_path, damage):
    file = write(tmp_path / "a.parquet", [row(chat("abc")), row(chat("d"))])
    good = load(tmp_path, file)
    (stored,) = (tmp_path / "cache").iterdir()
    content = stored.read_bytes()
    if damage == "short":
        pyarrow.parquet.write_table(pyarrow.table({"input_ids": [[1]]}), stored)
    else:
        place = content.index(bytes([97, 0, 0, 0])) if bytes([97, 0, 0, 0]) in content else 20
        flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        stored.write_bytes({"garbage": b"no parquet", "empty": b"", "flipped": flipped}[damage])
    calls, ids, lines = load(tmp_path, file)
    assert (calls, ids) == good[:2]
    assert len(lines) == 1
    assert f"{stored} is damaged and is made again" in lines[0]
    assert load(tmp_path, file) == (0, ids, [])


def test_a_cache_folder_that_cannot_be_written_is_only_a_warning(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    file = write(tmp_path / "a.parquet", [row(chat("abc"))])
    calls, ids, lines = load(tmp_path, file)
    assert (calls, ids) == (1, [(97, 98, 99)])
    assert "set data.cache_dir" in lines[0]


def test_nothing_but_the_cache_file_is_left_in_the_folder(tmp_path):
    file = write(tmp_path / "a.parquet", [row(chat("abc"))])
    load(tmp_path, file)
    assert [p.suffix for p in (tmp_path / "cache").iterdir()] == [".parquet"]


def test_the_cache_lies_in_the_home_folder_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = write(tmp_path / "a.parquet", [row(chat("abc"))])
    load_prompts([file], Data(), Render(), cache_key="k")
    assert len(list((tmp_path / "home/.cache/laurel/prompts").iterdir())) == 1
