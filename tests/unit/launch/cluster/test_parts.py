"""Ports, secrets, the wire, facts and the words of the training."""

import re
import socket
import stat
import struct
import threading
from dataclasses import replace
from itertools import pairwise

import pytest

from laurel.launch.cluster import facts as of_nodes
from laurel.launch.cluster.facts import Facts, misfit, shared_gpus
from laurel.launch.cluster.ports import BLOCK, Block, candidates, take
from laurel.launch.cluster.ray_node import ray_environment
from laurel.launch.cluster.secret import VARIABLE, kept_token, ray_token, take_token
from laurel.launch.cluster.terms import check_nodes, training_words
from laurel.launch.cluster.wire import Closed, Stranger, Wire, call, greet
from laurel.types import LaurelError

TOKEN = "t" * 32


def test_blocks_are_below_the_ephemeral_range_apart_and_the_same_everywhere():
    blocks = candidates("job", below=32_768)
    assert blocks == candidates("job", below=32_768) != candidates("another job", below=32_768)
    firsts = sorted(block.first for block in blocks)
    assert firsts[0] >= 10_240
    assert firsts[-1] + BLOCK <= 32_768
    assert all(b - a >= BLOCK for a, b in pairwise(firsts))
    used = [int(number) for flag in blocks[0].node_flags() for number in re.findall(r"=(\d{4,})", flag)]
    used += [blocks[0].first, blocks[0].ray, blocks[0].dashboard, blocks[0].client]
    assert len(set(used)) == len(used) == 10
    assert set(used) <= set(range(blocks[0].first, blocks[0].first + BLOCK))


def test_no_room_for_ports_is_said():
    with pytest.raises(LaurelError, match="ip_local_port_range begins at 10300"):
        candidates("job", below=10_300)


def test_a_block_with_a_port_in_use_is_passed_over_and_two_jobs_do_not_share():
    blocks = candidates("a test's own name")
    with socket.socket() as other:
        other.bind(("127.0.0.1", blocks[0].first + 5))
        other.listen()
        first, claim = take(blocks)
        second, second_claim = take(blocks)
        with claim, second_claim:
            assert (first, second) == (blocks[1], blocks[2])
        with pytest.raises(LaurelError, match=str(blocks[0].first + 5)):
            take(blocks[:1])


def test_the_token_is_taken_out_of_the_environment():
    environ = {VARIABLE: TOKEN, "PATH": "/bin"}
    assert take_token(environ) == TOKEN
    assert environ == {"PATH": "/bin"}
    for wrong, message in (({}, "is not set"), ({VARIABLE: "short"}, "has 5 characters")):
        with pytest.raises(LaurelError, match=message):
            take_token(wrong)


def test_a_kept_token_is_private_and_stays(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    token = kept_token(tmp_path)
    file = tmp_path / ".laurel" / "cluster_token"
    assert kept_token(tmp_path) == token == file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert ray_token(token) != token
    file.chmod(0o644)
    with pytest.raises(LaurelError, match="may be read by others"):
        kept_token(tmp_path)


def test_the_training_gets_the_token_of_ray_and_nothing_of_the_platforms_ray(tmp_path):
    environ = {VARIABLE: TOKEN, "RAY_ADDRESS": "10.0.0.9:6380", "HF_HOME": "/models", "RAY_AUTH_TOKEN": "old"}
    made = ray_environment(environ, tmp_path / "token")
    assert made["RAY_AUTH_MODE"] == "token"
    assert made["HF_HOME"] == "/models"
    assert {VARIABLE, "RAY_ADDRESS", "RAY_AUTH_TOKEN"}.isdisjoint(made)


def greeted(token: str) -> tuple[int, list[object]]:
    """A head that greets one caller; its port, and what came of it."""
    listener = socket.create_server(("127.0.0.1", 0))
    outcome: list[object] = []

    def serve() -> None:
        with listener:
            try:
                wire = greet(listener.accept()[0], token)
                outcome.append(wire.receive(5))
                wire.send(back=True)
                wire.close()
            except (Stranger, Closed) as error:
                outcome.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    outcome.append(thread)
    return listener.getsockname()[1], outcome


def test_both_sides_know_the_token():
    port, outcome = greeted(TOKEN)
    wire = call("127.0.0.1", port, TOKEN)
    wire.send(hello=1)
    assert wire.receive(5) == {"back": True}
    assert outcome[1] == {"hello": 1}
    with pytest.raises(Closed, match="closed"):
        wire.receive(5)
    wire.close()


def test_another_token_is_a_stranger_on_both_sides():
    port, outcome = greeted("another" * 5)
    with pytest.raises(Stranger, match="another token"):
        call("127.0.0.1", port, TOKEN)
    outcome[0].join(5)
    assert isinstance(outcome[1], Stranger)


def test_another_service_is_a_stranger():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: listener.accept()[0].sendall(b"SSH-2.0-x\r\n"), daemon=True)
        thread.start()
        with pytest.raises(Stranger, match="another program"):
            call("127.0.0.1", listener.getsockname()[1], TOKEN)


