"""What is the cause and what followed from it, read out of logs as Ray and Laurel write them."""

from datetime import datetime, timedelta

import pytest

from laurel.launch.logs import CONSEQUENCE, DIED, RAISED, REPORT, failures, log_folders, read_folder, scan, show
from laurel.types import LaurelError

A, B, C = "a" * 56, "b" * 56, "c" * 56

BROKEN_PAIR = """:job_id:01000000
:actor_name:Rank
laurel: this is rank 0 of 2 on node 10.0.0.1 (pid 11)
laurel: rank 0 (pid 11) failed in update_actor at 2026-12-04T10:00:01.000+00:00
Traceback (most recent call last):
  File "worker.py", line 1, in update_actor
    step()
RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4000
"""
CAUSE = """laurel: this is rank 1 of 2 on node 10.0.0.2 (pid 22)
laurel: rank 1 (pid 22) failed in update_actor at 2026-12-04T10:00:02.000+00:00
Traceback (most recent call last):
  File "a.py", line 1, in read
    return rows["x"]
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 2, in step
    raise ValueError("no column x") from error
ValueError: no column x
a line of something else
"""
DRIVER = """step 1
Traceback (most recent call last):
  File "main.py", line 3, in main
    ray.get(ref)
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.

error: rank 0 on node 10.0.0.1 (pid 11) failed in the actor's update:
RuntimeError: Connection closed by peer
"""


def lines(text):
    return text.splitlines()


def test_a_marked_failure_tells_rank_call_and_time_and_takes_its_chain_along():
    (one,) = failures(lines(CAUSE), 5.0)
    assert (one.kind, one.who, one.time) == (RAISED, "rank 1 (pid 22), in update_actor", 1796378402.0)
    assert one.text.startswith("Traceback")
    assert "KeyError: 'x'" in one.text
    assert one.summary == "ValueError: no column x"


def test_what_a_broken_connection_and_ray_say_are_consequences():
    (broken,) = failures(lines(BROKEN_PAIR), 5.0)
    assert broken.kind == CONSEQUENCE
    died, said = failures(lines(DRIVER), 5.0)
    assert (died.kind, died.summary.split(":")[0]) == (CONSEQUENCE, "ray.exceptions.ActorDiedError")
    assert (said.kind, said.time) == (REPORT, 5.0)


def test_an_error_of_the_driver_that_names_no_rank_is_a_cause():
    (said,) = failures(["error: reward function f.py:f on row 3 raised KeyError: 'x'", "", "more"], 1.0)
    assert (said.kind, said.text) == (RAISED, "error: reward function f.py:f on row 3 raised KeyError: 'x'")


def test_a_remote_traceback_belongs_to_the_exception_that_carries_it():
    text = (
        'Traceback (most recent call last):\n  File "m.py", line 1, in main\n'
        "ray.exceptions.RayTaskError(KeyError): ray::f() (pid=3, ip=10.0.0.1)\n"
        "  File \"f.py\", line 2, in f\nKeyError: 'k'"
    )
    (one,) = failures(lines(text + "\nafter"), 1.0)
    assert one.text == text
    assert one.summary == "KeyError: 'k'"


def test_lines_that_ray_repeats_are_read_without_its_colours_and_names(tmp_path):
    repeated = "\x1b[36m(Rank pid=7, ip=10.0.0.9)\x1b[0m "
    text = "Traceback (most recent call last):\n  File \"f.py\", line 2, in f\nKeyError: 'k'"
    (tmp_path / "job-driver-raysubmit_1.log").write_text("\n".join(repeated + line for line in lines(text)))
    (one,) = scan(tmp_path)
    assert (one.text, one.who, one.kind) == (text, "the driver", RAISED)


def test_the_code_that_raised_comes_before_ranks_that_lost_it_though_they_failed_earlier(tmp_path):
    for node, worker, text in (("one", A, BROKEN_PAIR), ("two", B, CAUSE)):
        folder = tmp_path / node / "session_latest" / "logs"
        folder.mkdir(parents=True)
        (folder / f"worker-{worker}-01000000-{11 if node == 'one' else 22}.err").write_text(text)
    (tmp_path / "one" / "session_latest" / "logs" / "job-driver-x.log").write_text(DRIVER)
    text = show(read_folder(tmp_path), tail=1)
    assert text.startswith(f"Logs:\n  folder {tmp_path}/one/session_latest/logs: ")
    cause, followed = text.split("What followed, or failed beside it (3):")
    assert f"Cause: rank 1 (pid 22), in update_actor on folder {tmp_path}/two/session_latest/logs" in cause
    assert "ValueError: no column x" in cause
    assert [line.split(" on folder")[0].strip() for line in lines(followed)[1:4]] == [
        "rank 0 (pid 11), in update_actor",
        "the driver",
        "the driver",
    ]
    assert text.endswith("a line of something else"), "the tail of the file with the cause"
    only = show(read_folder(tmp_path, ["one"]))
    assert "ValueError" not in only


