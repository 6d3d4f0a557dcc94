"""The engine of one rank as the driver sees it, with requests that travel together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from laurel.types import Completion, Request
from laurel.workers.group import Handle, WorkerGroup
from laurel.workers.session import Say
from laurel.workers.waiting import next_reply


class RolloutClient:
    """The part of the Engine protocol that concerns requests, for one rank. Those issued in one tick of the event loop
    travel in one call, whose reply streams back as completions finish. Weights, sleep and wake are the WeightsClient's,
    for all ranks at once.
    """

    def __init__(self, handle: Handle, *, say: Say = print):
        self.handle, self.say = handle, say
        self._issued: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._streams: set[asyncio.Task[None]] = set()

    async def generate(self, request: Request) -> Completion:
        """Raises WorkerError or the rank's own LaurelError if the rank fails."""
        loop = asyncio.get_running_loop()
        if not self._issued:
            loop.call_soon(self._send)
        future: asyncio.Future[Completion] = loop.create_future()
        self._issued.append((request, future))
        return await future

    async def abort(self, ids: Sequence[str]) -> None:
        """The named requests end now, with what they have and finish_reason "abort"."""
        await self.handle.actor.abort.remote(list(ids))

    def _send(self) -> None:
        issued, self._issued = self._issued, []
        task = asyncio.get_running_loop().create_task(self._receive(issued))
        self._streams.add(task)  # the loop keeps only a weak reference
        task.add_done_callback(self._streams.discard)

    async def _receive(self, issued: list[tuple[Request, asyncio.Future[Completion]]]) -> None:
        waiting = {request.id: future for request, future in issued}
        try:
            if len(waiting) != len(issued):
                raise ValueError(f"{len(issued) - len(waiting)} requests share an id with another")
            requests = [request for request, _ in issued]
            stream = self.handle.actor.generate.remote(requests)
            while waiting:
                what = f"{len(waiting)} of {len(issued)} completions"
                for completion in await next_reply(stream, self.handle.member, what, say=self.say):
                    future = waiting.pop(completion.request_id)
                    if not future.done():  # done: whoever asked has gone
                        future.set_result(completion)
        except Exception as error:
            for _, future in issued:
                if not future.done():
                    future.set_exception(error)


def rollout_clients(group: WorkerGroup, *, say: Say = print) -> list[RolloutClient]:
    """One engine per rank, in rank order."""
    return [RolloutClient(handle, say=say) for handle in group.handles]
