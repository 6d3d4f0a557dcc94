"""Slurm: sbatch, scontrol, scancel; the log lies in a file of the folder that the job was submitted from."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from laurel.launch.platforms.command import ask, find
from laurel.launch.records import Record
from laurel.launch.spec import Job, SlurmOptions
from laurel.types import LaurelError

_CURE = "run this on a login node of the Slurm cluster"
ENDED = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
)


def submit(job: Job, options: SlurmOptions, text: str, file: Path) -> tuple[str, dict[str, str]]:
    """The job's number, and where its log will be. Secrets travel in the environment, which sbatch keeps."""
    sbatch = find("sbatch", _CURE)
    file.write_text(text)
    number = ask([sbatch, "--parsable", str(file)]).split()[-1].partition(";")[0]
    return number, {"log": str(Path.cwd() / f"{job.name}-{number}.log")}


def state(record: Record) -> str:
    """Slurm's word, and why it waits."""
    fields = _fields(record)
    word, reason = fields.get("JobState", "gone"), fields.get("Reason", "None")
    nodes = fields.get("NodeList", "(null)")
    more = f", {reason}" if reason != "None" else ""
    return f"{word}{more}" + (f" on {nodes}" if nodes not in ("(null)", "") else "")


def logs(record: Record, *, follow: bool) -> int:
    """Print the log; with ``follow`` until the job has ended, and 0 only if it ended well."""
    file, at, ended = Path(record.details["log"]), 0, False
    while True:
        over = ended or not follow
        if file.exists():
            with file.open("rb") as log:
                log.seek(at)
                new = log.read()
            at += len(new)
            sys.stdout.buffer.write(new)
            sys.stdout.flush()
        if over:
            break
        ended = _word(record) in (*ENDED, "gone")
        time.sleep(1.0)
    if not at and not follow:
        raise LaurelError(f"{record.name} has said nothing yet ({file}); it is {state(record)}")
    return 0 if not follow or _word(record) in ("COMPLETED", "gone") else 1


def stop(record: Record) -> None:
    ask([find("scancel", _CURE), record.handle])


def _word(record: Record) -> str:
    return _fields(record).get("JobState", "gone")


def _fields(record: Record) -> dict[str, str]:
    """Empty once Slurm has forgotten the job (MinJobAge after its end)."""
    try:
        line = ask([find("scontrol", _CURE), "show", "job", "-o", record.handle])
    except LaurelError as error:
        if "Invalid job id" in str(error):
            return {}
        raise
    return dict(re.findall(r"(\S+?)=(\S*)", line))
