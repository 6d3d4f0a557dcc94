"""docs/algorithms.md has a line for every name that users may type, and for every key of an algorithm."""

import re
from pathlib import Path
from typing import get_args

import pytest

from laurel.config.correction import RolloutCorrection
from laurel.config.estimators import AdvEstimator
from laurel.config.keys import leaves
from laurel.config.losses import LossAggMode, LossMode
from laurel.config.tree import FilterMetric, KlEstimator, KlLossType, RewardManager
from laurel.rewards.overlong import OverlongBuffer

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
SPANS = set(re.findall(r"`([^`\n]+)`", PAGE))
PAPER = re.compile(r"\]\(https://arxiv\.org/abs/\d{4}\.\d{5}\)")


def choices(section, field):
    """The names that a field with a Literal, perhaps with null, takes."""
    annotation = section.model_fields[field].annotation
    kinds = get_args(annotation)
    return [name for kind in kinds for name in (get_args(kind) or [kind]) if isinstance(name, str)]


def row_of(name):
    """The line of a table that begins with ``name``."""
    found = [line for line in PAGE.splitlines() if re.match(rf"\| `{re.escape(name)}`[ (|]", line)]
    assert found, f"docs/algorithms.md has no line for {name}"
    return found


@pytest.mark.parametrize("name", [*get_args(AdvEstimator), *get_args(LossMode)])
def test_estimators_and_losses_have_a_formula_a_paper_and_a_reason(name):
    rows = row_of(name)
    assert len(rows) == (2 if name == "gpg" else 1)  # the one name that both have
    for row in rows:
        _, _, formula, paper, reason, _ = row.split("|")
        assert "`" in formula
        assert PAPER.search(paper)
        assert len(reason.strip()) > 4


@pytest.mark.parametrize("name", get_args(LossAggMode))
def test_aggregations_have_a_line(name):
    assert len(row_of(name)) == 1


@pytest.mark.parametrize(
    "name",
    [
        *dict.fromkeys([*get_args(KlEstimator), *get_args(KlLossType)]),
        *get_args(FilterMetric),
        *choices(RewardManager, "name"),
        *(f"rollout_is={level}" for level in choices(RolloutCorrection, "rollout_is")),
        *(f"rollout_rs={level}" for level in choices(RolloutCorrection, "rollout_rs")),
        *(f"reward.reward_kwargs.overlong_buffer_cfg.{name}" for name in OverlongBuffer.model_fields),
    ],
)
def test_every_other_name_is_there(name):
    assert name in SPANS


def keys_of_algorithms():
    ends = ("clip_ratio", "tau_", "loss_", "policy_loss.", "kl_loss_", "use_kl_loss", "entropy_coeff")
    return [
        path
        for path in leaves()
        if path.startswith("algorithm.")
        or path.removeprefix("actor_rollout_ref.actor.").startswith(ends)
        or path == "data.gen_batch_size"
    ]


@pytest.mark.parametrize("path", keys_of_algorithms())
def test_every_key_of_an_algorithm_is_there(path):
    """In full, or as the last parts of it."""
    words = {span.partition("=")[0] for span in SPANS}
    parts = path.split(".")
    assert any(".".join(parts[start:]) in words for start in range(len(parts))), path


def test_every_preset_has_a_line():
    files = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "examples" / "algorithms").glob("*.yaml"))
    assert len(files) == 9
    assert [file for file in files if len(row_of(file)) != 1] == []
