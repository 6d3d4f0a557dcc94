import asyncio

import pytest
from tiny_models import request

from laurel.rollout.engine import EngineError
from laurel.rollout.pool import EnginePool
from laurel.types import Completion


class Recorder:
    def __init__(self):
        self.asked, self.aborted = [], []

    async def generate(self, one):
        self.asked.append(one.id)
        return Completion(one.id, (1,), (0.0,), "stop", 0)

    async def abort(self, ids):
        self.aborted += ids


def test_a_prompt_and_its_samples_go_to_the_replica_of_its_position():
    engines = [Recorder() for _ in range(3)]
    pool = EnginePool(engines)

    async def all_of_them():
        calls = [pool.generate(position, request(f"{position}/{s}", (1,))) for s in (1, 0) for position in range(5)]
        await asyncio.gather(*calls)
        await pool.abort(["4/0"])

    asyncio.run(all_of_them())
    assert [sorted(engine.asked) for engine in engines] == [
        ["0/0", "0/1", "3/0", "3/1"],
        ["1/0", "1/1", "4/0", "4/1"],
        ["2/0", "2/1"],
    ]
    assert [engine.aborted for engine in engines] == [["4/0"]] * 3


def test_no_engine_is_an_error():
    with pytest.raises(EngineError, match="at least one engine"):
        EnginePool([])
