"""The node of rank 0: holds the rendezvous, starts Ray's head, waits for all, trains, and ends every node."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence

from laurel.launch.cluster import processes
from laurel.launch.cluster.address import own_address
from laurel.launch.cluster.facts import gather
from laurel.launch.cluster.place import Place
from laurel.launch.cluster.ports import Block, candidates, take
from laurel.launch.cluster.ray_node import RayNode
from laurel.launch.cluster.rendezvous import Rendezvous
from laurel.launch.cluster.signals import Signals, exit_code
from laurel.launch.cluster.staging import stage
from laurel.launch.cluster.terms import Terms, check_nodes, training_words
from laurel.types import LaurelError
from laurel.workers.raylets import recorded_cluster

Say = Callable[[str], object]


class Head:
    """A Ray head of which other nodes can become part. Use as a context manager; leaving it ends every node."""

    def __init__(self, place: Place, token: str, terms: Terms, say: Say):
        self.place, self.token, self.terms, self.say = place, token, terms, say
        self.code = 1
        self.signals = Signals()
        processes.adopt_orphans()

    def __enter__(self) -> Head:
        blocks = candidates(self.place.job) if self.terms.port is None else [Block(self.terms.port)]
        self.block, listener = take(blocks)
        self.address = own_address(self.place.peers[1:])
        own = gather(self.place.gpus)
        if own.gpus < self.terms.gpus:
            listener.close()
            raise LaurelError(
                f"this node has {own.gpus} GPUs, {self.terms.gpus} are asked for (--gpus-per-node); look at "
                "nvidia-smi -L and CUDA_VISIBLE_DEVICES"
            )
        self.gpus = own.gpus
        answer = {"ray": self.ray_address}
        self.rendezvous = Rendezvous(listener, self.token, self.place.nodes, self.terms.gpus, own, answer, self.say)
        self.node = RayNode(self.token)
        self.rendezvous.open()
        self.say(f"head at {self.address}:{self.block.first}, Ray at {self.ray_address}")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.signals.training = None
        self.rendezvous.close(self.code)
        failed = self.code != 0 and not self.signals.code
        self.node.end(keep_logs=failed)
        if failed and self.node.logs.exists():
            self.say(f"Ray's logs of this node: {self.node.logs}")

    @property
    def ray_address(self) -> str:
        return f"{self.address}:{self.block.ray}"

    def start_ray(self) -> None:
        words = [
            "--head",
            f"--port={self.block.ray}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={self.block.dashboard}",
            f"--ray-client-server-port={self.block.client}",
        ]
        self.node.start(words, self.block, address=self.address, gpus=self.gpus, cores=self.terms.cores)
        self.node.wait_until_up(self.signals.stop.is_set)
        if not self.signals.stop.is_set():
            self.rendezvous.ray_is_up.set()
            self.say(
                f"Ray is up; its dashboard: ssh -L {self.block.dashboard}:127.0.0.1:{self.block.dashboard} "
                f"{self.address}, then http://127.0.0.1:{self.block.dashboard}"
            )

    def wait_for_nodes(self) -> int:
        return self.rendezvous.wait(
            self.terms.join_timeout_s,
            least=self.terms.least or self.place.nodes,
            name_of=self.place.name_of,
            stop=self.signals.stop,
        )

    def train(self, settings: Sequence[str]) -> int:
        command = [sys.executable, "-m", "laurel.trainer.main_ppo", *settings]
        training = processes.start(command, self.node.environ | {"RAY_ADDRESS": self.ray_address})
        self.signals.training = training
        if self.signals.stop.is_set():  # a signal between the last look and now
            training.terminate()
        code = exit_code(training.wait())
        # Ray's handler in the training ends it with the number of the signal itself
        return 128 + code if code and code == self.signals.sent else code


def run_head(place: Place, token: str, terms: Terms, settings: Sequence[str], say: Say) -> int:
    """Exit code of the training, or 128 + N if signal N came before it began."""
    if not terms.least:
        check_nodes(settings, place.nodes)
    with Head(place, token, terms, say) as head:
        staging = _Staging(settings, say)
        head.start_ray()
        came = head.wait_for_nodes()
        staging.finish(head.signals.stop)
        if head.signals.stop.is_set():
            head.code = head.signals.code
            return head.code
        words = training_words(settings, nodes=place.nodes, came=came, gpus=terms.gpus)
        head.code = head.train(words)
        return head.code


def hold_head(place: Place, token: str, terms: Terms, say: Say, ready: Callable[[Head], object]) -> int:
    """A cluster by hand: up until SIGINT or SIGTERM; ``ready`` is called once it can be joined."""
    with Head(place, token, terms, say) as head:
        head.start_ray()
        if place.nodes > 1:
            head.wait_for_nodes()
        if not head.signals.stop.is_set():
            ready(head)
        with recorded_cluster(head.ray_address):
            while not head.signals.stop.wait(0.5):
                if head.node.ended():
                    raise LaurelError(f"Ray ended on the head: {head.node.last_lines()}; logs: {head.node.logs}")
        head.code = 0
        return 0


class _Staging(threading.Thread):
    """The head fetches its models while Ray starts and the others come."""

    def __init__(self, settings: Sequence[str], say: Say):
        super().__init__(daemon=True, name="staging")
        self._settings, self._say = settings, say
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            stage(self._settings, self._say)
        except BaseException as error:  # raised again in finish, where it ends the job
            self._error = error

    def finish(self, stop: threading.Event) -> None:
        while self.is_alive() and not stop.is_set():
            self.join(0.2)
        if self._error is not None:
            raise self._error
