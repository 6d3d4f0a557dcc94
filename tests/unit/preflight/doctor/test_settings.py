"""What the settings name is tried with a small model and real files."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laurel.config.load import load
from laurel.models.tiny import write_tiny_model
from laurel.models.tokenizer import load_tokenizer
from laurel.preflight.doctor.settings import Named, of_problems, parameters_of, paths_of, try_all
from laurel.preflight.doctor.template import examine
from laurel.types import Problem, Prompt

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", hidden=32, layers=2)


@pytest.fixture
def settings(model, tmp_path):
    def make(*overrides, truth="3", length=32, rows=5):
        file = tmp_path / "train.parquet"
        messages = [{"role": "user", "content": "1+2="}]
        row = {"data_source": "laurel/arithmetic", "prompt": messages, "reward_model": {"ground_truth": truth}}
        pq.write_table(pa.Table.from_pylist([row] * rows), file)
        words = [f"data.train_files={file}", f"data.max_prompt_length={length}", "data.train_batch_size=4"]
        words += [f"actor_rollout_ref.model.path={model}", "trainer.device=cpu", *overrides]
        return load(words).config

    return make


def topics(tried):
    return [(one.topic, one.severity) for one in tried.findings]


def test_all_is_well(settings, tmp_path):
    tried = try_all(settings())
    assert topics(tried) == []
    (fact,) = tried.facts
    assert fact.startswith("data.train_files: 5 rows, 5 used; of the first 5 the longest prompt has")
    assert [file.name for file in tmp_path.iterdir()] == ["train.parquet"], "nothing is written"


def test_a_prompt_that_is_too_long_and_a_truth_that_is_none(settings):
    tried = try_all(settings(length=2))
    assert topics(tried) == [("data", "error")]
    assert "longer than data.max_prompt_length=2" in tried.findings[0].what
    tried = try_all(settings(truth="three"))
    assert topics(tried) == [("reward", "error")]
    assert "'three' is no whole number" in tried.findings[0].what


def test_what_a_check_found_wrong_is_not_tried(settings):
    config = settings(length=2, truth="three")
    assert topics(try_all(config, {"data.train_files"})) == []
    assert topics(try_all(config, {"actor_rollout_ref.model.path"})) == []
    assert topics(try_all(settings(truth="three"), {"reward.reward_kwargs.score"})) == []


def test_a_chat_without_a_template(settings):
    config = settings()
    model, tokenizer = config.actor_rollout_ref.model, load_tokenizer(config.actor_rollout_ref.model)
    tokenizer.chat_template = None
    chat = ({"role": "system", "content": "add"}, {"role": "user", "content": "1+2="})
    asked, alone = (Prompt(0, (1,), messages, "laurel/arithmetic", "3") for messages in (chat, chat[1:]))
    assert examine(tokenizer, model, [alone], {}) == []
    (found,) = examine(tokenizer, model, [alone, asked], {})
    assert (found.topic, found.severity) == ("tokenizer", "warning")
    assert "no chat template" in found.what


def test_a_template_that_ends_turns_by_a_token_that_does_not_end_sampling(settings, tmp_path):
    template = json.dumps(CHATML)
    tried = try_all(settings(f"actor_rollout_ref.model.custom_chat_template={template}", length=200))
    assert topics(tried) == [("tokenizer", "warning")]
    assert "sampling ends at" in tried.findings[0].what
    assert "generation_config.json" in tried.findings[0].cure


def test_a_template_whose_turns_end(settings, model):
    eos = json.loads((model / "tokenizer_config.json").read_text())["eos_token"]
    template = json.dumps(CHATML.replace("<|im_end|>", eos))
    assert topics(try_all(settings(f"actor_rollout_ref.model.custom_chat_template={template}", length=200))) == []


def test_more_tokens_than_embeddings(settings):
    tried = try_all(settings("actor_rollout_ref.model.override_config.vocab_size=3"))
    assert topics(tried) == [("tokenizer", "error")]
    assert "but the model 3 embeddings" in tried.findings[0].what


def test_what_a_run_reads(settings, model, tmp_path):
    config = settings()
    assert paths_of(config) == [
        Named("model", "actor_rollout_ref.model.path", str(model), True),
        Named("data", "data.train_files", str(tmp_path / "train.parquet"), False),
    ]
    actor, critic = parameters_of(config)  # PPO has a critic of the same shape
    assert actor == critic > 1000


def test_problems_of_the_settings_are_errors():
    (found,) = of_problems([Problem("trainer.nnodes", 0, "must be at least 1")])
    assert (found.severity, found.what, found.cure) == ("error", "trainer.nnodes=0", "must be at least 1")
