import asyncio

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from laurel.types import LaurelError
from laurel.workers import waiting
from laurel.workers.waiting import Member, WorkerError, first_cause, gather, last_lines, next_reply, still_waiting


def member(rank, **changes):
    return Member(
        **{
            "rank": rank,
            "ip": f"10.0.0.{rank}",
            "node_id": "n",
            "host": "h",
            "pid": 70 + rank,
            "device": "cpu",
            "threads": 1,
            **changes,
        }
    )


MEMBERS = [member(rank) for rank in range(6)]


def raised(error):
    """As ray.get raises it: an error of both kinds, whose text is the remote traceback."""
    remote = RayTaskError("f", f"\x1b[36mray::f()\x1b[39m\n  at line 3\n{type(error).__name__}: {error}", error)
    return remote.as_instanceof_cause()


def test_waiting_names_what_and_whom():
    assert still_waiting(MEMBERS[3:4], "the actor's update", 30.4) == (
        "Waiting 30 s for the actor's update: rank 3 on node 10.0.0.3 (pid 73)"
    )
    assert still_waiting(MEMBERS, "values", 60).endswith("rank 3 on node 10.0.0.3 (pid 73) and 2 more")


def test_code_that_raised_comes_with_rank_node_and_traceback():
    error = first_cause([(2, raised(ValueError("odd")))], MEMBERS, "values")
    assert isinstance(error, WorkerError)
    assert str(error) == "rank 2 on node 10.0.0.2 (pid 72) failed in values:\nray::f()\n  at line 3\nValueError: odd"


def test_an_error_meant_for_users_comes_as_it_is():
    own = LaurelError("weights did not arrive")
    assert first_cause([(0, raised(own))], MEMBERS, "x") is own


def test_the_cause_comes_before_its_consequences():
    broken = raised(RuntimeError("[gloo] Connection closed by peer [10.0.0.1]"))
    code, dead = raised(ValueError("odd")), ActorDiedError()
    assert "rank 1" in str(first_cause([(0, broken), (1, code)], MEMBERS, "x"))
    message = str(first_cause([(0, broken), (3, broken), (2, dead)], MEMBERS, "x"))
    assert message.startswith("rank 2 on node 10.0.0.2 (pid 72) died in x: ")
    assert message.endswith("(2 other ranks failed with it)")
    assert "rank 4" in str(first_cause([(4, code), (5, code)], MEMBERS, "x")), "the first of equals"
    assert "rank 1" in str(first_cause([(0, broken), (1, ActorUnavailableError("reset", None))], MEMBERS, "x"))


def test_the_end_of_a_log_is_shown_where_it_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "h")
    log = tmp_path / "worker.err"
    log.write_text(":job_id:1\n:actor_name:Rank\n" + "".join(f"line {i}\n" for i in range(30)))
    text = last_lines(member(0, log=str(log)))
    assert text.splitlines()[1] == f"The end of its log {log}:"
    assert text.splitlines()[2:] == [f"line {i}" for i in range(10, 30)]
    assert last_lines(member(0, log=str(log), host="far")) == f"\nIts log is {log} on node 10.0.0.0"
    assert last_lines(member(0, log=str(tmp_path / "absent"))) == ""
    assert last_lines(member(0)) == ""


class FakeRay:
    """ray.wait and ray.get over a script: for each wait, the refs that become ready; results by ref."""

    def __init__(self, script, results):
        self.script, self.results, self.waits = list(script), results, []

    def wait(self, refs, *, num_returns, timeout):
        self.waits.append((list(refs), timeout))
        ready = self.script.pop(0)
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, ref):
        if isinstance(self.results[ref], Exception):
            raise self.results[ref]
        return self.results[ref]


@pytest.fixture
def ray(monkeypatch):
    def use(script, results):
        fake = FakeRay(script, results)
        monkeypatch.setattr(waiting.ray, "wait", fake.wait)
        monkeypatch.setattr(waiting.ray, "get", fake.get)
        return fake

    return use


def test_gather_returns_answers_in_rank_order(ray):
    ray([["b"], ["a"]], {"a": 1, "b": 2})
    assert gather(["a", "b"], MEMBERS, "x") == [1, 2]


def test_gather_reports_whom_it_waits_for(ray, monkeypatch):
    clock = iter([0.0, 30.0, 45.0, 61.0, 62.0])
    monkeypatch.setattr(waiting.time, "monotonic", lambda: next(clock))
    ray([[], ["a"], [], ["b"]], {"a": 1, "b": 2})
    said = []
    assert gather(["a", "b"], MEMBERS, "values", say=said.append) == [1, 2]
    assert said == [
        "Waiting 30 s for values: rank 0 on node 10.0.0.0 (pid 70), rank 1 on node 10.0.0.1 (pid 71)",
        "Waiting 61 s for values: rank 1 on node 10.0.0.1 (pid 71)",
    ]


def test_gather_ends_at_its_deadline_and_names_who_is_late(ray, monkeypatch):
    clock = iter([0.0, 5.0, 10.0])
    monkeypatch.setattr(waiting.time, "monotonic", lambda: next(clock))
    ray([["a"], []], {"a": 1, "b": 2})
    with pytest.raises(WorkerError, match=r"Waiting 10 s for its start: rank 1 .* trainer\.placement_timeout"):
        gather(["a", "b"], MEMBERS, "its start", deadline_s=10.0)


def test_gather_does_not_wait_for_ranks_that_hang_after_a_failure(ray):
    broken = raised(RuntimeError("Connection closed by peer"))
    fake = ray([["a"], ["c"]], {"a": broken, "c": raised(ValueError("odd"))})
    with pytest.raises(WorkerError, match=r"rank 2 .*\n(.*\n)+ValueError: odd\n\(1 other rank failed with it\)"):
        gather(["a", "b", "c"], MEMBERS, "x")
    assert fake.waits[-1] == (["b", "c"], 2.0)


def test_a_slow_reply_is_reported_and_a_failed_one_named(monkeypatch):
    monkeypatch.setattr(waiting, "REPORT_EVERY_S", 0.05)
    said = []

    async def after(seconds, result):
        await asyncio.sleep(seconds)
        if isinstance(result, Exception):
            raise result
        return result

    async def stream():
        yield after(0.12, "first")
        yield after(0, raised(ValueError("odd")))

    async def use():
        replies = stream()
        assert await next_reply(replies, MEMBERS[1], "2 of 2 completions", say=said.append) == "first"
        await next_reply(replies, MEMBERS[1], "1 of 2 completions", say=said.append)

    with pytest.raises(WorkerError, match=r"rank 1 on node 10.0.0.1 \(pid 71\) failed in 1 of 2 completions"):
        asyncio.run(use())
    assert said[0] == "Waiting 0 s for 2 of 2 completions: rank 1 on node 10.0.0.1 (pid 71)"
    assert 1 <= len(said) <= 3
