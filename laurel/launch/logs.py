"""The failure that came first, out of the logs of all nodes of a run: of a running cluster, or of a dead one's folder.

A file is read for what ranks write of their failures, for other tracebacks, for processes that a signal ended, and for
what the driver said last. Everything found is ranked: a process that died, then code that raised, then errors that
follow from another rank's end, then the driver's own report of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from laurel.types import LaurelError
from laurel.workers.everywhere import join, on_each_node
from laurel.workers.failures import FAILED, THIS_IS
from laurel.workers.machine import stderr_file
from laurel.workers.raylets import current_cluster_file
from laurel.workers.waiting import is_consequence

DIED, RAISED, CONSEQUENCE, REPORT = range(4)
_FILES = ("worker-*.err", "python-core-*.log", "raylet.out", "raylet.err", "gcs_server.out", "job-driver-*.log")
_MOST_BYTES = 8 << 20  # of each file, its end
_ENDED_BY_DRIVER_S = 60.0
_START = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OF_A_WORKER = re.compile(r"^\([^()]*pid=\d+[^()]*\) ?")  # what Ray puts before lines that it repeats on the driver
_SIGNAL = re.compile(r"(?:\*\*\* (SIG\w+) received|Fatal Python error: (.*))")
_EXITS = (  # of the head for all nodes, and of the node's own raylet, which knows no more than this
    re.compile(r"worker id = (?P<worker>[0-9a-f]{56}).*exit_type = SYSTEM_ERROR, exit_detail = (?P<detail>.*)"),
    re.compile(r"Disconnecting worker, (?P<detail>graceful=false).*worker_id=(?P<worker>[0-9a-f]{56})"),
)
_STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})")
_WORKER_FILE = re.compile(r"worker-([0-9a-f]{56})(?:-[0-9a-f]+-|_)(\d+)\.(?:err|log)$")
_FOLLOWS = (
    *("ActorDied", "ActorUnavailable", "RayActorError", "NodeDied", "OwnerDied", "WorkerCrashed", "WorkerError"),
    *("SystemExit", "KeyboardInterrupt", "TaskCancelled", "RayTaskError"),
)


@dataclass(frozen=True)
class Finding:
    """One failure. ``kind`` is its place in the order of causes, ``who`` the rank and process as far as it is known,
    ``unexplained`` that a process ended and left no word of why."""

    kind: int
    text: str
    file: str
    time: float
    who: str = ""
    node: str = ""
    unexplained: bool = False

    @property
    def summary(self) -> str:
        """Its last line, which in a traceback is the exception."""
        return next((line.strip() for line in reversed(self.text.splitlines()) if line.strip()), "")


@dataclass(frozen=True)
class NodeLogs:
    """The logs of one node: where they lie and what was found, or why nothing could be read."""

    node: str
    folder: str = ""
    findings: tuple[Finding, ...] = ()
    error: str = ""


def read_cluster(address: str, only: Sequence[str] = ()) -> list[NodeLogs]:
    """From a running cluster: each node reads its own files."""
    with join(address):
        answers = on_each_node(_read_here, only=only)
    logs = []
    for answer in answers:
        folder, findings = answer.result or ("", ())
        named = tuple(replace(finding, node=str(answer)) for finding in findings)
        logs.append(NodeLogs(str(answer), folder, named, answer.error))
    return logs


def _read_here(ip: str) -> tuple[str, tuple[Finding, ...]]:
    folder = Path(stderr_file()).parent
    return str(folder), tuple(scan(folder))


def read_folder(folder: Path, only: Sequence[str] = ()) -> list[NodeLogs]:
    """Of a cluster that is gone. ``folder`` is a Ray session, its logs, Ray's temporary folder, or holds such folders,
    one for each node. LaurelError if it has no logs."""
    logs = []
    for place in log_folders(folder):
        node = f"folder {place}"
        if only and not any(name in str(place) for name in only):
            continue
        found = tuple(replace(finding, node=node) for finding in scan(place))
        logs.append(NodeLogs(node, str(place), found))
    return logs


def log_folders(folder: Path) -> list[Path]:
    """The folders of Ray logs in ``folder``."""
    if not folder.is_dir():
        raise LaurelError(f"--folder {folder}: no such folder; give a Ray session, such as /tmp/ray/session_latest")
    for below in (".", "logs", "session_latest/logs", "r/session_latest/logs"):
        if any(_files(folder / below)):
            return [(folder / below).resolve()]
    depths = ("*", "*/logs", "*/session_latest/logs", "*/r/session_latest/logs")
    found = {place.resolve() for depth in depths for place in folder.glob(depth) if any(_files(place))}
    if not found:
        raise LaurelError(
            f"--folder {folder}: no Ray logs in it (worker-*.err, raylet.out); give a Ray session's folder"
        )
    return sorted(found)


def last_session(temporary: Path = Path("/tmp")) -> Path | None:
    """The newest session of this user that left logs on this machine: of `ray start`, or of a run that failed."""
    roots = [current_cluster_file().parent, *temporary.glob("laurel-*/r")]
    places = []
    for root in roots:
        try:
            place = (root / "session_latest" / "logs").resolve(strict=True)
            if place.stat().st_uid == os.geteuid():
                places.append(place)
        except OSError:  # gone, or another user's
            continue
    return max(places, key=lambda place: place.stat().st_mtime, default=None)


def scan(folder: Path) -> list[Finding]:
    """Every failure in one folder of Ray logs, the cause first."""
    files = list(_files(folder))
    ranks = {}
    for file in files:
        if file.suffix == ".err" and (match := _WORKER_FILE.search(file.name)):
            ranks[match[1]] = (_rank(file), match[2], file)
    found: list[Finding] = []
    for file in files:
        lines = _lines(file)
        time = file.stat().st_mtime
        match = _WORKER_FILE.search(file.name)
        who = _name(*ranks[match[1]][:2]) if match and match[1] in ranks else _other(file.name)
        if file.name.startswith(("raylet", "gcs")):
            found += _exits(lines, str(file), ranks)
            continue
        found += [replace(one, file=str(file), who=one.who or who) for one in failures(lines, time)]
    return in_order(_once(found))


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The cause first: by kind, then by time.

    When a rank's code raises, the driver ends all ranks, which Ray may report as if they had been killed. So a process
    that ended without a word within a minute of that is no cause.
    """
    found = list(findings)
    raised = [finding.time for finding in found if finding.kind == RAISED]

    def place(finding: Finding) -> tuple[int, float]:
        ended_for_it = finding.unexplained and any(0 <= finding.time - time < _ENDED_BY_DRIVER_S for time in raised)
        return (CONSEQUENCE if ended_for_it else finding.kind, finding.time)

    return sorted(found, key=place)


