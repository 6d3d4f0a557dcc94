from __future__ import annotations

import json
import time

import pytest

from laurel.rewards import code
from laurel.rewards.code import compute_score, extract_code, same_output, same_value
from laurel.tools.sandbox.run import run_python

DOUBLES = {"inputs": ["1\n", "2\n", "-3\n", "0\n"], "outputs": ["2\n", "4\n", "-6\n", "0\n"]}


def score(solution, truth, *, fenced=True, **kwargs):
    text = f"Here it is:\n```python\n{solution}\n```\nDone." if fenced else solution
    return compute_score(data_source="apps", solution_str=text, ground_truth=truth, extra_info={}, **kwargs)


@pytest.fixture
def runs(monkeypatch):
    """The programs that were run."""
    seen = []

    def run(program, **given):
        seen.append(program)
        return run_python(program, **given)

    monkeypatch.setattr(code, "run_python", run)
    return seen


def test_a_program_that_passes_every_test():
    assert score("print(2 * int(input()))", DOUBLES) == {"score": 1.0, "acc": 1.0, "format": 1.0}
    assert score("print(2 * int(input()))", json.dumps(DOUBLES))["score"] == 1.0


def test_partial_credit_is_the_share_of_tests_passed():
    assert score("print(abs(2 * int(input())))", DOUBLES) == {"score": 0.75, "acc": 0.0, "format": 1.0}
    assert score("print(1 / int(input()) and 4)", DOUBLES) == {"score": 0.25, "acc": 0.0, "format": 1.0}


def test_without_partial_credit_it_is_all_or_nothing(runs):
    assert score("print(abs(2 * int(input())))", DOUBLES, continuous=False)["score"] == 0.0
    assert len(runs) == 3, "the first failure decides"
    assert score("print(2 * int(input()))", DOUBLES, continuous=False)["score"] == 1.0


MANY = {"inputs": [str(i) for i in range(14)], "outputs": [str(i) for i in range(14)]}


def test_of_many_tests_the_first_ten_decide_unless_all_of_them_pass(runs):
    assert score("x = int(input()); print(x if x != 4 else 0)", MANY) == {"score": 0.9, "acc": 0.0, "format": 1.0}
    assert len(runs) == 10
    runs.clear()
    assert score("x = int(input()); print(x if x < 12 else 0)", MANY) == {"score": 12 / 14, "acc": 0.0, "format": 1.0}
    assert len(runs) == 14
    assert score("print(input())", MANY)["acc"] == 1.0


def test_a_syntax_error_is_run_once(runs):
    assert score("print((", DOUBLES)["score"] == 0.0
    assert len(runs) == 1


def test_three_endless_loops_are_enough(runs):
    began = time.monotonic()
    assert score("while True: pass", MANY, time_limit=0.3)["score"] == 0.0
    assert len(runs) == 3
    assert time.monotonic() - began < 10


CALLS = {"fn_name": "add", "inputs": [[1, 2], ["a", "b"], [[1], [2]]], "outputs": [3, "ab", [1, 2]]}


@pytest.mark.parametrize(
    "solution",
    [
        "def add(a, b):\n    print('noise')\n    return a + b",
        "class Solution:\n    def add(self, a, b):\n        return a + b",
        "def add(a, b): return a + b\nif __name__ == '__main__':\n    input(); raise SystemExit(1)",
    ],
)
def test_a_function_is_called_and_its_result_compared(solution):
    assert score(solution, CALLS) == {"score": 1.0, "acc": 1.0, "format": 1.0}


def test_arguments_as_text_are_json_a_line_and_a_result_may_stand_in_a_list():
    truth = {"fn_name": "f", "inputs": ['[1, 2]\n"x"'], "outputs": ["[[2, 1]]"]}
    assert score("def f(a, b): return tuple(reversed(a))", truth)["score"] == 1.0
    assert score("def f(a, b): return a", truth)["score"] == 0.0


