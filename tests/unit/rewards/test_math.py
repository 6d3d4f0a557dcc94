from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from laurel.rewards.math import compute_score, equal, last_boxed, last_expression


def score(text, truth, **kwargs):
    return compute_score(data_source="math", solution_str=text, ground_truth=truth, extra_info={}, **kwargs)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("so \\boxed{42}.", "42"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{1} no \\boxed{ 2 }", "2"),
        ("\\boxed 7$", "7"),
        ("\\fbox{x}", "x"),
        ("\\boxed{3} and \\boxed{open", "3"),
        ("no box", None),
        ("\\boxed{", None),
    ],
)
def test_last_boxed(text, content):
    assert last_boxed(text) == content


def test_last_expression():
    assert last_expression("it is $x+1$ or 5") == "x+1"
    assert last_expression("it is 4, or 1,005.") == "1,005"
    assert last_expression("nothing") is None


@pytest.mark.parametrize(
    ("answer", "truth", "same"),
    [
        ("\\dfrac12", "\\frac{1}{2}", True),
        ("0.5", "\\frac{1}{2}", True),
        ("1{,}000", "1000", True),
        ("1,000", "1000", True),
        ("2\\sqrt{3}", "\\sqrt{12}", True),
        ("x^2+2x+1", "(x+1)^2", True),
        ("\\text{Evelyn}", "Evelyn", True),
        ("90^\\circ", "90", True),
        ("50\\%", "50", True),
        ("(1, 2)", "(1,2)", True),
        ("\\{1, 2\\}", "\\{2,1\\}", True),
        ("(1,2)", "(2,1)", False),
        ("\\frac{1}{3}", "\\frac{1}{2}", False),
        ("-5", "5", False),
        ("\\frac{", "5", False),
        ("", "5", False),
    ],
)
def test_equal(answer, truth, same):
    assert equal(answer, truth) is same


def test_strict_wants_a_box_and_flexible_does_not():
    assert score("\\boxed{0.5}", "\\frac12") == {"score": 1.0, "acc": 1.0, "strict": 1.0, "flexible": 1.0}
    assert score("The answer is 5.", "5") == {"score": 0.0, "acc": 0.0, "strict": 0.0, "flexible": 1.0}
    assert score("The answer is 5.", "5", method="flexible")["score"] == 1.0
    assert score("\\boxed{4} so 5", "5") == {"score": 0.0, "acc": 0.0, "strict": 0.0, "flexible": 0.0}
    assert score("\\boxed{4}", "5", format_score=0.1)["score"] == 0.1
    assert score("gibberish }{ \\boxed{\\foo{", "5")["score"] == 0.0


def test_a_ground_truth_may_be_a_whole_boxed_solution():
    assert score("\\boxed{7}", "thus \\boxed{7}")["score"] == 1.0


def test_an_empty_ground_truth_is_an_error():
    for truth in ("", "  ", None):
        with pytest.raises(ValueError, match="is empty"):
            score("\\boxed{7}", truth)


def test_it_works_outside_the_main_thread():
    """math-verify's own time limits raise there, and its default turns that into a silent zero."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(score, "\\boxed{x+x}", "2x").result()["score"] == 1.0


@pytest.mark.parametrize(
    "bomb",
    [
        "9^{9^{9^9}}",
        "2^{99999999}",
        "(10^10)^{10^10}",
        "99999999!",
        "((9!)!)!",
        "(((9^9)^9)^9)^9",
        "{{{9^9}^9}^9}^9",
        "\\binom{99999999}{5000000}",
        "1" * 1000,
    ],
)
def test_expressions_that_would_never_end_are_wrong_at_once(bomb):
    assert score(f"\\boxed{{{bomb}}}", "5")["score"] == 0.0
    assert score(f"\\boxed{{{bomb}}}", bomb)["score"] == 1.0