def failures(lines: Sequence[str], time: float) -> Iterator[Finding]:
    """Failures that one file tells of. ``time`` stands for those that do not say when they were."""
    marked: re.Match[str] | None = None
    number = 0
    while number < len(lines):
        line = lines[number]
        if match := FAILED.match(line):
            marked = match
        elif match := _SIGNAL.search(line):
            yield Finding(_of_signal(match), "\n".join(lines[number : number + 40]), "", time)
            return  # the rest of the file is its dump
        elif line.startswith("error: "):
            end = next((at for at in range(number + 1, len(lines)) if not lines[at].strip()), len(lines))
            text = "\n".join(lines[number:end])
            yield Finding(REPORT if re.search(r"\brank \d+ on node", text) else RAISED, text, "", time)
            number = end
        elif line == _START:
            end = traceback_end(lines, number)
            text = "\n".join(lines[number:end])
            if marked:
                when = datetime.fromisoformat(marked["time"]).timestamp()
                who = f"rank {marked['rank']} (pid {marked['pid']}), in {marked['call']}"
                yield Finding(_kind(lines[end - 1]), text, "", when, who)
            else:
                yield Finding(_kind(lines[end - 1]), text, "", time)
            marked, number = None, end
            continue
        number += 1


def traceback_end(lines: Sequence[str], start: int) -> int:
    """The line after a traceback that begins at ``start``, with those that it is chained to."""
    number = start + 1
    while number < len(lines):
        line = lines[number]
        if line.startswith(" ") or line == _START or line.startswith(_CHAINED):
            number += 1
        elif not line:
            follows = next((text for text in lines[number : number + 3] if text), "")
            if not follows.startswith((*_CHAINED, _START)):
                return number
            number += 1
        else:  # the exception; more of it follows if it is chained, or a remote traceback is its message
            after = lines[number + 1] if number + 1 < len(lines) else ""
            chained = not after and any(text.startswith(_CHAINED) for text in lines[number + 2 : number + 3])
            if not (chained or after.startswith("  ")):
                return number + 1
            number += 1
    return number


