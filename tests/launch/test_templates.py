"""Files for SkyPilot and dstack: read by the platforms' own packages, their commands run on two hosts.

The hosts have the variables that the platform sets there; the platforms themselves are in test_platforms.py.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launch.environments import DSTACK, SKYPILOT, needs_dstack, needs_skypilot
from launch.hosts import REPOSITORY
from laurel.launch.render import render
from laurel.launch.spec import Job, SkyPilotOptions

TUTORIAL = REPOSITORY / "examples" / "tutorial"
SECRETS = {"LAUREL_CLUSTER_TOKEN": "a-secret-of-this-test-" + "x" * 20}
READ_SKYPILOT = """
import json, sys, sky, yaml
found = []
for path in sys.argv[1:]:
    config = yaml.safe_load(open(path))
    given = [(name, "value") for name in config["secrets"]]  # as --secret NAME gives them
    task = sky.Task.from_yaml_config(config, secrets_overrides=given)
    [resources] = task.resources
    found.append([task.name, task.num_nodes, resources.accelerators, resources.memory, sorted(task.secrets)])
    found[-1].append({target: storage.mode.value for target, storage in task.storage_mounts.items()})
print(json.dumps(found))
"""
READ_DSTACK = """
import json, sys, yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
found = []
for path in sys.argv[1:]:
    task = parse_apply_configuration(yaml.safe_load(open(path)))
    gpu = task.resources.gpu
    found.append([task.name, task.nodes, gpu.memory.min, gpu.count.min, task.resources.shm_size, sorted(task.env)])
print(json.dumps(found))
"""


def read_by(python: Path, program: str, paths: list[Path], home: Path) -> list:
    """What the platform's own package reads out of these files, with its values as JSON."""
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin", "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    words = [python, "-c", program, *paths]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_skypilot_reads_its_tutorial_files(tmp_path):
    if reason := needs_skypilot():
        pytest.skip(reason)
    names = ["ppo_gsm8k", "grpo_math"]
    files = []
    for name in names:  # what lies on this machine is looked for when the file is read
        settings = yaml.safe_load((TUTORIAL / "skypilot" / f"{name}.yaml").read_text())
        settings["workdir"] = str(tmp_path)
        settings["file_mounts"] = {
            target: str(tmp_path) if isinstance(source, str) else source
            for target, source in settings["file_mounts"].items()
        }
        # A bucket is looked up in its cloud, which takes keys of one; that it is a mount stands below.
        bucket = settings["file_mounts"].pop("/checkpoints")
        assert bucket == {"source": "s3://my-bucket/laurel", "mode": "MOUNT"}
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump(settings))
    found = read_by(SKYPILOT / "python", READ_SKYPILOT, files, tmp_path)
    secrets = ["LAUREL_CLUSTER_TOKEN", "WANDB_API_KEY"]
    assert found == [[name, 2, {"L4": 1}, "64+", secrets, {}] for name in ("ppo-gsm8k", "grpo-math")]


def test_skypilot_on_kubernetes(tmp_path):
    if reason := needs_skypilot():
        pytest.skip(reason)
    options = SkyPilotOptions(
        "H100", infra="k8s/my-context", image="docker:registry.example.com/laurel:1", workdir=None
    )
    file = tmp_path / "task.yaml"
    file.write_text(render(Job(name="ppo", nodes=2, gpus=8, settings=("a=b",)), options))
    [[*task, secrets, _]] = read_by(SKYPILOT / "python", READ_SKYPILOT, [file], tmp_path)
    assert task == ["ppo", 2, {"H100": 8}, None]
    assert secrets == ["LAUREL_CLUSTER_TOKEN"]


def test_dstack_reads_its_tutorial_file(tmp_path):
    if reason := needs_dstack():
        pytest.skip(reason)
    [task] = read_by(DSTACK / "python", READ_DSTACK, [TUTORIAL / "dstack" / "ppo_7b.dstack.yml"], tmp_path)
    assert task == ["ppo-7b", 2, 80.0, 8, 128.0, ["LAUREL_CLUSTER_TOKEN", "PYTHONUNBUFFERED", "WANDB_API_KEY"]]


