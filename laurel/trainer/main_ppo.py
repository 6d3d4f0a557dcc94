"""``python3 -m laurel.trainer.main_ppo KEY=VALUE...``, which is the same as ``laurel train``.

Nothing heavy is imported, started or held before every check has passed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from laurel.config.load import Reading, read
from laurel.config.usage import help_text, list_keys
from laurel.preflight.check import check_all, check_fetched
from laurel.tracking.console import stamped
from laurel.trainer.misfit import check as check_memory
from laurel.trainer.plan import describe
from laurel.types import ConfigError, LaurelError, Problem

COMMAND = "python3 -m laurel.trainer.main_ppo"
OK, FAILED, WRONG_SETTINGS, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Options:
    """The words of a command line that are no settings."""

    settings: tuple[str, ...]
    dry_run: bool = False
    help: bool = False
    keys: bool = False


def parse(argv: Sequence[str]) -> Options:
    """Options apart from settings, in any order. ``--config FILE`` stays among the settings."""
    flags = {"--dry-run": "dry_run", "--help": "help", "-h": "help", "--keys": "keys"}
    chosen = {flags[word]: True for word in argv if word in flags}
    return Options(tuple(word for word in argv if word not in flags), **chosen)


def main(argv: Sequence[str] | None = None, *, command: str = COMMAND) -> int:
    """Exit code: 0 done, 1 failed while running, 2 wrong settings (nothing was started), 75 ended early as asked, with
    everything saved, 130 interrupted at once."""
    words = sys.argv[1:] if argv is None else argv
    options = parse(words)
    if options.help or not words:
        print(help_text(command))
        return OK if options.help else WRONG_SETTINGS
    if options.keys:
        print(list_keys(options.settings[0] if options.settings else ""))
        return OK
    try:
        return _train(read(options.settings), dry_run=options.dry_run)
    except ConfigError as error:
        return _say(error, WRONG_SETTINGS)
    except LaurelError as error:
        return _say(error, FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)


def _train(reading: Reading, *, dry_run: bool) -> int:
    """Check, then show the plan or run it. Raises ConfigError with every problem there is, of settings and of rooms."""
    loaded = reading.loaded
    for note in loaded.notes:
        print(f"note: {note}")
    found = [*check_all(loaded.config), *check_memory(loaded.config)]
    later = [problem for problem in found if not _follows(problem, reading.suspects)]
    problems = [*reading.problems, *later]
    if dry_run:
        for problem in problems:
            if problem.machine:
                print(f"warning: on this machine, {problem}")
        problems = [problem for problem in problems if not problem.machine]
    sys.stdout.flush()
    if problems:
        raise ConfigError(problems)
    if dry_run:
        print(describe(loaded))
        return OK
    problems = check_fetched(loaded.config, say=_tell)
    if problems:
        raise ConfigError(problems)
    from laurel.trainer.train import run

    return run(loaded)


def _follows(problem: Problem, suspects: frozenset[str]) -> bool:
    """Whether a problem is only what a mistyped or refused key leads to."""
    return problem.field in suspects


def _tell(line: str) -> None:
    """A line of a run that has not begun yet, as trainer/report.py will write them."""
    print(line if sys.stdout.isatty() else stamped(line), flush=True)


def _say(message: object, code: int) -> int:
    sys.stdout.flush()
    print(f"error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
