"""The tree's own rules: every key documented, few enough, and docs/config.md fresh."""

from pathlib import Path

from laurel.config import tree
from laurel.config.docs import render
from laurel.config.keys import leaves, sections
from laurel.config.tree import Config, Section
from laurel.config.usage import help_text, list_keys

PAGE = Path(__file__).resolve().parents[3] / "docs" / "config.md"
MOST_KEYS = 150


def test_the_page_is_fresh():
    assert PAGE.read_text(encoding="utf-8") == render(), "run `make docs`"


def test_every_key_has_a_sentence():
    assert [leaf.path for leaf in leaves().values() if not leaf.sentence.endswith(".")] == []


def own_fields(section: type[Section]) -> int:
    """Settings that a group adds: not groups inside it, and not what it inherits."""
    fields = section.model_fields
    return sum(not isinstance(fields[name].default, Section) for name in section.__annotations__ if name in fields)


def test_at_most_150_keys():
    """A group that several parts share (Model, Optim, Fsdp) counts once."""
    groups = [kind for kind in vars(tree).values() if isinstance(kind, type) and issubclass(kind, Section)]
    assert sum(own_fields(group) for group in groups) <= MOST_KEYS


def test_leaves_and_sections():
    assert leaves()["critic.optim.lr"].default == 1e-5
    assert leaves()["trainer.logger"].choices == ("console", "file", "tensorboard", "wandb", "mlflow")
    assert leaves()["reward.reward_kwargs"].open
    assert not leaves()["trainer.nnodes"].open
    assert {"critic", "critic.optim", "actor_rollout_ref.rollout.val_kwargs"} <= sections()
    assert "critic.optim.lr" not in sections()


def test_the_tree_is_frozen_and_total():
    assert Config.model_config["frozen"] is True
    assert Config.model_config["extra"] == "forbid"


def test_listing_of_keys():
    assert list_keys("critic.optim.lr_warmup_steps_r") == (
        "critic.optim.lr_warmup_steps_ratio=0.0\n    Warm-up as a fraction of all optimizer updates."
    )
    assert "One of: gae, grpo, rloo, " in list_keys("adv_estimator")
    assert list_keys("nosuchkey").startswith("no key matches")
    assert list_keys().count("\n    ") == len(leaves())


def test_help_shows_the_forms():
    text = help_text("laurel train")
    for form in ("trainer.nnodes=2", "+reward", "~trainer.nnodes", "--config FILE", "--dry-run", "--keys", "null"):
        assert form in text