def show(logs: Sequence[NodeLogs], *, tail: int = 0) -> str:
    """What `laurel logs` prints. ``tail``: so many last lines of the file with the cause, if it lies here."""
    lines = ["Logs:"]
    lines += [f"  {one.node}: {one.error or one.folder}" for one in logs]
    order = in_order(finding for one in logs for finding in one.findings)
    if not order:
        return "\n".join([*lines, "", "No failure was found in them."])
    first, *others = order
    lines += ["", f"Cause: {first.who or 'a process'} on {first.node}".rstrip(), f"  {first.file}", "", first.text]
    if others:
        lines += ["", f"What followed, or failed beside it ({len(others)}):"]
        lines += [f"  {one.who or Path(one.file).name} on {one.node}: {one.summary}" for one in others[:20]]
    if tail and Path(first.file).is_file():
        lines += ["", f"The last {tail} lines of {first.file}:", *_lines(Path(first.file))[-tail:]]
    return "\n".join(lines)


def _kind(exception: str) -> int:
    name = exception.split(":")[0]
    return (
        CONSEQUENCE
        if name.strip() and (any(sign in name for sign in _FOLLOWS) or is_consequence(exception))
        else RAISED
    )


def _of_signal(match: re.Match[str]) -> int:
    return CONSEQUENCE if match[1] == "SIGTERM" else DIED  # somebody asked it to end


def _exits(lines: Sequence[str], file: str, ranks: dict[str, tuple[str, str, Path]]) -> Iterator[Finding]:
    """Processes that Ray saw end without having been told to, as far as they are of this folder."""
    for line in lines:
        match = next((match for form in _EXITS if (match := form.search(line))), None)
        if match and match["worker"] in ranks:
            rank, pid, log = ranks[match["worker"]]
            stamp = _STAMP.match(line)
            time = datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S,%f").timestamp() if stamp else 0.0
            said = [
                text for text in _lines(log) if not text.startswith((":job_id:", ":actor_name:", "laurel: this is"))
            ]
            text = "\n".join([*said[-20:], f"ended unexpectedly: {match['detail'].strip()}"])
            yield Finding(DIED, text, str(log), time, _name(rank, pid), unexplained=True)


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """One finding for each process that died: raylet and head tell of the same end."""
    seen: set[str] = set()
    kept = []
    for finding in findings:
        if finding.kind != DIED or finding.who not in seen:
            kept.append(finding)
        if finding.kind == DIED:
            seen.add(finding.who)
    return kept


def _rank(file: Path) -> str:
    return next((match["rank"] for line in _lines(file) if (match := THIS_IS.match(line))), "")


def _name(rank: str, pid: str) -> str:
    return f"rank {rank} (pid {pid})" if rank else f"pid {pid}"


def _other(name: str) -> str:
    return "the driver" if name.startswith("job-driver") else ""


def _files(folder: Path) -> Iterator[Path]:
    for pattern in _FILES:
        yield from sorted(folder.glob(pattern))


def _lines(file: Path) -> list[str]:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _MOST_BYTES))
        text = stream.read().decode(errors="replace")
    return [_OF_A_WORKER.sub("", _COLOUR.sub("", line)).rstrip() for line in text.splitlines()]
