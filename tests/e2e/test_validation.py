"""A validation answers every row of every file, as often as asked, and the printed numbers are those of the samples."""

import json
from collections import Counter
from statistics import fmean

import pyarrow.parquet as pq

from e2e.runs import validation_rows


def more_rows(path, count):
    """A second validation file, of a data source of its own; its count divides by nothing else here."""
    row = {
        "data_source": "test/second",
        "prompt": [{"role": "user", "content": "ab"}],
        "reward_model": {"style": "rule", "ground_truth": "ba"},
    }
    path.write_text((json.dumps(row) + "\n") * count)
    return path


def test_val_only_counts_every_row_of_all_files_n_times_and_trains_nothing(task, train, tmp_path):
    second = more_rows(tmp_path / "second.jsonl", 7)
    run = train(
        f"data.val_files=[{task.val},{second}]",
        "actor_rollout_ref.rollout.val_kwargs.n=3",
        "actor_rollout_ref.rollout.max_num_seqs=5",
        "trainer.val_only=True",
    )
    assert run.code == 0, run.text
    assert validation_rows(run.text) == [87]
    assert "rows 80" in run.text
    assert "rows 7" in run.text
    assert "training:" not in run.text
    assert list(run.folder.glob("global_step_*")) == []

    samples = pq.read_table(run.folder / "validation" / "step_0.parquet").to_pylist()
    assert Counter(sample["index"] for sample in samples) == dict.fromkeys(range(87), 3)
    assert Counter(sample["data_source"] for sample in samples) == {"test/reversal": 240, "test/second": 21}
    assert len({sample["response"] for sample in samples if sample["data_source"] == "test/second"}) > 1
    (row,) = run.log
    for source, rows in (("test/reversal", 80), ("test/second", 7)):
        own = [sample for sample in samples if sample["data_source"] == source]
        right = fmean(sample["response"] == sample["prompt"][::-1] for sample in own)
        assert row[f"val-core/{source}/acc/mean@3"] == right
        assert row[f"val-core/{source}/reward/mean@3"] == right
        assert row[f"val-aux/{source}/rows"] == rows
        assert row[f"val-aux/{source}/truncated/mean@3"] == fmean(s["finish_reason"] == "length" for s in own)


def test_greedy_validation_on_two_ranks_counts_every_row_and_is_the_same_twice(train):
    """79 sequences do not divide by two ranks: nothing is lost or counted twice, and greedy answers need no seed."""
    run = train(
        "actor_rollout_ref.rollout.val_kwargs.do_sample=False",
        "data.val_max_samples=79",
        "trainer.val_only=True",
        "trainer.n_gpus_per_node=2",
    )
    assert run.code == 0, run.text
    again = train(
        "actor_rollout_ref.rollout.val_kwargs.do_sample=False",
        "data.val_max_samples=79",
        "trainer.val_only=True",
        "trainer.seed=2",
        name="again",
    )
    assert validation_rows(run.text) == validation_rows(again.text) == [79]
    one, two = (pq.read_table(outcome.folder / "validation" / "step_0.parquet").to_pylist() for outcome in (run, again))
    assert [sample["response"] for sample in one] == [sample["response"] for sample in two]