def test_a_process_that_a_signal_ended_comes_first_and_once(tmp_path):
    (tmp_path / f"worker-{A}-01000000-11.err").write_text(BROKEN_PAIR)
    (tmp_path / f"worker-{C}-01000000-33.err").write_text(
        "laurel: this is rank 2 of 3 on node 10.0.0.1 (pid 33)\n*** SIGSEGV received at time=1 on cpu 0 ***\n"
        'Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n  File "k.py", line 4 in kernel\n'
    )
    stamp = "[2026-12-04 11:08:11,897 I 1 1] (raylet) node_manager.cc:1477: Disconnecting worker, "
    rest = "disconnect_type=0, has_creation_task_exception=false worker_id="
    (tmp_path / "raylet.out").write_text(
        f"{stamp}graceful=false, {rest}{C} job_id=01000000\n{stamp}graceful=true, {rest}{A} job_id=01000000\n"
    )
    found = scan(tmp_path)
    assert [(one.kind, one.who) for one in found] == [
        (DIED, "rank 2 (pid 33)"),
        (CONSEQUENCE, "rank 0 (pid 11), in update_actor"),
    ]
    assert 'File "k.py", line 4 in kernel' in found[0].text


def test_what_the_head_says_of_a_killed_worker_names_its_rank_and_its_last_words(tmp_path):
    (tmp_path / f"worker-{B}-01000000-22.err").write_text(
        "laurel: this is rank 1 of 2 on node 10.0.0.2 (pid 22)\nlast words\n"
    )
    (tmp_path / "gcs_server.out").write_text(
        "[2026-12-04 11:08:11,888 W 1 1] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, "
        f"worker id = {B}, node id = {C}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = End of file. \n"
        f"[2026-12-04 11:08:12,000 W 1 1] x: Reporting worker exit, worker id = {A}, node id = {C}, "
        "address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = of another node\n"
    )
    (one,) = scan(tmp_path)
    assert (one.kind, one.who) == (DIED, "rank 1 (pid 22)")
    assert lines(one.text) == ["last words", "ended unexpectedly: End of file."]


def test_processes_that_the_driver_ended_after_a_failure_are_no_cause(tmp_path):
    """As they are after a failed run; one that ended before it, or long after, is."""
    raised = CAUSE.replace(
        "2026-12-04T10:00:02.000", datetime.now().astimezone().isoformat(timespec="milliseconds")[:-6]
    )
    zone = datetime.now().astimezone().isoformat()[-6:]
    (tmp_path / f"worker-{B}-01000000-22.err").write_text(raised.replace("+00:00", zone))
    (tmp_path / f"worker-{A}-01000000-11.err").write_text("")

    def kinds(seconds):
        stamp = (datetime.now() + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
        rest = f"x: Disconnecting worker, graceful=false, worker_id={A} job_id=01000000"
        (tmp_path / "raylet.out").write_text(f"[{stamp} I 1 1] {rest}\n")
        return [one.who.split(",")[0] for one in scan(tmp_path)]

    assert kinds(3) == ["rank 1 (pid 22)", "pid 11"]
    assert kinds(-30) == ["pid 11", "rank 1 (pid 22)"]
    assert kinds(300) == ["pid 11", "rank 1 (pid 22)"]


def test_a_clean_run_has_no_failure(tmp_path):
    (tmp_path / f"worker-{A}-01000000-11.err").write_text("laurel: this is rank 0 of 1 on node 10.0.0.1 (pid 11)\n")
    assert show(read_folder(tmp_path)).endswith("No failure was found in them.")


def test_a_folder_without_logs_is_an_error_that_says_what_to_give(tmp_path):
    with pytest.raises(LaurelError, match=r"no Ray logs in it \(worker-\*\.err"):
        log_folders(tmp_path)
    with pytest.raises(LaurelError, match="no such folder"):
        log_folders(tmp_path / "absent")
