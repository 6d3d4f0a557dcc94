import json

from laurel.preflight.doctor.finding import Finding, of_error
from laurel.preflight.doctor.report import Report, listed
from laurel.types import LaurelError

FINDINGS = [
    Finding("clock", "warning", "a", "its clock is off", "mend it"),
    Finding("data", "error", "", "rows are bad", "correct them"),
    Finding("clock", "warning", "b", "its clock is off", "mend it"),
    Finding("network", "note", "a", "has two names", "choose"),
]


def test_the_gravest_first_and_what_nodes_share_once():
    assert listed(FINDINGS) == [
        *("", "errors:", "  1. [data] rows are bad", "     correct them"),
        *("", "warnings:", "  1. [clock] a, b: its clock is off", "     mend it"),
        *("", "notes:", "  1. [network] a: has two names", "     choose"),
    ]
    assert listed(FINDINGS, ("error",)) == ["", "errors:", "  1. [data] rows are bad", "     correct them"]


def test_only_errors_count_for_the_exit_code():
    report = Report("10.0.0.1:6379", findings=FINDINGS, facts=["64 rows"], seconds=2.4)
    assert report.code == 1
    assert report.summary() == "0 nodes at 10.0.0.1:6379, looked at in 2 s: 1 error, 1 warning"
    assert report.text().startswith("64 rows\n\nerrors:")
    healthy = Report(findings=FINDINGS[3:])
    assert (healthy.code, healthy.summary()) == (0, "this machine, looked at in 0 s: nothing is wrong")


def test_json_holds_every_finding():
    read = json.loads(Report("x", findings=FINDINGS, facts=["64 rows"]).json())
    assert (read["ok"], read["cluster"], read["facts"]) == (False, "x", ["64 rows"])
    assert [one["where"] for one in read["findings"]] == ["a", "", "b", "a"]
    assert read["findings"][1] == {
        "topic": "data",
        "severity": "error",
        "where": "",
        "what": "rows are bad",
        "cure": "correct them",
    }


def test_an_error_of_another_room_brings_its_cure():
    found = of_error("model", "a", LaurelError("it is missing; or lost; give another"))
    assert (found.what, found.cure) == ("it is missing; or lost", "give another")
    found = of_error("model", "a", LaurelError("it is missing"), "give another")
    assert (found.what, found.cure) == ("it is missing", "give another")
    assert of_error("model", "a", LaurelError("it is missing")).what == "it is missing"
