"""NativeEngine: the engine protocol over slots, with one thread of its own that steps while requests are pending."""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Literal

import torch
from torch import Tensor, nn

from laurel.models.decoder import Decoder, NotServed
from laurel.models.packed_linear import PackedLinears
from laurel.models.paged import PAGE, PagedCache, pages_for
from laurel.models.slots import SlotCache, cache_shape, serving
from laurel.rollout.engine import EngineError
from laurel.rollout.native.batch import Batch, Counters
from laurel.rollout.native.paged_batch import PagedBatch
from laurel.rollout.native.state import MOST_STOPS
from laurel.rollout.native.waiting import Sequence as Pending
from laurel.rollout.native.waiting import Waiting
from laurel.types import Completion, Fingerprint, FinishReason, Request
from laurel.weights.fingerprint import fingerprint

logger = logging.getLogger("laurel")
# Requests of one batch come one by one. An idle engine starts when none came for this long, so that it admits them
# together and computes a shared prompt once.
_QUIET_S = 0.002
_LONGEST_GATHER_S = 0.05
# Laying the weights out for the CPU's kernels takes as long as about ten decoding steps gain by it.
_PACK_FROM_TOKENS = 16
_SHRINK = 0.7  # of the cache's tokens that are left when memory ran out
_MOST_SHRUNK = 3


