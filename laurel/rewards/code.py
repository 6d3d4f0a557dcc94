"""Code: the response's Python is run against tests in the sandbox; the score is the share of tests that it passes.

``ground_truth`` is a dict, or its JSON, in one of the forms that users of verl have:

- ``{"inputs": [...], "outputs": [...]}``: what a program reads on stdin, and what it must print;
- the same with ``"fn_name"``: arguments of a function (or of a method of ``class Solution``), and what it must return;
- ``{"assert_case": ["assert f(1) == 2", ...]}``: statements that must not raise. A list of them, or a plain text of
  Python, is the same.

What a program printed or returned is compared out here, where the program has no hand in it. An assertion runs beside
the solution, which could fake it if it looked for how; leaving early (``sys.exit(0)``) is not passing.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from laurel.tools.sandbox.outcome import Limits, Outcome
from laurel.tools.sandbox.run import run_python

FENCE = "```"
LANGUAGES = ("python", "python3", "py")
FIRST = 10  # tests that are always run: many problems have hundreds
MOST_TIMEOUTS = 3  # after which no further test is run
TOLERANCE = 1e-6  # of decimals, relative or absolute

# Runs beside the solution. Output of the solution's own goes to stderr, so that the last line is the harness's.
HARNESS = """\
import json, os, sys, types
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
given = json.loads(sys.stdin.readline())
sys.setrecursionlimit(100_000)
solution = sys.modules["solution"] = types.ModuleType("solution")
exec(compile(given["solution"], "solution.py", "exec"), solution.__dict__)
if given["test"] is None:
    name, owner = given["name"], solution
    if not hasattr(owner, name) and hasattr(owner, "Solution"):
        owner = owner.Solution()
    said = getattr(owner, name)(*given["arguments"])
else:
    exec(compile(given["test"], "test.py", "exec"), solution.__dict__)
    said = None
answer.write(given["mark"] + json.dumps(said, default=lambda value: list(value)))
answer.flush()
"""


@dataclass(frozen=True)
class Test:
    """``program`` and its ``stdin`` are run, and ``passed`` judges the outcome."""

    program: str
    stdin: str
    passed: Callable[[Outcome], bool]


def compute_score(
    *,
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any],
    continuous: bool = True,
    time_limit: float = 5.0,
    memory_mb: int = 1024,
) -> dict[str, float]:
    """The share of tests that the last block of Python passes; with ``continuous=False`` 1 if it is all, else 0.

    The share is that of the first ten tests, or of all if it passes those ten. ``time_limit`` is in seconds per test,
    ``memory_mb`` in MiB; after three tests at the time limit, or a syntax error, the others count as failed without
    being run. Extras: acc (1 if every test passes), format (1 if there is a fenced block; otherwise all of the response
    is taken as code). Raises ValueError for a ground truth of another form, SandboxError if nothing can be run.
    """
    code, fenced = extract_code(solution_str)
    tests = tests_of(ground_truth, code)
    limits = Limits(time_s=time_limit, memory_mib=memory_mb)
    results: list[bool] = []
    for passed in _results(tests, limits):
        results.append(passed)
        if len(results) >= FIRST and not all(results[:FIRST]):
            break
        if not passed and not continuous:
            break
    counted = len(tests) if all(results[:FIRST]) else min(len(tests), FIRST)
    every = len(results) == len(tests) and all(results)
    share = sum(results[:counted]) / counted
    return {"score": share if continuous else float(every), "acc": float(every), "format": float(fenced)}


def extract_code(text: str) -> tuple[str, bool]:
    """The last fenced block of Python after any thinking, or else the last block; and whether there is a block.

    Without any, all of the text. A block that the response's end cuts off counts too.
    """
    answer = text.rpartition("</think>")[2]
    blocks = list(_blocks(answer))
    python = [code for language, code in blocks if language in LANGUAGES]
    if python or blocks:
        return (python or [code for _, code in blocks])[-1], True
    return answer, False


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and contents of each fenced block; the time it takes is proportional to the length, whatever the text
    is."""
    language, lines = None, list[str]()
    for line in text.splitlines(keepends=True):
        fence = line.lstrip(" \t")
        if not fence.startswith(FENCE):
            lines.append(line)
        elif language is None:
            language, lines = fence.removeprefix(FENCE).strip().lower(), []
        else:
            yield language, "".join(lines)
            language = None
    if language is not None:
        yield language, "".join(lines)


