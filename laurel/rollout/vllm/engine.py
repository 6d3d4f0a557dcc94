"""VllmEngine: the engine protocol in front of a vLLM process of its own."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from laurel.rollout.engine import EngineError
from laurel.rollout.vllm.child import Child
from laurel.rollout.vllm.messages import Abort, Call, Done, Generate, Refused, Reply, Start
from laurel.types import Completion, Fingerprint, Request
from laurel.weights.parcels import Sender

logger = logging.getLogger("laurel")
Buckets = Iterable[Mapping[str, Tensor]]
MOST_RESTARTS = 3
_STARTS_WITHIN_S = 1800.0  # a large model is compiled and its graphs are captured


@dataclass
class Pending:
    """A request that was sent and not answered."""

    request: Request
    stops: tuple[int, ...]
    future: Future[Completion]

    def settle(self, outcome: Completion | EngineError) -> None:
        """Who awaited it may have gone; then nobody is told."""
        if not self.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, EngineError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class VllmEngine:
    """One replica: a process that vLLM runs in, started with ``arguments`` of vLLM's EngineArgs.

    ``shapes`` are the learner's tensors by name, which every publish must bring; ``tied`` further names of theirs.
    ``resend`` gives the tensors of the version that is loaded once more: with it a process that died is started again,
    ``restarts`` times at most, and asked again for what it owed. Weights come with the first ``load_weights``; until
    then it refuses requests. Awake from the start.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        shapes: Mapping[str, Sequence[int]],
        tied: Mapping[str, str],
        stop_token_ids: Sequence[int],
        max_len: int,
        device: torch.device | str,
        resend: Callable[[], Buckets] | None = None,
        restarts: int = MOST_RESTARTS,
    ):
        self.device, self.max_len = torch.device(device), max_len
        self.stop_token_ids = frozenset(stop_token_ids)
        self.policy_version = 0
        self._start = Start(dict(arguments), whole_weights=self.device.type == "cpu")
        self._shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._tied = dict(tied)
        self._resend, self._restarts_left = resend, restarts
        self._sender = Sender(self.device)
        self._lock = threading.Lock()  # of the fields below
        self._calling = threading.Lock()  # one call waits for its answer at a time
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._pending: dict[str, Pending] = {}
        self._loaded = self._closed = False
        self._awake = True
        self._child: Child
        self._launch()
        atexit.register(self.close)

    # --- requests -------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Future[Completion]:
        """Queue a request; thread-safe. An EngineError at once if it cannot be served."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        """Queue requests that belong together, at once."""
        for request in requests:
            self._check(request)
        sent = [Pending(request, self._stops(request), Future()) for request in requests]
        with self._lock:
            self._refuse_unless_ready(requests[0])
            names = [request.id for request in requests]
            for place, name in enumerate(names):
                if name in self._pending or name in names[:place]:
                    raise EngineError(f"request id {name!r} is pending; give each request its own id")
            self._pending |= {one.request.id: one for one in sent}
            self._send_requests(sent)
        return [one.future for one in sent]

    async def generate(self, request: Request) -> Completion:
        """The completion of ``request``; cancelling the await aborts the request."""
        future = self.submit(request)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            await self.abort([request.id])
            raise

    async def abort(self, ids: Sequence[str]) -> None:
        """End these requests after the step in progress, with the tokens that they have."""
        with self._lock:
            there = tuple(id for id in ids if id in self._pending)
            if there:
                self._child.send(Abort(there))

    @property
    def pending(self) -> int:
        """Requests submitted and not answered."""
        return len(self._pending)

    def _check(self, request: Request) -> None:
        wanted, prompt = request.sampling.max_tokens, len(request.prompt_ids)
        if not prompt:
            raise EngineError(f"request {request.id!r} has an empty prompt; give it at least one token")
        if wanted < 1:
            raise EngineError(f"request {request.id!r}: max_tokens={wanted}; must be at least 1")
        if prompt + wanted > self.max_len:
            raise EngineError(
                f"request {request.id!r}: {prompt} prompt tokens plus max_tokens={wanted} exceed max_len={self.max_len}"
                "; lower data.max_prompt_length or data.max_response_length, or raise rollout.max_model_len"
            )

    def _refuse_unless_ready(self, request: Request) -> None:
        if self._closed:
            raise EngineError(f"request {request.id!r}: the engine was closed; make a new one")
        if not self._awake:
            raise EngineError(f"request {request.id!r}: the engine sleeps; call wake('cache') first")
        if not self._loaded:
            raise EngineError(f"request {request.id!r}: the engine has no weights; call load_weights first")

    def _stops(self, request: Request) -> tuple[int, ...]:
        """``ignore_eos`` sets the model's own stop tokens aside; a request's own still end it."""
        own = frozenset(request.sampling.stop_token_ids)
        return tuple(sorted(own if request.sampling.ignore_eos else own | self.stop_token_ids))

    def _send_requests(self, sent: Sequence[Pending]) -> None:
        if sent:
            self._child.send(Generate(tuple(one.request for one in sent), tuple(one.stops for one in sent)))

    # --- the process ----------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        """Start a process, and wait until vLLM is ready in it."""
        assert self._sender.file is not None or self.device.type == "cuda"
        self._child = Child(self.device, self._sender.file)
        try:
            self._child.send(self._start)
            reply = self._child.receive(_STARTS_WITHIN_S)
        except (EOFError, TimeoutError) as error:
            raise EngineError(f"vLLM did not start: {self._child.obituary(error)}") from error
        if reply.error is not None:
            self._child.end()
            raise EngineError(f"vLLM did not start: {reply.error}. Its last words:\n{self._child.last_words()}")
        threading.Thread(target=self._listen, args=(self._child,), name="vllm-engine", daemon=True).start()

    def _listen(self, child: Child) -> None:
        """Take what one process says, until it ends."""
        try:
            while True:
                message = child.receive()
                if isinstance(message, Reply):
                    self._replies.put(message)
                elif isinstance(message, Done):
                    self._answer(message)
                else:
                    self._refused(message)
        except EOFError as error:
            self._died(child, error)

    def _answer(self, done: Done) -> None:
        for id, tokens, log_probs, reason in done.ended:
            with self._lock:
                one = self._pending.pop(id)
            one.settle(Completion(id, tokens, log_probs, reason, self.policy_version))

    def _refused(self, message: Refused) -> None:
        with self._lock:
            one = self._pending.pop(message.id)
        one.settle(EngineError(f"request {message.id!r}: vLLM refused it: {message.error}"))

    def _died(self, child: Child, cause: BaseException) -> None:
        """Start another and ask it again for what is owed, if that can be; else everybody who waits is told."""
        with self._lock:
            if self._closed:
                return
            why = child.obituary(cause)
            pending = list(self._pending.values())
            if not pending:
                self._loaded = False
        self._replies.put(Reply(error=why))  # for a call that waits; one that does not throws it away
        if not pending:
            return
        logger.warning("vLLM ended while %d requests were pending: %s", len(pending), why)
        try:
            self._begin_again()
        except Exception as error:
            with self._lock:
                self._loaded = False
                lost, self._pending = list(self._pending.values()), {}
            for one in lost:
                one.settle(EngineError(f"vLLM ended and was not started again ({error}): {why}"))

    def _begin_again(self) -> None:
        if self._resend is None:
            raise EngineError("its weights cannot be sent by one rank of several")
        if self._restarts_left < 1:
            raise EngineError("that was tried as often as it may be")
        self._restarts_left -= 1
        with self._calling:
            self._launch()
            self._take(self._resend())
            self._call(Call("loaded", self.policy_version))
        with self._lock:
            self._send_requests(list(self._pending.values()))
        logger.warning("vLLM was started again, given version %d, and asked again", self.policy_version)

    def _call(self, call: Call) -> Any:
        """Say something and wait for its answer. ``_calling`` is held."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._replies.get_nowait()  # of a process that ended when nobody waited
        self._child.send(call)
        reply = self._replies.get()
        if reply.error is not None:
            raise EngineError(f"{call.what}: vLLM: {reply.error}")
        return reply.value

    # --- weights and memory ---------------------------------------------------------------------------------------

    async def load_weights(self, version: int, buckets: Buckets | None) -> Fingerprint:
        """Take policy ``version`` from ``buckets``, which bring every tensor of the learner once, under its name.

        Names and shapes are compared first, a bucket at a time, and nothing of a bucket with a fault is taken. The
        checksums are of vLLM's own tensors, read back under the learner's names.
        """
        if buckets is None:
            raise EngineError("load_weights(None): a vLLM engine has a memory of its own; send it buckets")
        with self._calling:
            self._refuse_if_pending("load_weights")
            with self._lock:
                self._loaded = False  # until they are all there
            self._revive()
            self._take(buckets)
            held = self._call(Call("loaded", version))
            with self._lock:
                self.policy_version, self._loaded = version, True
        return Fingerprint(version, held)

    def _take(self, buckets: Buckets) -> None:
        missing = set(self._shapes)
        try:
            for bucket in buckets:
                self._call(Call("load", self._sender.pack(dict(self._known(bucket)))))
                missing -= {self._tied.get(name, name) for name in bucket}
        finally:
            self._sender.release()
        if missing:
            some = ", ".join(sorted(missing)[:5])
            raise EngineError(f"load_weights: {len(missing)} tensors never came: {some}; send every parameter")

    def _known(self, bucket: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in bucket.items():
            shape = self._shapes.get(self._tied.get(name, name))
            if shape is None:
                raise EngineError(f"load_weights: the engine's model has no tensor {name!r}; export its own names")
            if shape != tuple(tensor.shape):
                shapes = f"{tuple(tensor.shape)}, not {shape}"
                raise EngineError(f"load_weights: {name!r} comes as {shapes}; was the model changed?")
            yield self._tied.get(name, name), tensor

    def _revive(self) -> None:
        """A process that died when nothing was asked of it is started anew for the next weights."""
        if self._child.alive:
            return
        if self._restarts_left < 1:
            raise EngineError(f"vLLM ended too often: {self._child.obituary()}")
        self._restarts_left -= 1
        logger.warning("vLLM ended between two rollouts and is started again: %s", self._child.obituary())
        self._launch()
        self._awake = True

    async def sleep(self) -> None:
        """Give the KV cache's memory back, and on a GPU keep the weights in the machine's memory meanwhile."""
        with self._calling:
            self._refuse_if_pending("sleep")
            if self._awake and self._child.alive and self._start.arguments.get("enable_sleep_mode"):
                self._call(Call("sleep"))
            with self._lock:
                self._awake = False

    async def wake(self, what: Literal["weights", "cache"]) -> None:
        """Take memory again, for the weights first. Without memory for it, an EngineError; try again with more."""
        if what not in ("weights", "cache"):
            raise EngineError(f"wake({what!r}): choose 'weights' or 'cache'")
        with self._calling:
            if not self._awake and self._child.alive and self._start.arguments.get("enable_sleep_mode"):
                self._call(Call("wake", "weights" if what == "weights" else "kv_cache"))
            if what == "cache":
                with self._lock:
                    self._awake = True

    def close(self) -> None:
        """End the process; pending requests fail."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            lost, self._pending = list(self._pending.values()), {}
        for one in lost:
            one.settle(EngineError("the engine was closed while requests were pending"))
        self._child.end()
        self._sender.close()
        atexit.unregister(self.close)

    def _refuse_if_pending(self, what: str) -> None:
        if self._pending:
            some = ", ".join(list(self._pending)[:3])
            raise EngineError(
                f"{what}: {len(self._pending)} requests are pending ({some}, ...); await or abort them first"
            )
