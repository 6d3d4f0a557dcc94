"""The process of one vLLM replica: ``python -m laurel.rollout.vllm.process FD``, with a connected socket as FD.

It ends when the socket does, or when its parent is gone. vLLM runs in it without a further process (with tensor
parallelism, without a further one but its workers), so that nothing but the socket is waited for.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from laurel.rollout.vllm.messages import Abort, Call, Done, Generate, Refused, Reply, Start
from laurel.types import FinishReason, Request
from laurel.weights.parcels import Parcel

_LOOKS_EVERY_S = 1.0


@dataclass
class Running:
    """What a request has got so far."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


class Replica:
    """vLLM's engine, and what is said over the connection."""

    def __init__(self, connection: Connection, start: Start):
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        if start.whole_weights:
            _keep_weights_whole()
        self.connection = connection
        self.engine: Any = LLMEngine.from_engine_args(EngineArgs(**start.arguments))
        self._tell("laurel_prepare")
        self.running: dict[str, Running] = {}
        self.version = -1

    def run(self) -> None:
        """Until the connection ends. Messages are looked for between the steps."""
        while True:
            while not self.running or self.connection.poll():
                try:
                    self._hear(self.connection.recv())
                except EOFError:
                    return
            self._step()

    def _hear(self, message: Generate | Abort | Call) -> None:
        if isinstance(message, Generate):
            for request, stops in zip(message.requests, message.stops, strict=True):
                self._add(request, stops)
        elif isinstance(message, Abort):
            self._abort(message.ids)
        else:
            try:
                value = self._do(message)
            except Exception as error:
                traceback.print_exc()
                self.connection.send(Reply(error=_line(error)))
            else:
                self.connection.send(Reply(value))

    # --- requests -------------------------------------------------------------------------------------------------

    def _add(self, request: Request, stops: tuple[int, ...]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from laurel.rollout.vllm.sampler import extra_args

        # Temperature, top-k and top-p are the sampler's, which has them from extra_args
        params = SamplingParams(
            max_tokens=request.sampling.max_tokens,
            temperature=1.0,
            stop_token_ids=list(stops),
            ignore_eos=True,  # stops has all that end it
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=extra_args(request.sampling, request.seed),
        )
        # The salt keeps blocks of another policy's prompts from being found again
        prompt = {"prompt_token_ids": list(request.prompt_ids), "cache_salt": f"version {self.version}"}
        try:
            self.engine.add_request(request.id, prompt, params)
        except Exception as error:
            traceback.print_exc()
            self.connection.send(Refused(request.id, _line(error)))
        else:
            self.running[request.id] = Running()

    def _abort(self, ids: tuple[str, ...]) -> None:
        there = [id for id in ids if id in self.running]
        if there:
            self.engine.abort_request(there)
            self._send_done([(id, self.running.pop(id), "abort") for id in there])

    def _step(self) -> None:
        ended: list[tuple[str, Running, FinishReason]] = []
        for output in self.engine.step():
            so_far = self.running.get(output.request_id)
            if so_far is None:
                continue  # aborted while the step was under way
            (new,) = output.outputs
            so_far.tokens += new.token_ids
            so_far.log_probs += [
                entry[token].logprob for token, entry in zip(new.token_ids, new.logprobs or (), strict=True)
            ]
            if output.finished:
                del self.running[output.request_id]
                ended.append((output.request_id, so_far, "stop" if new.finish_reason == "stop" else "length"))
        if ended:
            self._send_done(ended)

    def _send_done(self, ended: list[tuple[str, Running, FinishReason]]) -> None:
        self.connection.send(
            Done(tuple((id, tuple(one.tokens), tuple(one.log_probs), reason) for id, one, reason in ended))
        )

    # --- weights and memory ---------------------------------------------------------------------------------------

    def _do(self, call: Call) -> Any:
        if call.what == "load":
            assert isinstance(call.argument, Parcel)
            return self._tell("laurel_load", call.argument)
        if call.what == "loaded":
            assert isinstance(call.argument, int)
            self.version = call.argument
            self.engine.reset_prefix_cache()
            return self._tell("laurel_checksums")
        if call.what == "sleep":
            return self.engine.sleep(level=1)
        return self.engine.wake_up(tags=[call.argument])

    def _tell(self, method: str, *args: Any) -> Any:
        """Call a method of LaurelWorker on every worker; the first one's answer."""
        return self.engine.collective_rpc(method, args=args)[0]


def _keep_weights_whole() -> None:
    """vLLM's kernels for CPUs put the weights away in a layout of their own and free what they came from, so that
    nothing can be loaded in place and nothing compared. Without them it multiplies by torch, and is as good a test."""
    from torch.nn.functional import linear
    from vllm.model_executor.layers import utils

    def leave(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = linear

    utils.dispatch_cpu_unquantized_gemm = leave


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no more was said'}"


def _end_with(parent: int) -> None:
    """A step may be waiting for a GPU when the parent is killed, and then nobody reads the connection's end."""
    while os.getppid() == parent:
        time.sleep(_LOOKS_EVERY_S)
    os._exit(1)


def main() -> int:
    threading.Thread(target=_end_with, args=(os.getppid(),), name="parent", daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    try:
        replica = Replica(connection, connection.recv())
    except EOFError:
        return 0
    except Exception as error:
        traceback.print_exc()
        connection.send(Reply(error=_line(error)))
        return 1
    connection.send(Reply())
    replica.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
