import asyncio
from types import SimpleNamespace

from ray.exceptions import ActorDiedError

from laurel.types import Completion, Request, SamplingParams
from laurel.workers.rollout_client import RolloutClient
from laurel.workers.waiting import Member, WorkerError

MEMBER = Member(0, "10.0.0.1", "n", "h", 7, "cpu", 1)


def request(name):
    return Request(name, (1, 2), SamplingParams(max_tokens=4), seed=0)


class FakeActor:
    """Answers the requests of a call in reverse, one by one; ``dies_after`` replies it is dead."""

    def __init__(self, dies_after=99):
        self.calls, self.aborted, self.dies_after = [], [], dies_after
        self.generate = SimpleNamespace(remote=self._generate)
        self.abort = SimpleNamespace(remote=self._abort)

    async def _generate(self, requests):
        self.calls.append([one.id for one in requests])
        for count, one in enumerate(reversed(requests)):
            yield self._reply(one, count)

    async def _reply(self, one, count):
        await asyncio.sleep(0)
        if count >= self.dies_after:
            raise ActorDiedError()
        return [Completion(one.id, (5,), (-1.0,), "stop", 3)]

    async def _abort(self, ids):
        self.aborted += ids


def client(actor):
    return RolloutClient(SimpleNamespace(actor=actor, member=MEMBER))


def test_requests_of_one_tick_travel_together_and_each_gets_its_own_completion():
    actor = FakeActor()
    engine = client(actor)

    async def use():
        first = await asyncio.gather(*[engine.generate(request(name)) for name in "abc"])
        later = await engine.generate(request("d"))
        return [*first, later]

    assert [completion.request_id for completion in asyncio.run(use())] == ["a", "b", "c", "d"]
    assert actor.calls == [["a", "b", "c"], ["d"]]


def test_a_dead_rank_fails_what_waits_for_it_and_keeps_what_came():
    engine = client(FakeActor(dies_after=1))

    async def use():
        return await asyncio.gather(*[engine.generate(request(name)) for name in "abc"], return_exceptions=True)

    a, b, c = asyncio.run(use())
    assert c.request_id == "c"
    for error in (a, b):
        assert isinstance(error, WorkerError)
        assert str(error).startswith("rank 0 on node 10.0.0.1 (pid 7) died in 2 of 3 completions")


def test_a_request_that_nobody_waits_for_any_more_does_not_hurt_the_others():
    engine = client(FakeActor())

    async def use():
        gone = asyncio.ensure_future(engine.generate(request("gone")))
        kept = asyncio.ensure_future(engine.generate(request("kept")))
        await asyncio.sleep(0)
        gone.cancel()
        return await kept

    assert asyncio.run(use()).request_id == "kept"


def test_an_id_used_twice_is_an_error_of_all_that_travelled_with_it():
    engine = client(FakeActor())

    async def use():
        return await asyncio.gather(*[engine.generate(request(name)) for name in "aa"], return_exceptions=True)

    assert [str(error) for error in asyncio.run(use())] == ["1 requests share an id with another"] * 2


def test_abort_goes_to_the_rank():
    actor = FakeActor()
    asyncio.run(client(actor).abort(("a", "b")))
    assert actor.aborted == ["a", "b"]
