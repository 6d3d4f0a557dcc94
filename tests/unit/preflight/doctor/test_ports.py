import socket
import threading

import pytest

from laurel.preflight.doctor.ports import Listener, ephemeral_range, judge, judge_taken, knock, knock_all, taken_here


@pytest.fixture
def listener():
    made = Listener("127.0.0.1")
    yield made
    made.close()


def test_a_door_that_opens(listener):
    door = ("127.0.0.1", listener.port, listener.word)
    assert knock(door) == ""
    assert knock_all({"a": door, "b": door}) == {"a": "", "b": ""}


def test_doors_that_do_not(listener):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert knock(("127.0.0.1", port, "word")) == "connection refused"
    assert knock(("127.0.0.1", listener.port, "another")) == "another program answers there"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts and says nothing, as a proxy may
        assert knock(("127.0.0.1", silent.getsockname()[1], "word"), 0.1) == "no answer within 0 s"


def test_a_closed_listener_answers_nobody():
    made = Listener("127.0.0.1")
    before = threading.active_count()
    made.close()
    assert knock(("127.0.0.1", made.port, made.word)) == "connection refused"
    assert threading.active_count() <= before


def test_what_cannot_be_reached_is_told_by_reason():
    problems = {"a": {"b": "", "c": ""}, "b": {"a": "no answer within 5 s", "c": "no answer within 5 s"}, "c": {}}
    (found,) = judge(problems, "32768-60999")
    assert (found.topic, found.severity, found.where) == ("ports", "error", "b")
    assert found.what == "cannot connect to a, c: no answer within 5 s"
    assert "TCP ports 32768-60999" in found.cure
    assert judge({"a": {"b": ""}, "b": {"a": ""}}) == []


def test_many_that_cannot_be_reached_are_counted():
    (found,) = judge({"a": {str(number): "refused" for number in range(9)}})
    assert found.what == "cannot connect to 0, 1, 2, 3 and 5 more: refused"


def test_a_port_that_another_program_holds():
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        assert taken_here({port: "--port"}) == {port: "--port"}
    assert taken_here({port: "--port"}) == {}
    (found,) = judge_taken({port: "--port"}, "this machine")
    assert (found.severity, found.where) == ("note", "this machine")
    assert found.what == f"port {port} is taken by another program"
    assert "--port=ANOTHER" in found.cure


def test_the_range_of_the_system(tmp_path):
    (tmp_path / "range").write_text("32768\t60999\n")
    assert ephemeral_range(tmp_path / "range") == "32768-60999"
    assert ephemeral_range(tmp_path / "none") == ""
