from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from laurel.config.tree import Model
from laurel.models.hub import hub_answers
from laurel.models.tiny import CHARACTERS, write_tiny_model
from laurel.models.tokenizer import load_tokenizer, render_prompt, stop_token_ids, tokenizer_key
from laurel.types import LaurelError

USER = [{"role": "user", "content": "12"}]


def ids(text):
    return [8 + CHARACTERS.index(c) for c in text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "m", hidden=16, layers=1))


@pytest.fixture
def tokenizer(folder):
    return load_tokenizer(Model(path=folder))


def test_a_chat_is_rendered_as_a_plain_list_with_the_generation_prompt(tokenizer):
    rendered = render_prompt(tokenizer, USER)
    assert type(rendered) is list
    assert rendered == [1, 5, *ids("12"), 6]


def test_a_chat_that_ends_with_the_assistant_is_continued(tokenizer):
    messages = [*USER, {"role": "assistant", "content": "So"}]
    assert render_prompt(tokenizer, messages) == [1, 5, *ids("12"), 6, *ids("So")]


def test_arguments_reach_the_template(folder):
    template = "{% if enable_thinking %}+{% endif %}{{ messages[0]['content'] }}"
    tokenizer = load_tokenizer(Model(path=folder, custom_chat_template=template))
    assert render_prompt(tokenizer, USER) == ids("12")
    assert render_prompt(tokenizer, USER, enable_thinking=True) == ids("+12")


def test_text_and_models_without_a_template_are_taken_as_they_are(tokenizer):
    assert render_prompt(tokenizer, "1+2=") == ids("1+2=")
    tokenizer.chat_template = None
    assert render_prompt(tokenizer, [{"role": "system", "content": "s"}, *USER]) == ids("s\n12")


def test_the_tokenizer_path_wins(folder, tmp_path):
    other = str(write_tiny_model(tmp_path / "other", characters="12", hidden=16, layers=1))
    assert render_prompt(load_tokenizer(Model(path=folder, tokenizer_path=other)), USER) == [1, 5, 8, 9, 6]


def test_a_path_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(LaurelError, match=r"tokenizer folder '/absent/model' does not exist"):
        load_tokenizer(Model(path="/absent/model"))
    with pytest.raises(LaurelError, match=r"model\.path=None"):
        load_tokenizer(Model())
    with pytest.raises(
        LaurelError, match=r"could not be loaded .* give a folder or a hub id that holds tokenizer.json"
    ):
        load_tokenizer(Model(path=str(tmp_path)))


def test_a_hub_id_without_a_hub_fails_within_seconds(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub_answers.cache_clear()
    start = time.monotonic()
    with pytest.raises(
        LaurelError, match=r"tokenizer 'nobody/nothing' is not in this node's cache .* check the network"
    ):
        load_tokenizer(Model(path="nobody/nothing"))
    hub_answers.cache_clear()
    assert time.monotonic() - start < 5


def holder(eos):
    return SimpleNamespace(eos_token_id=eos)


@pytest.mark.parametrize(
    ("model", "generation", "tokenizer", "stops"),
    [
        (2, 2, 2, (2,)),
        (5, [7, 3], 1, (1, 3, 5, 7)),
        (None, [4], None, (4,)),
        (0, None, None, (0,)),
        (None, None, 6, (6,)),
    ],
)
def test_stop_tokens_are_the_union(model, generation, tokenizer, stops):
    assert stop_token_ids(holder(model), holder(generation), holder(tokenizer)) == stops


def test_a_model_without_an_end_of_turn_is_an_error():
    with pytest.raises(LaurelError, match="names no end-of-turn token; set eos_token_id"):
        stop_token_ids(holder(None), None, holder(None))


def test_the_key_changes_with_all_that_changes_the_tokens(folder, tmp_path):
    other = str(write_tiny_model(tmp_path / "other", characters="12", hidden=16, layers=1))
    keys = [
        tokenizer_key(load_tokenizer(Model(path=folder))),
        tokenizer_key(load_tokenizer(Model(path=folder)), enable_thinking=True),
        tokenizer_key(load_tokenizer(Model(path=folder, custom_chat_template="{{ messages }}"))),
        tokenizer_key(load_tokenizer(Model(path=other))),
    ]
    assert len(set(keys)) == 4
    assert tokenizer_key(load_tokenizer(Model(path=folder))) == keys[0]