def rendered(hosts, platform: str, settings: list[str], *options: str) -> dict:
    """What ``laurel launch PLATFORM --dry-run`` prints for two nodes."""
    words = ["laurel", "launch", platform, "--name", "ppo", "--nodes", "2", *options, "--dry-run", "--", *settings]
    done = hosts.exec("node1", words, check=True)
    return yaml.safe_load(done.output[done.output.index("# Start it:") :])


def left(hosts) -> dict[str, list[str]]:
    return {name: list(hosts.processes(name).values()) for name in hosts.names}


@pytest.mark.timeout(300)
def test_skypilots_run_section_beside_its_own_ray(hosts, small_ppo, tmp_path):
    """SkyPilot's own Ray is on port 6380 of the head, and there before the task and after it."""
    task = rendered(hosts, "skypilot", small_ppo.settings(tmp_path / "run", nodes=2), "--mount", "a=b")
    assert task["num_nodes"] == 2
    own = ["ray", "start", "--head", "--port=6380", "--include-dashboard=false", "--num-cpus=1", "--block"]
    theirs_only = {"RAY_AUTH_MODE": "disabled"}
    theirs = hosts.popen("node1", own, env=theirs_only)
    theirs.wait_for("Ray runtime started", 60)
    environ = SECRETS | {
        "SKYPILOT_NODE_IPS": "\n".join(hosts.addresses.values()),
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "0",
        "SKYPILOT_TASK_ID": "sky-2026-12-01-10-00-00-000000_ppo_1",
    }
    nodes = [
        hosts.popen(name, ["bash", "-c", task["run"]], env=environ | {"SKYPILOT_NODE_RANK": str(rank)})
        for rank, name in enumerate(hosts.names)
    ]
    assert [node.wait(200) for node in nodes] == [0, 0], nodes[0].output + nodes[1].output
    small_ppo.check(tmp_path / "run", nodes[0].output, nodes=2)
    count = f"import ray; ray.init('{hosts.address('node1')}:6380'); print('nodes:', len(ray.nodes()))"
    assert "nodes: 1\n" in hosts.exec("node1", [sys.executable, "-c", count], env=theirs_only, check=True).output
    theirs.end()
    assert left(hosts)["node2"] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_dstacks_commands_with_a_head_that_is_late(hosts, small_ppo, tmp_path):
    """The head fetches a model for 40 s before it runs the node's line; the other node waits for it."""
    settings = small_ppo.settings(tmp_path / "run", nodes=2)
    fetch = '[ "$DSTACK_NODE_RANK" != 0 ] || { echo fetching; sleep 40; }'
    task = rendered(hosts, "dstack", settings, "--setup", fetch)
    assert (task["type"], task["nodes"], len(task["commands"])) == ("task", 2, 2)
    environ = SECRETS | {
        "DSTACK_NODES_NUM": "2",
        "DSTACK_NODES_IPS": "\n".join(hosts.addresses.values()),
        "DSTACK_MASTER_NODE_IP": hosts.address("node1"),
        "DSTACK_GPUS_PER_NODE": "0",
        "DSTACK_RUN_NAME": "ppo",
        "DSTACK_RUN_ID": "6b1f9c1c-0001-4b6e-9f7d-000000000001",
    }
    # as dstack joins them: the first that fails ends the task
    script = " && ".join(f"{{ {command.rstrip()}\n}}" for command in task["commands"])
    nodes = [
        hosts.popen(name, ["bash", "-c", script], env=environ | {"DSTACK_NODE_RANK": str(rank)})
        for rank, name in enumerate(hosts.names)
    ]
    assert [node.wait(240) for node in nodes] == [0, 0], nodes[0].output + nodes[1].output
    small_ppo.check(tmp_path / "run", nodes[0].output, nodes=2)
    assert left(hosts) == {"node1": [], "node2": []}