def test_assertions_as_a_dict_a_list_or_text():
    cases = ["assert f(2) == 4", "assert f(3) == 9", "assert f(-1) == 1"]
    for truth in ({"assert_case": cases}, cases, json.dumps(cases)):
        assert score("def f(x): return x * x", truth)["score"] == 1.0
        assert score("def f(x): return 2 * x", truth)["score"] == pytest.approx(1 / 3)
    whole = "def check(g):\n    assert g(2) == 4\ncheck(f)"
    assert score("def f(x): return x * x", whole)["score"] == 1.0
    assert score("def f(x): return x", whole)["score"] == 0.0


@pytest.mark.parametrize(
    "cheat",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "def f(x): raise SystemExit(0)",
        "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): return 0",
        "print('null')\nimport os; os._exit(0)",
    ],
)
def test_leaving_early_is_not_passing(cheat):
    assert score(cheat, {"assert_case": ["assert f(1) == 1"]})["score"] == 0.0
    assert score(cheat, {"fn_name": "f", "inputs": [[1]], "outputs": [1]})["score"] == 0.0


def test_expected_outputs_never_enter_the_sandbox():
    """A program that prints every file and all it is given does not find the answer there."""
    source = "import sys, glob\nprint(sys.stdin.read(), [open(f).read() for f in glob.glob('/sandbox/*')], sys.argv)"
    secret = "expected-7f3a"
    said = run_python(source, stdin=code.tests_of({"inputs": ["i"], "outputs": [secret]}, source)[0].stdin).stdout
    assert secret not in said
    (call,) = code.tests_of({"fn_name": "f", "inputs": [[1]], "outputs": [secret]}, source)
    assert secret not in call.program + call.stdin


def test_a_program_that_prints_what_is_right_and_then_fails_is_wrong():
    assert score("print(2 * int(input())); 1 / 0", DOUBLES)["score"] == 0.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```python\na\n```\n```python\nb\n```", ("b\n", True)),
        ("```python\na\n```\nRun it:\n```bash\nls\n```", ("a\n", True)),
        ("```\na\n```", ("a\n", True)),
        ("```py\na", ("a", True)),
        ("<think>```python\nwrong\n```</think>\n```Python\na\n```", ("a\n", True)),
        ("print(1)", ("print(1)", False)),
        ("<think>hm</think>print(1)", ("print(1)", False)),
        ("```python\ns = '''x```y'''\n```", ("s = '''x```y'''\n", True)),
        ("", ("", False)),
    ],
)
def test_code_is_the_last_block_of_python(text, found):
    assert extract_code(text) == found


def test_extracting_takes_time_in_proportion_to_the_length():
    for text in ("```python\n" * 20_000, "`" * 200_000, "```" + " " * 200_000, "```python" * 20_000):
        began = time.monotonic()
        extract_code(text)
        assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("said", "wanted", "same"),
    [
        ("1 2\n3\n", "1 2 \n3", True),
        ("1 2 3", "1 2", False),
        ("0.3333333", "0.33333334", True),
        ("0.33", "0.34", False),
        ("1.0", "1", True),
        ("10000000", "10000001", False),
        ("YES", "Yes", False),
        ("1e3", "1000", True),
        ("nan", "nan", True),
        ("a.b", "a.c", False),
        ("", "", True),
    ],
)
def test_outputs_are_compared_word_for_word(said, wanted, same):
    assert same_output(said, wanted) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (True, 1, False),
        ([1, [2.0000000001]], [1, [2]], True),
        ({"a": [1]}, {"a": [1]}, True),
        ({"a": 1}, {"b": 1}, False),
        ("1", 1, False),
        (None, None, True),
        (10**400, 1.5, False),
    ],
)
def test_values_are_compared_as_json(one, other, same):
    assert same_value(one, other) is same


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ({"inputs": ["1"]}, "holds no pairs of input and output"),
        ({"inputs": ["1"], "outputs": []}, "holds no pairs"),
        ({"inputs": [], "outputs": []}, "holds no tests"),
        ("{broken", "is no JSON"),
        ("", "is no JSON"),
        (3, "of type int holds no tests"),
    ],
)
def test_a_ground_truth_of_another_form_is_an_error(truth, message):
    with pytest.raises(ValueError, match=message):
        score("print(1)", truth)
