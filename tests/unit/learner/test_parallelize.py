import pytest

from laurel.learner.parallelize import shard_groups


def test_shard_groups():
    assert shard_groups(4, -1) == (1, 4)
    assert shard_groups(4, 2) == (2, 2)
    assert shard_groups(4, 1) == (4, 1)
    assert shard_groups(4, 8) == (1, 4)
    with pytest.raises(ValueError, match="fsdp_size=3 does not divide 4 ranks"):
        shard_groups(4, 3)
