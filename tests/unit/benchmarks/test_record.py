import time

from benchmarks.record import Records, born, machine, parse, short, table


def test_lines_are_printed_kept_and_found_again(tmp_path, capsys):
    path = tmp_path / "deep" / "out.jsonl"
    records = Records(path)
    records.show("step", side="ours", seconds=1.5)
    printed = capsys.readouterr().out
    assert printed == '{"what": "step", "side": "ours", "seconds": 1.5}\n'
    assert parse(" 33%|███  | 1/3 " + printed) == {"what": "step", "side": "ours", "seconds": 1.5}
    assert parse("INFO engine started") is None
    assert parse('{"what": "cut off') is None

    again = Records(path)
    assert [row["seconds"] for row in again.of("step")] == [1.5]
    assert again.problems() == []
    again.show("failed", side="vllm", setting="512", why="exit code 1")
    assert again.problems() == ["vllm 512: exit code 1"]
    assert Records(path).problems() == [], "an earlier call has said it"
    assert len(path.read_text().splitlines()) == 2


def test_a_table():
    assert table(["side", "tok/s", "times"], [["ours", 123456.7, 4.125], ["vllm 512", 29930.0, None]]) == (
        "| side     | tok/s   | times |\n"
        "|----------|---------|-------|\n"
        "| ours     | 123,457 | 4.12  |\n"
        "| vllm 512 | 29,930  |       |"
    )


def test_numbers_are_short():
    assert short(0.123456789) == 0.123457
    assert short(1e-6) == 1e-6
    assert short(None) is None


def test_what_is_said_of_the_machine():
    packages = machine()["packages"]
    assert {"torch", "transformers"} <= set(packages)
    assert 0 < time.time() - born() < 24 * 3600
