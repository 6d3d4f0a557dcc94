import pytest

from laurel.trainer.run_state import RunState
from laurel.types import LaurelError


def test_save_and_load_are_exact(tmp_path):
    state = RunState(step=7, consumed=56, policy_version=9, kl_coef=0.1 + 0.2)
    state.save(tmp_path)
    restored = RunState()
    restored.restore(tmp_path)
    assert restored == state


def test_versions_count_up():
    state = RunState(policy_version=4)
    assert (state.next_version(), state.next_version(), state.policy_version) == (5, 6, 6)


def test_an_unknown_field_is_not_passed_over(tmp_path):
    (tmp_path / "run_state.json").write_text('{"step": 1, "stepp": 2}')
    with pytest.raises(LaurelError, match="stepp"):
        RunState().restore(tmp_path)
