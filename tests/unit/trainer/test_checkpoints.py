import json

import pytest

from laurel.config.load import load
from laurel.trainer.checkpoints import config_changes, require_shards
from laurel.types import LaurelError


def test_changed_settings_are_named_with_both_values():
    old = load(["actor_rollout_ref.actor.optim.lr=1e-6", "trainer.device=cpu"]).config.model_dump(mode="json")
    new = load(["actor_rollout_ref.actor.optim.lr=1e-5", "trainer.device=cpu"]).config
    assert config_changes(old, new) == [
        "actor_rollout_ref.actor.optim.lr: 1e-06 in the checkpoint, now 1e-05 (this one counts)"
    ]


def write_state(folder, shards: int) -> None:
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"format_version": 1, "shards": shards}))


def test_shards_on_another_nodes_disk_are_missed_when_saving(tmp_path):
    write_state(tmp_path / "actor", 2)
    (tmp_path / "actor" / "shard-00000-of-00002.safetensors").touch()
    with pytest.raises(LaurelError, match=r"lacks shard-00001-of-00002.safetensors .* trainer.default_local_dir"):
        require_shards(tmp_path)
    (tmp_path / "actor" / "shard-00001-of-00002.safetensors").touch()
    require_shards(tmp_path)