def tests_of(ground_truth: Any, code: str) -> list[Test]:
    """The tests of ``code``. Raises ValueError with what is wrong with the ground truth."""
    truth = _parsed(ground_truth)
    if isinstance(truth, str):
        truth = [truth]
    if isinstance(truth, Sequence):
        truth = {"assert_case": truth}
    if not isinstance(truth, Mapping):
        raise ValueError(f"ground_truth of type {type(truth).__name__} holds no tests; {FORMS}")
    if truth.get("assert_case"):
        tests = [_assertion(code, str(case)) for case in truth["assert_case"]]
    else:
        inputs, outputs = truth.get("inputs"), truth.get("outputs")
        if inputs is None or outputs is None or len(inputs) != len(outputs):
            raise ValueError(f"ground_truth with the keys {sorted(truth)} holds no pairs of input and output; {FORMS}")
        pairs = zip(inputs, outputs, strict=True)
        name = truth.get("fn_name")
        tests = [_call(code, name, *pair) if name else _program(code, *pair) for pair in pairs]
    if not tests:
        raise ValueError(f"ground_truth holds no tests; {FORMS}")
    return tests


FORMS = "give inputs and outputs of the same length (and fn_name for a function), or assert_case"


def _parsed(ground_truth: Any) -> Any:
    """JSON where it is JSON; other text is Python. Arrays of a parquet file become lists."""
    if hasattr(ground_truth, "tolist"):
        return ground_truth.tolist()
    if not isinstance(ground_truth, str):
        return ground_truth
    try:
        return json.loads(ground_truth)
    except json.JSONDecodeError:
        if not ground_truth.strip() or ground_truth.lstrip().startswith(("{", "[")):
            raise ValueError(f"ground_truth={ground_truth[:80]!r} is no JSON; {FORMS}") from None
        return ground_truth


def _results(tests: Sequence[Test], limits: Limits) -> Iterator[bool]:
    """Whether each test passes, as long as running them is of use."""
    timeouts = 0
    for test in tests:
        outcome = run_python(test.program, stdin=test.stdin, limits=limits)
        timeouts += outcome.ending == "time"
        yield test.passed(outcome)
        if timeouts >= MOST_TIMEOUTS or outcome.reason.startswith(("SyntaxError", "IndentationError", "TabError")):
            return


def _program(code: str, stdin: Any, expected: Any) -> Test:
    wanted = _lines(expected)
    return Test(code, _lines(stdin), lambda outcome: outcome.ok and same_output(outcome.stdout, wanted))


def _lines(text: Any) -> str:
    """Some data sets have a list of lines."""
    if isinstance(text, str):
        return text
    return "\n".join(map(str, text)) if isinstance(text, Sequence) else str(text)


def _call(code: str, name: str, arguments: Any, expected: Any) -> Test:
    """As in APPS and TACO: text is JSON, one argument a line; a result may stand in a list of its own."""
    if isinstance(arguments, str):
        arguments = [_json_or_text(line) for line in arguments.splitlines() if line.strip()]
    if isinstance(expected, str):
        expected = _json_or_text(expected)
    return _harnessed(
        code,
        {"name": name, "arguments": list(arguments), "test": None},
        lambda found: (
            same_value(found, expected)
            or (isinstance(expected, list) and len(expected) == 1 and same_value(found, expected[0]))
        ),
    )


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _assertion(code: str, test: str) -> Test:
    return _harnessed(code, {"test": test}, lambda found: found is None)


def _harnessed(code: str, given: Mapping[str, Any], right: Callable[[Any], bool]) -> Test:
    mark = secrets.token_hex(8)

    def passed(outcome: Outcome) -> bool:
        if not outcome.ok or not outcome.stdout.startswith(mark):
            return False
        try:
            return right(json.loads(outcome.stdout.removeprefix(mark)))
        except ValueError:
            return False

    return Test(HARNESS, json.dumps({**given, "solution": code, "mark": mark}) + "\n", passed)


def same_output(said: str, wanted: str) -> bool:
    """Equal word for word: spaces and line ends do not count, decimals may differ by TOLERANCE."""
    ours, theirs = said.split(), wanted.split()
    return len(ours) == len(theirs) and all(map(_same_word, ours, theirs))


def _same_word(one: str, other: str) -> bool:
    if one == other:
        return True
    if not any(mark in one + other for mark in ".eE"):
        return False  # whole numbers and names must be the same
    try:
        return _close(float(one), float(other))
    except ValueError:
        return False


def same_value(one: Any, other: Any) -> bool:
    """Equal as JSON, decimals up to TOLERANCE; True is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) or isinstance(other, float):
        return isinstance(one, (int, float)) and isinstance(other, (int, float)) and _close(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    return bool(one == other)


def _close(one: float, other: float) -> bool:
    try:
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:  # a whole number beyond every float
        return one == other
