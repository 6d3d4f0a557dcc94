"""Every other node: finds the head, proves that it belongs to the job, adds its Ray, and ends when the job ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from laurel.launch.cluster import processes
from laurel.launch.cluster.address import resolve
from laurel.launch.cluster.facts import gather
from laurel.launch.cluster.place import Place
from laurel.launch.cluster.ports import candidates, take
from laurel.launch.cluster.ray_node import RayNode
from laurel.launch.cluster.rendezvous import keep_alive
from laurel.launch.cluster.signals import Signals
from laurel.launch.cluster.staging import stage
from laurel.launch.cluster.terms import Terms
from laurel.launch.cluster.wire import Closed, Stranger, Wire, call
from laurel.types import LaurelError

Say = Callable[[str], object]
_SAME = "Every node of a job needs the same LAUREL_CLUSTER_TOKEN and job name"
_RETRY_S = (0.2, 3.0)  # first and longest pause between rounds of calls
_LEAVE_S = 10.0  # a node that is told to end waits this long for the head's word, so that training can save


def find_head(place: Place, token: str, terms: Terms, stop: threading.Event) -> Wire | None:
    """Call the head's possible ports in turn until it answers; None if ``stop`` came first.

    Raises LaurelError at the deadline that says where was called and what answered.
    """
    ports = [block.first for block in candidates(place.job)] if terms.port is None else [terms.port]
    deadline, pause = time.monotonic() + terms.join_timeout_s, _RETRY_S[0]
    while True:
        strangers, refused = [], ""
        addresses = [address for head in place.heads for address in resolve(head)]
        for address in dict.fromkeys(addresses):
            for port in ports:
                if stop.is_set():
                    return None
                try:
                    return call(address, port, token)
                except Stranger as stranger:
                    strangers.append(f"{address}:{port} is {stranger}")
                except OSError as error:
                    refused = f"{address}: {error.strerror or error}"
        if time.monotonic() >= deadline:
            raise LaurelError(_not_found(place, terms, ports, addresses, strangers, refused))
        stop.wait(pause)
        pause = min(2 * pause, _RETRY_S[1])


def _not_found(
    place: Place, terms: Terms, ports: list[int], addresses: list[str], strangers: list[str], refused: str
) -> str:
    heads = " or ".join(place.heads)
    start = f"no head answered within {terms.join_timeout_s:.0f} s (--join-timeout)"
    if not addresses:
        return f"{start}: {heads} has no address that other machines can reach; give the head's IP address"
    tried = f"{heads}, ports {', '.join(map(str, ports))}"
    if strangers:
        return f"{start} at {tried}: {'; '.join(strangers)}. {_SAME}"
    return f"{start} at {tried} (last: {refused}); is its task running, and does a firewall lie between?"


class _Line:
    """Reads what the head says, in a thread of its own. ``done`` is the training's code, ``lost`` why it broke.
    ``news`` is set when Ray is up there, and when it is ``over``."""

    def __init__(self, wire: Wire):
        self.wire = wire
        self.done: int | None = None
        self.lost = ""
        self.over, self.news = threading.Event(), threading.Event()
        threading.Thread(target=self._listen, daemon=True, name="head").start()

    def _listen(self) -> None:
        try:
            while self.done is None:
                words = self.wire.receive()
                if "ray_is_up" in words:
                    self.news.set()
                if "done" in words:
                    self.done = int(words["done"])
        except Closed as closed:
            self.lost = str(closed)
        self.over.set()
        self.news.set()

    def tell(self, **words: object) -> None:
        with suppress(Closed):  # _listen notices
            self.wire.send(**words)


def run_join(
    place: Place, token: str, terms: Terms, settings: Sequence[str], say: Say, *, numbered: bool = True
) -> int:
    """0 once the job is over, whatever came of it: its code is the head's to report. Raises LaurelError if this node
    was refused, could not join, or lost the head. ``numbered=False``: the head gives this node its rank."""
    processes.adopt_orphans()
    signals = Signals()
    wire = find_head(place, token, terms, signals.stop)
    if wire is None:
        return signals.code
    facts = gather(place.gpus)
    wire.send(rank=place.rank if numbered else None, facts=facts.sent())
    answer = wire.receive()
    if "refused" in answer:
        raise LaurelError(f"the head at {wire.other_address} refused this node: {answer['refused']}")
    say(f"called the head at {wire.other_address}; this node is {wire.own_address}, rank {answer['rank']}")
    keep_alive(wire)
    line, node = _Line(wire), RayNode(token)
    keep_logs = True
    try:
        _add_ray(line, node, answer["welcome"]["ray"], facts.gpus, terms, settings, signals, say)
        code = _stay(line, node, signals)
        keep_logs = False
        return code
    except LaurelError as error:
        line.tell(failed=str(error))
        raise
    finally:
        node.end(keep_logs=keep_logs)
        wire.close()


def _add_ray(
    line: _Line, node: RayNode, ray: str, gpus: int, terms: Terms, settings: Sequence[str], signals: Signals, say: Say
) -> None:
    def given_up() -> bool:
        return line.over.is_set() or signals.stop.is_set()

    def doing(text: str) -> None:
        say(text)
        line.tell(doing=text)

    stage(settings, doing)
    while not line.news.wait(0.2) and not signals.stop.is_set():
        pass
    host, _, port = ray.rpartition(":")
    deadline = time.monotonic() + terms.join_timeout_s
    while not _answers(host, int(port)) and not given_up():
        if time.monotonic() > deadline:
            raise LaurelError(
                f"Ray's head at {ray} did not answer within {terms.join_timeout_s:.0f} s (--join-timeout)"
            )
        time.sleep(0.3)
    if given_up():
        return
    block, claim = take(candidates(f"{line.wire.own_address}/{ray}"))
    node.start([f"--address={ray}"], block, address=line.wire.own_address, gpus=gpus, cores=terms.cores)
    node.wait_until_up(given_up)
    claim.close()
    if not given_up():
        line.tell(joined=True)
        say("joined")


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


def _stay(line: _Line, node: RayNode, signals: Signals) -> int:
    while not line.over.wait(0.2):
        if signals.stop.is_set():  # the scheduler ends the job: the head gets the same word, and training may save
            line.over.wait(_LEAVE_S)
            break
        if node.ended():
            line.over.wait(2.0)  # the head may have ended everything a moment ago
            if line.done is None:
                raise LaurelError(f"Ray ended on this node: {node.last_lines()}; its logs are in {node.logs}")
    if line.done is not None:
        return 0
    if signals.stop.is_set():
        return signals.code
    raise LaurelError(f"the head at {line.wire.other_address} is gone ({line.lost}); this node ends its Ray")
