"""Which node this is, from each platform's variables."""

import pytest

from laurel.launch.cluster.place import Place, expand, read_place
from laurel.types import LaurelError


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("node1", ["node1"]),
        ("gpu[01-03,7]x,login", ["gpu01x", "gpu02x", "gpu03x", "gpu7x", "login"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("x3c0s9,gpu-b[9-11]", ["x3c0s9", "gpu-b9", "gpu-b10", "gpu-b11"]),
        ("", []),
    ],
)
def test_slurms_lists_of_hosts(nodelist, names):
    assert expand(nodelist) == names


SLURM = {"SLURM_PROCID": "1", "SLURM_NNODES": "3", "SLURM_JOB_NODELIST": "gpu[8-10]", "SLURM_JOB_ID": "42"}


def test_slurm():
    place = read_place("slurm", SLURM | {"SLURM_GPUS_ON_NODE": "8", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"})
    assert place == Place(1, 3, ("gpu8", "10.0.0.1"), "slurm/42/0", ("gpu8", "gpu9", "gpu10"), 8)
    assert place.name_of(2) == "gpu10 (rank 2)"
    assert read_place("slurm", SLURM | {"SLURM_RESTART_COUNT": "1"}).job != place.job, "a requeued job is another one"


def test_skypilot():
    environ = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n", "SKYPILOT_TASK_ID": "t-1"}
    environ["SKYPILOT_NUM_GPUS_PER_NODE"] = "1"
    assert read_place("skypilot", environ) == Place(0, 2, ("10.0.0.1",), "skypilot/t-1", ("10.0.0.1", "10.0.0.2"), 1)


def test_dstack():
    environ = {"DSTACK_NODE_RANK": "1", "DSTACK_NODES_NUM": "2", "DSTACK_MASTER_NODE_IP": "10.0.0.1"}
    environ |= {"DSTACK_RUN_NAME": "run", "DSTACK_NODES_IPS": "10.0.0.1\n10.0.0.2"}
    assert read_place("dstack", environ) == Place(1, 2, ("10.0.0.1",), "dstack/run", ("10.0.0.1", "10.0.0.2"), None)


@pytest.mark.parametrize(
    ("platform", "environ", "message"),
    [
        ("slurm", {}, "SLURM_PROCID is not set"),
        ("slurm", SLURM | {"SLURM_STEP_NUM_TASKS": "6"}, "SLURM_STEP_NUM_TASKS=6 on 3 nodes: one task a node"),
        ("skypilot", {"SKYPILOT_NODE_RANK": "x"}, "SKYPILOT_NODE_RANK=x is no number"),
        ("skypilot", {"SKYPILOT_NODE_RANK": "0"}, "SKYPILOT_NODE_IPS is not set"),
        ("dstack", {"DSTACK_NODE_RANK": "0", "DSTACK_NODES_NUM": "2"}, "DSTACK_MASTER_NODE_IP is not set"),
    ],
)
def test_what_is_missing_is_named(platform, environ, message):
    with pytest.raises(LaurelError, match=message):
        read_place(platform, environ)
