"""Text of the command line as values of a type."""

from typing import Any, Literal

import pytest

from laurel.config.values import Unreadable, fit, from_text, scalar

FILES = list[str]
LOGGERS = list[Literal["console", "wandb"]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1", -1),
        ("1_000", 1000),
        ("+3", 3),
        ("True", True),
        ("false", False),
        ("null", None),
        ("None", None),
        ("e5", "e5"),
        ("1__0", "1__0"),
        ("-", "-"),
        (".", "."),
        ("1.2.3", "1.2.3"),
        ("yes", "yes"),
        ("nan", "nan"),
    ],
)
def test_scalar(text, value):
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


@pytest.mark.parametrize(
    "text", ["['console','wandb']", "[console,wandb]", '["console","wandb"]', "[console, 'wandb']"]
)
def test_every_way_to_write_a_list(text):
    assert from_text(text, LOGGERS) == ["console", "wandb"]


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("/d/a.parquet", ["/d/a.parquet"]),
        ("/d/my data,v=2.parquet", ["/d/my data,v=2.parquet"]),
        ("'/d/[a].parquet'", ["/d/[a].parquet"]),
        ("[/d/a b.parquet, '/d/c,d.parquet']", ["/d/a b.parquet", "/d/c,d.parquet"]),
        ("[]", []),
        ("null", []),
        ("[01,1e3]", ["01", "1e3"]),
    ],
)
def test_file_lists(text, files):
    assert from_text(text, FILES) == files


@pytest.mark.parametrize(
    ("text", "value"), [("1", "1"), ("1e-6", "1e-6"), ("True", "True"), ("'a=b'", "a=b"), ('""', ""), ("[x", "[x")]
)
def test_a_text_setting_keeps_what_was_typed(text, value):
    assert from_text(text, str) == value


def test_null_is_none_for_text_too():
    assert from_text("null", str | None) is None
    assert from_text("'null'", str | None) == "null"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1}", {"a": 1}),
        ("{a:1,b:[x,'2'],c:{d: null}}", {"a": 1, "b": ["x", "2"], "c": {"d": None}}),
        ("{'k v'=1e-6}", {"k v": 1e-6}),
        ("{}", {}),
    ],
)
def test_dicts(text, value):
    assert from_text(text, dict[str, Any]) == value


def test_quotes_may_hold_quotes():
    assert from_text(r"['it\'s']", FILES) == ["it's"]


@pytest.mark.parametrize("text", ["[a", "[a]b", "['a", "{a}", "{a: 1", "[a b: ,"])
def test_what_does_not_close_is_refused(text):
    with pytest.raises(Unreadable):
        from_text(text, dict[str, Any] if text.startswith("{") else FILES)


def test_numbers_by_type():
    assert from_text("1e3", int) == 1000
    assert type(from_text("1e3", int)) is int
    assert from_text("1024.5", int) == 1024.5  # left for the tree to refuse
    assert from_text("'2'", int) == 2
    assert from_text("[0.9,0.95]", tuple[float, float]) == (0.9, 0.95)


def test_values_of_a_file_fit_as_well():
    assert fit(1, str) == "1"
    assert fit("a.parquet", FILES) == ["a.parquet"]
    assert fit("1e-6", float) == 1e-6
    assert fit({"a": {"b": "x"}}, dict[str, Any]) == {"a": {"b": "x"}}
