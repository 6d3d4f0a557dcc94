from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from laurel.tracking.console import Phase, Progress, before_after, print_before_after


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_line_says_how_far_and_what_is_awaited() -> None:
    phase = Phase("gen", 256, "trajectories")
    phase.advance(96, waiting_for="replica 1")
    assert phase.line() == "gen: 96/256 trajectories after 0 s, waiting for replica 1"
    assert Phase("join", None, "nodes").line() == "join: 0 nodes after 0 s"


def test_a_short_phase_prints_nothing_without_a_terminal() -> None:
    stream = io.StringIO()
    with Progress(stream).phase("gen", total=2) as phase:
        phase.advance(2)
    assert stream.getvalue() == ""


def test_a_long_wait_prints_stamped_lines_even_if_nothing_advances() -> None:
    stream = io.StringIO()
    with Progress(stream, interval=0.05).phase("gen", total=2, unit="trajectories") as phase:
        phase.advance(1, waiting_for="node 2")
        time.sleep(0.3)
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 2
    for line in lines:
        assert re.fullmatch(
            r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d gen: 1/2 trajectories after \d s, waiting for node 2", line
        )


def test_a_terminal_gets_a_bar() -> None:
    stream = Terminal()
    with Progress(stream).phase("gen", total=4, unit="trajectories") as phase:
        phase.advance(3, waiting_for="rank 0")
        time.sleep(0.4)
    assert "3/4" in stream.getvalue()
    assert "waiting for rank 0" in stream.getvalue()


def test_an_error_in_a_phase_passes_and_ends_it() -> None:
    with pytest.raises(KeyError), Progress(io.StringIO(), interval=0.01).phase("gen"):
        raise KeyError


def test_before_after_shows_the_same_questions_changed_ones_first(sample) -> None:
    before = [sample(i, response=f"old{i}", score=float(i == 0)) for i in range(4)]
    after = [sample(i, response=f"new{i}", score=float(i != 1)) for i in (3, 2, 1, 0)]
    table = before_after(before, [*after, sample(9)], limit=3)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    assert cells == [
        ["2+1=", "3+1=", "0+1="],
        ["3", "4", "1"],
        ["✗ old2", "✗ old3", "✓ old0"],
        ["✓ new2", "✓ new3", "✓ new0"],
    ]


def test_before_after_reads_no_markup_and_keeps_the_end_of_long_prompts(sample) -> None:
    stream = io.StringIO()
    prompt = "x" * 500 + "[bold]2+2=[/bold]"
    print_before_after([sample(prompt=prompt)], [sample(prompt=prompt, response="[red]")], stream=stream)
    assert "[bold]2+2=[/bold]" in stream.getvalue()
    assert "✓ [red]" in stream.getvalue()
    assert "x" * 300 not in "".join(stream.getvalue().split())


def test_right_answers_are_green(sample) -> None:
    stream = Terminal()
    table = before_after([sample(score=0.0)], [sample()])
    Console(file=stream, force_terminal=True, color_system="standard").print(table)
    assert "\x1b[31m✗ 1" in stream.getvalue()
    assert "\x1b[32m✓ 1" in stream.getvalue()
