"""Progress for people: bars on a terminal; elsewhere plain lines with the time, at most one per ten seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from laurel.tracking.samples import Sample


def stamped(line: str) -> str:
    """``line`` after the local date and time, for output that is no terminal."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}"


class Phase:
    """One stretch of work that someone waits for. Thread-safe."""

    def __init__(self, name: str, total: int | None, unit: str):
        self.name, self.total, self.unit = name, total, unit
        self.done = 0
        self.waiting_for = ""
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def advance(self, count: int = 1, *, waiting_for: str | None = None) -> None:
        """``count`` more units are done; ``waiting_for`` names what is still out (a node, a rank, samples)."""
        with self._lock:
            self.done += count
            if waiting_for is not None:
                self.waiting_for = waiting_for

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def line(self) -> str:
        """Example: ``gen: 96/256 trajectories after 31 s, waiting for replica 1``."""
        counted = f"{self.done}/{self.total}" if self.total is not None else f"{self.done}"
        tail = f", waiting for {self.waiting_for}" if self.waiting_for else ""
        return f"{self.name}: {counted} {self.unit} after {self.seconds:.0f} s{tail}"


class Progress:
    """Shows the phases of a step.

    Example::

        with progress.phase("gen", total=256, unit="trajectories") as phase:
            phase.advance(waiting_for="replica 1")

    On a terminal the bar vanishes when the phase ends. Elsewhere a line comes only every ``interval`` seconds, also
    when nothing advances, so a long wait always says what it waits for and a short phase prints nothing.
    """

    def __init__(self, stream: TextIO | None = None, *, interval: float = 10.0):
        self._stream = stream or sys.stdout
        self._interval = interval

    @contextmanager
    def phase(self, name: str, *, total: int | None = None, unit: str = "") -> Iterator[Phase]:
        phase = Phase(name, total, unit)
        stop = threading.Event()
        show = self._bar if self._stream.isatty() else self._lines
        thread = threading.Thread(target=show, args=(phase, stop), name=f"progress-{name}", daemon=True)
        thread.start()
        try:
            yield phase
        finally:
            stop.set()
            thread.join()

    def _lines(self, phase: Phase, stop: threading.Event) -> None:
        while not stop.wait(self._interval):
            print(stamped(phase.line()), file=self._stream, flush=True)

    def _bar(self, phase: Phase, stop: threading.Event) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[waiting]}", style="dim"),
        )
        with Bars(*columns, console=Console(file=self._stream), transient=True) as bars:
            task: TaskID = bars.add_task(phase.name, total=phase.total, unit=phase.unit, waiting="")
            while not stop.wait(0.1):
                waiting = f"waiting for {phase.waiting_for}" if phase.waiting_for else ""
                bars.update(task, completed=phase.done, waiting=waiting)


def before_after(before: Sequence[Sample], after: Sequence[Sample], *, limit: int = 8) -> Table:
    """The same validation questions with the answers before and after training; right answers are green.

    Rows are matched by (index, sample); first those whose score changed, then the others, in file order.
    """
    old = {(sample.index, sample.sample): sample for sample in before}
    pairs = [(old[key], new) for new in after if (key := (new.index, new.sample)) in old]
    pairs.sort(key=lambda pair: (pair[0].score == pair[1].score, pair[1].index, pair[1].sample))
    table = Table(title="The same questions before and after training", show_lines=True)
    for title in ("question", "ground truth", "before", "after"):
        table.add_column(title, overflow="fold")
    for first, second in pairs[:limit]:
        # Text, not str: an answer that contains [brackets] must not be read as markup.
        table.add_row(
            Text(_tail(first.question or first.prompt)), Text(first.ground_truth), _answer(first), _answer(second)
        )
    return table


def print_before_after(
    before: Sequence[Sample], after: Sequence[Sample], *, limit: int = 8, stream: TextIO | None = None
) -> None:
    stream = stream or sys.stdout
    Console(file=stream, width=None if stream.isatty() else 120).print(before_after(before, after, limit=limit))


def _answer(sample: Sample) -> Text:
    # A format bonus is no right answer, so accuracy counts where the reward function reports it
    right = sample.extras.get("acc", sample.score) > 0
    mark = "✓" if right else "✗"
    return Text(f"{mark} {_tail(sample.response)}", style="green" if right else "red")


def _tail(text: str, limit: int = 240) -> str:
    """The end of a long text: a few-shot prompt ends with its question, a response with its answer."""
    text = text.strip()
    return text if len(text) <= limit else "…" + text[-limit:]
