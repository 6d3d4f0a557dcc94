import pytest

from laurel.tracking.samples import Sample
from laurel.trainer.report import validation_line
from laurel.trainer.validate import require_every_row, validation_metrics
from laurel.types import Group, LaurelError, Prompt, Trajectory


def sample(index: int, score: float, finish: str = "stop", source: str = "a/sums", **extras: float) -> Sample:
    return Sample(index, 0, source, "1+1=", "2", "2", score, finish, extras)


def test_means_over_all_samples_of_a_source():
    samples = [
        sample(0, 1.0, acc=1.0, format=1.0),
        sample(1, 0.1, acc=0.0, format=1.0),
        sample(2, 0.0, finish="length", acc=0.0, format=0.0),
        sample(3, 0.0, acc=0.0, format=0.0),
        sample(4, 2.0, source="b"),
    ]
    assert validation_metrics(samples, 1) == {
        "val-core/a/sums/reward/mean@1": pytest.approx(1.1 / 4),
        "val-core/a/sums/acc/mean@1": 0.25,
        "val-aux/a/sums/format/mean@1": 0.5,
        "val-aux/a/sums/acc_given_format/mean@1": 0.5,
        "val-aux/a/sums/truncated/mean@1": 0.25,
        "val-aux/a/sums/rows": 4,
        "val-core/b/reward/mean@1": 2.0,
        "val-aux/b/truncated/mean@1": 0.0,
        "val-aux/b/rows": 1,
    }


def test_strict_flexible_and_truncation_stand_together():
    samples = [sample(0, 1.0, strict=0.0, flexible=1.0), sample(1, 0.0, "length", strict=0.0, flexible=0.0)]
    line = validation_line(3, samples, validation_metrics(samples, 1))
    assert line == (
        "validation at step 3: 2 rows | a/sums: reward/mean@1 0.5, strict/mean@1 0, flexible/mean@1 0.5, "
        "truncated/mean@1 0.5, rows 2"
    )


def prompts(count: int) -> list[Prompt]:
    return [Prompt(index, (5,), (), "a", "1") for index in range(count)]


def groups(rows: list[Prompt], n: int) -> list[Group]:
    return [Group(p, tuple(Trajectory(i, (), "stop", 0) for i in range(n))) for p in rows]


def test_a_lost_row_and_a_lost_sample_are_errors():
    rows = prompts(3)
    require_every_row(rows, groups(rows, 2), 2)
    with pytest.raises(LaurelError, match=r"answered 2 of 3 rows .* incomplete rows: \[2\]"):
        require_every_row(rows, groups(rows[:2], 2), 2)
    with pytest.raises(LaurelError, match=r"incomplete rows: \[0, 1, 2\]"):
        require_every_row(rows, groups(rows, 1), 2)
