import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[False, True], ids=["slots", "paged"])
def engine(request):
    """Makes engines, and closes them after the test: of either kind, which must answer alike."""
    from laurel.rollout.native.engine import NativeEngine

    made = []

    def make(module, *, max_slots=4, max_len=96, stop_token_ids=(), **more):
        more = {"paged": request.param, **more}
        made.append(NativeEngine(module, max_slots=max_slots, max_len=max_len, stop_token_ids=stop_token_ids, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()