class NativeEngine:
    """Continuous batching over ``max_slots`` slots of at most ``max_len`` tokens, on the module that it is given.

    On a GPU a Llama-like model decodes in CUDA graphs over a paged cache of ``cache_tokens`` tokens; elsewhere, and for
    other models, through its own forward pass over whole slots. ``paged`` decides between them; None as said.
    ``module`` is a Hugging Face causal language model; it may be the learner's own, which must not be used while
    requests are pending. ``prefill_tokens`` bounds the prompt tokens of one forward. Awake from the start.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        max_slots: int,
        max_len: int,
        stop_token_ids: Sequence[int],
        prefill_tokens: int = 8192,
        cache_tokens: int | None = None,
        paged: bool | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        cache_tokens = cache_tokens or max_slots * pages_for(max_len) * PAGE
        for name, value in (
            ("max_slots", max_slots),
            ("max_len", max_len),
            ("prefill_tokens", prefill_tokens),
            ("cache_tokens", cache_tokens),
        ):
            if value < 1:
                raise EngineError(f"{name}={value}: must be at least 1")
        parameter = next(module.parameters())
        self.module, self.max_slots, self.max_len = module, max_slots, max_len
        self.stop_token_ids, self.prefill_tokens = frozenset(stop_token_ids), prefill_tokens
        self.cache_tokens = cache_tokens
        self.dtype, self.device = dtype or parameter.dtype, torch.device(device or parameter.device)
        self.policy_version = 0
        self.counters = Counters(max_slots)
        self._linears = PackedLinears(module)
        self._shape = cache_shape(module, max_len)
        self._decoder = self._decoder_of(module, paged)
        self._threads = torch.get_num_threads()
        self._changed = threading.Condition()
        self._waiting = Waiting()
        self._batch: Batch | PagedBatch | None = None
        self._pending: dict[str, Pending] = {}
        self._aborted: set[str] = set()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._shrunk = 0
        self._allocate()

    # --- requests -------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Future[Completion]:
        """Queue a request; thread-safe. An EngineError at once if it cannot be served."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        """Queue requests that belong together, at once."""
        for request in requests:
            self._check(request)
        sequences = [Pending(request, self._stops(request)) for request in requests]
        with self._changed:
            if self._batch is None:
                raise EngineError(f"request {requests[0].id!r}: the engine sleeps; call wake('cache') first")
            if self._closed:
                raise EngineError(f"request {requests[0].id!r}: the engine was closed; make a new one")
            for sequence in sequences:
                if self._pending.setdefault(sequence.request.id, sequence) is not sequence:
                    for other in sequences:
                        if self._pending.get(other.request.id) is other:
                            del self._pending[other.request.id]
                    raise EngineError(f"request id {sequence.request.id!r} is pending; give each request its own id")
            for sequence in sequences:
                self._waiting.add(sequence)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="native-engine", daemon=True)
                self._thread.start()
                atexit.register(self.close)  # a thread inside torch when the interpreter ends would abort the process
            self._changed.notify_all()
        return [sequence.future for sequence in sequences]

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
        with self._changed:
            self._aborted.update(self._pending.keys() & set(ids))
            self._changed.notify_all()

    @property
    def batch_kind(self) -> Literal["slots", "paged"]:
        """Whether sequences lie in whole slots, through the module's own forward pass, or in pages."""
        return "slots" if self._decoder is None else "paged"

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
        stops = len(self._stops(request))
        if self._decoder is not None and stops > MOST_STOPS:
            raise EngineError(f"request {request.id!r} has {stops} stop tokens; at most {MOST_STOPS} are looked for")
        if prompt + wanted > self.max_len:
            raise EngineError(
                f"request {request.id!r}: {prompt} prompt tokens plus max_tokens={wanted} exceed max_len={self.max_len}"
                "; lower data.max_prompt_length or data.max_response_length, or raise rollout.max_model_len"
            )

    def _stops(self, request: Request) -> frozenset[int]:
        """``ignore_eos`` sets the model's own stop tokens aside; a request's own still end it."""
        own = frozenset(request.sampling.stop_token_ids)
        return own if request.sampling.ignore_eos else own | self.stop_token_ids

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # a new thread may not have what its parent set
        if self.device.index is not None:
            torch.cuda.set_device(self.device)
        while self._gather():
            short: torch.OutOfMemoryError | None = None
            try:
                self._pack_if_it_pays()
                with torch.inference_mode(), serving(self.module), self._linears.used():
                    ended = self._step()
                    while self._pending:
                        self._answer(ended)
                        ended = self._step()
                # The last answers come when the module is as the learner left it: who waits may train at once.
                self._answer(ended)
            except torch.OutOfMemoryError as error:
                short = error.with_traceback(None)  # which would hold on to the failed step's tensors
            except BaseException as error:
                self._fail(error)
            if short is not None and not self._begin_again_smaller():
                self._fail(short)

    def _pack_if_it_pays(self) -> None:
        """Lay weights out for a rollout of many steps; a short one uses them if they are."""
        if max(one.request.sampling.max_tokens for one in list(self._pending.values())) >= _PACK_FROM_TOKENS:
            self._linears.pack()

    def _gather(self) -> bool:
        """Wait for requests, and then until no more come; False if the engine is closed."""
        with self._changed:
            while not self._pending and not self._closed:
                self._changed.wait()
            deadline = time.monotonic() + _LONGEST_GATHER_S
            before = 0
            while before < self._waiting.count and time.monotonic() < deadline and not self._closed:
                before = self._waiting.count
                self._changed.wait_for(lambda: self._closed, _QUIET_S)
            return not self._closed

    def _step(self) -> list[tuple[Pending, FinishReason]]:
        """One step of the batch; the sequences that ended and are pending no longer."""
        batch = self._batch
        assert batch is not None, "sleep() is refused while requests are pending"
        ended: list[tuple[Pending, FinishReason]] = []
        with self._changed:
            if self._closed:
                raise EngineError("the engine was closed while requests were pending")
            aborted, self._aborted = frozenset(self._aborted), set()
            if aborted:
                ended += [(sequence, "abort") for sequence in self._waiting.remove(aborted)]
                ended += [(sequence, "abort") for sequence in batch.drop(aborted)]
            admitted = batch.admit(self._waiting)
        if admitted or batch.live:
            ended += batch.step(admitted)
        with self._changed:
            for sequence, _ in ended:
                del self._pending[sequence.request.id]
            for sequence in batch.preempted:
                self._waiting.add_first(sequence)
            batch.preempted.clear()
            self._aborted.intersection_update(self._pending)
        return ended

    def _answer(self, ended: list[tuple[Pending, FinishReason]]) -> None:
        for sequence, reason in ended:
            sequence.finish(reason, self.policy_version)

    def _begin_again_smaller(self) -> bool:
        """After memory ran out: a smaller cache and smaller prefills, and all pending requests anew, which get the same
        tokens. False if that was tried often enough, or is not possible."""
        with self._changed:
            if self._decoder is None or self._shrunk >= _MOST_SHRUNK:
                return False
            self._shrunk += 1
            self._batch = None
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self.prefill_tokens = max(1024, self.prefill_tokens // 2)
            self.cache_tokens = max(pages_for(self.max_len) * PAGE, int(_SHRINK * self.cache_tokens))
            self._allocate()
            self._waiting.clear()
            for sequence in self._pending.values():
                self._waiting.add(sequence)
        logger.warning(
            "the GPU's memory ran out while sampling: it goes on with a KV cache of %s tokens and prefills of %s. Lower"
            " rollout.gpu_memory_utilization to spare it that",
            f"{self.cache_tokens:,}",
            f"{self.prefill_tokens:,}",
        )
        return True

    def _fail(self, error: BaseException) -> None:
        """Tell everybody who waits; the engine is empty and usable afterwards."""
        with self._changed:
            sequences = list(self._pending.values())
            self._waiting.clear()
            self._pending.clear()
            self._aborted.clear()
            if self._batch is not None:
                self._batch.forget()
        for sequence in sequences:
            sequence.fail(error)

    # --- weights and memory ---------------------------------------------------------------------------------------

    async def load_weights(self, version: int, buckets: Iterable[Mapping[str, Tensor]] | None) -> Fingerprint:
        """Take policy ``version``: ``buckets`` copied in place into the module's parameters, or None if they are there.

        Every parameter must come exactly under its name in the module; a tied one may come under any of its names.
        """
        self._refuse_if_pending("load_weights")
        if buckets is not None:
            self._copy_in(buckets)
        self._linears.forget()
        self.policy_version = version
        return fingerprint(self.module.named_parameters(), version)

    def _copy_in(self, buckets: Iterable[Mapping[str, Tensor]]) -> None:
        own = dict(self.module.named_parameters(remove_duplicate=False))
        missing = {name for name, _ in self.module.named_parameters()}
        names_of: dict[int, str] = {id(parameter): name for name, parameter in self.module.named_parameters()}
        with torch.no_grad():
            for bucket in buckets:
                for name, tensor in bucket.items():
                    if name not in own:
                        raise EngineError(
                            f"load_weights: the engine's module has no tensor {name!r}; export its own names"
                        )
                    if own[name].shape != tensor.shape:
                        shapes = f"{tuple(tensor.shape)}, not {tuple(own[name].shape)}"
                        raise EngineError(f"load_weights: {name!r} comes as {shapes}; was the model changed?")
                    own[name].copy_(tensor)
                    missing.discard(names_of[id(own[name])])
        if missing:
            some = ", ".join(sorted(missing)[:5])
            raise EngineError(f"load_weights: {len(missing)} tensors never came: {some}; send every parameter")

    async def sleep(self) -> None:
        """Free the KV cache, and on a CPU the packed weights."""
        with self._changed:
            self._refuse_if_pending("sleep")
            self._batch = None  # and with it the graphs, which hold addresses
            self._linears.forget()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    async def wake(self, what: Literal["weights", "cache"]) -> None:
        """Allocate the KV cache again. Weights never leave: they are the module's."""
        if what not in ("weights", "cache"):
            raise EngineError(f"wake({what!r}): choose 'weights' or 'cache'")
        if what == "cache" and self._batch is None:
            self._allocate()

    def close(self) -> None:
        """End the thread; pending requests fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            atexit.unregister(self.close)

    def _decoder_of(self, module: nn.Module, paged: bool | None) -> Decoder | None:
        """The fast forward pass on a GPU, if there is one for this model."""
        if paged is False or (paged is None and self.device.type != "cuda"):
            return None
        try:
            return Decoder(module, self.max_len)
        except NotServed as reason:
            if paged:
                raise
            logger.warning(
                "%s decodes several times slower than it could, through its own forward pass: %s",
                type(module).__name__,
                reason,
            )
            return None

    def _allocate(self) -> None:
        if self._decoder is not None:
            # One page is nobody's, and one lets a prompt be copied for the last of its samples
            pages = min(self.cache_tokens // PAGE, self.max_slots * pages_for(self.max_len)) + 2
            paged = PagedCache(self._shape, pages=pages, dtype=self.dtype, device=self.device)
            self._batch = PagedBatch(
                self._decoder, paged, self.max_slots, self.max_len, self.prefill_tokens, self.counters
            )
            return
        cache = SlotCache(self._shape, slots=self.max_slots, max_len=self.max_len, dtype=self.dtype, device=self.device)
        self._batch = Batch(self.module, cache, self.prefill_tokens, self.counters)

    def _refuse_if_pending(self, what: str) -> None:
        if self._pending:
            some = ", ".join(list(self._pending)[:3])
            raise EngineError(
                f"{what}: {len(self._pending)} requests are pending ({some}, ...); await or abort them first"
            )
