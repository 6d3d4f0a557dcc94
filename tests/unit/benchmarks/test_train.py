import sys

import pytest
import torch

from benchmarks import train, train_ours, train_padded
from benchmarks.record import Records
from benchmarks.shapes import fields_of, random_module
from benchmarks.works import SMALL
from laurel.batch.pack import rank_shares
from laurel.learner.forward import shared_prompts
from laurel.learner.learner import PolicyLearner


def test_our_side_at_a_small_size(tiny, monkeypatch, rows):
    words = ["train_ours", str(tiny), "--model", "tiny", "--size", "small", "--repeats", "1", "--device", "cpu"]
    changed = ["--budgets", "product", "200", "--set", "actor_rollout_ref.actor.optim.lr=0.003"]
    monkeypatch.setattr(sys, "argv", [*words, *changed])
    train_ours.main()
    found = [row for row in rows() if row["what"] in ("update", "log_probs")]
    shown = [(row["what"], row["setting"], row["micro_batches"]) for row in found]
    assert [one[:2] for one in shown] == [
        ("update", "budget 16384"),
        ("log_probs", "budget 16384"),
        ("update", "budget 200"),
        ("log_probs", "budget 200"),
    ]
    assert shown[0][2] == 1
    assert shown[2][2] > 1
    assert all((row["tokens"], row["tokens_computed"]) == (16 * 32, 320) for row in found)
    assert found[0]["metrics"]["actor/lr"] == 0.003
    assert found[0]["metrics"]["actor/grad_norm"] > 0
    assert found[0]["mfu"] is None, "the peak of a CPU is not known"
    assert found[0]["tokens_per_s"] == pytest.approx(512 / found[0]["median_s"], rel=0.02)


def test_tokens_computed_are_those_of_shared_prompts():
    batch = train_ours.batch_of(SMALL["G"], 512)
    shared = shared_prompts(batch)
    assert shared is not None
    assert (shared.kept.numel(), int(batch.response_mask.sum())) == train_ours.computed_tokens(SMALL["G"]) == (320, 256)


def test_the_peer_at_a_small_size(monkeypatch, rows):
    words = ["train_padded", "--model", "tiny", "--size", "small", "--rows", "4", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", words)
    train_padded.main()
    found = [row for row in rows() if row["what"] == "update" and row["setting"] == "plain, 4 rows"]
    assert [(row["tokens"], row["rows_timed"]) for row in found] == [(512, 16)]


def test_both_sides_score_the_same_tokens(tiny):
    """The same weights and rows give the same log-probabilities, so both train on the same work."""
    work = SMALL["G"]
    config = train_ours.settings_of(str(tiny), work, "cpu", [])
    learner = PolicyLearner("actor", config)
    batch = train_ours.batch_of(work, 512)
    (mini,) = rank_shares(batch, 1, 10**6)
    (micro,) = mini.micro_batches
    ours = learner.log_probs([micro])[0][micro.response_mask]
    ids, mask, kept = train_padded.padded(work, 512, "cpu")
    module = random_module(fields_of("tiny"), device="cpu", dtype=torch.float32)
    module.load_state_dict(learner.module.state_dict())
    with torch.no_grad():
        theirs = train_padded.plain(module, ids, mask, kept)
    torch.testing.assert_close(ours.view(16, 16), theirs, atol=2e-4, rtol=0)


def test_the_table_gives_both_the_flops_of_the_same_work():
    records = Records(None)
    about = {"what": "update", "size": "full", "model": "0.5b", "peak_gib": 30.0}
    records.add({**about, "side": "ours", "setting": "budget 1", "tokens_per_s": 150e3, "median_s": 4.0, "mfu": 0.45})
    records.add({**about, "side": "ours", "setting": "budget 1", "tokens_per_s": 120e3, "median_s": 5.0, "mfu": 0.36})
    records.add({**about, "side": "padded", "setting": "plain, 8 rows", "tokens_per_s": 30e3, "median_s": 21.0})
    records.add({**about, "side": "padded", "setting": "fused, 8 rows", "tokens_per_s": 50e3, "median_s": 13.0})
    lines = train.summary(records, "full").splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith(("| ours", "| pad"))
    ]
    assert cells == [
        ["ours", "budget 1", "150,000", "4", "0.45", "30", "3"],
        ["padded", "plain, 8 rows", "30,000", "21", "0.09", "30", ""],
        ["padded", "fused, 8 rows", "50,000", "13", "0.15", "30", ""],
    ]