HEAD = Facts("head", {"python": "3.11.4", "ray": "2.60.0", "torch": "2.11.0"}, 8, ("GPU-a", "GPU-b"))


def test_who_fits():
    assert misfit(HEAD, HEAD) is None
    assert misfit(replace(HEAD, versions=HEAD.versions | {"python": "3.11.9"}), HEAD) is None
    assert "python 3.12.1 (the head has 3.11.4)" in misfit(
        replace(HEAD, versions=HEAD.versions | {"python": "3.12.1"}), HEAD
    )
    assert "torch none (the head has 2.11.0)" in misfit(
        replace(HEAD, versions={"python": "3.11.4", "ray": "2.60.0"}), HEAD
    )
    assert "GPU GPU-b is also the head's" in shared_gpus(replace(HEAD, gpu_ids=("GPU-b",)), {"the head": HEAD})
    assert shared_gpus(replace(HEAD, gpu_ids=("GPU-c",)), {"the head": HEAD}) is None
    assert Facts.received(HEAD.sent() | {"gpu_ids": ["GPU-a", "GPU-b"]}) == HEAD


def test_what_a_scheduler_gave_counts_more_than_what_can_be_seen(monkeypatch):
    monkeypatch.setattr(of_nodes, "visible_gpus", lambda: 8)
    assert (of_nodes.gather(2).gpus, of_nodes.gather().gpus) == (2, 8)


def test_the_words_of_the_training():
    assert training_words(["a=1"], nodes=2, came=2, gpus=8) == ["a=1", "trainer.nnodes=2", "trainer.n_gpus_per_node=8"]
    given = ["trainer.nnodes=3", "trainer.n_gpus_per_node=4"]
    assert training_words(given, nodes=3, came=3, gpus=8) == given
    assert training_words(given, nodes=3, came=2, gpus=8) == ["trainer.n_gpus_per_node=4", "trainer.nnodes=2"]
    assert training_words([], nodes=1, came=1, gpus=0) == ["trainer.nnodes=1"]
    check_nodes(given, 3)
    with pytest.raises(LaurelError, match=r"trainer\.nnodes=3, but the job has 2 nodes"):
        check_nodes(given, 2)


def test_a_block_by_its_first_port():
    assert (Block(20_000).ray, Block(20_000).dashboard) == (20_001, 20_002)


def test_a_wire_knows_its_addresses_when_the_other_side_has_reset_it():
    """A node names the head that it lost; the socket itself no longer knows."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), timeout=5)
        far, _ = listener.accept()
        wire = Wire(near)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()  # with a reset
        with pytest.raises(Closed):
            wire.receive(5)
        with pytest.raises(OSError, match="not connected"):
            near.getpeername()
        assert (wire.own_address, wire.other_address) == ("127.0.0.1", "127.0.0.1")
        wire.close()
