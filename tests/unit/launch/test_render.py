"""Rendered files: what the platforms' own parsers and a shell read out of them, and that no secret stands in them."""

import json
import os
import shlex
import subprocess

import pytest
import yaml

from laurel.launch.render import render
from laurel.launch.spec import (
    DstackOptions,
    Job,
    KubeRayOptions,
    RayOptions,
    SkyPilotOptions,
    SlurmOptions,
    check,
)
from laurel.types import ConfigError, LaurelError

SETTINGS = (
    "data.train_files=/data/it's here/train.parquet",
    "data.val_files=/data/val.parquet",
    "trainer.logger=['console','wandb']",
    'data.prompt_key=a"b$HOME`id`\\',
)
NODE_WORDS = ["laurel", "cluster", "run", "--platform", "{}", "--nodes", "2", "--gpus-per-node", "4"]
NODE_WORDS += ["--cpus-per-task", "8", "--join-timeout", "600", "--", *SETTINGS]


def job(**more):
    return Job(**{"name": "ppo-1", "nodes": 2, "gpus": 4, "cpus": 8, "settings": SETTINGS, **more})


def words_of(script: str, folder, *programs: str, env=None) -> list[list[str]]:
    """Run a script with stand-ins for ``programs`` that note their words and the token of their environment."""
    notes = folder / "notes"
    for program in programs:
        stand_in = folder / program
        stand_in.write_text(
            "#!/usr/bin/env python3\nimport json, os, sys\n"
            f"print(json.dumps([{program!r}, *sys.argv[1:]]), file=open({str(notes)!r}, 'a'))\n"
            f"open({str(folder / 'token')!r}, 'a').write(os.environ.get('LAUREL_CLUSTER_TOKEN', '') + '\\n')\n"
            "sys.exit(int(os.environ.get('CODE', '0')))\n"
        )
        stand_in.chmod(0o755)
    path = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    done = subprocess.run(["bash", "-c", script], env=path | (env or {}), capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    assert done.returncode == int((env or {}).get("CODE", 0))
    return [json.loads(line) for line in notes.read_text().splitlines()]


def node_words(platform: str) -> list[str]:
    return [word.format(platform) if word == "{}" else word for word in NODE_WORDS]


def test_slurm_runs_the_line_on_every_node_with_every_word_as_given(tmp_path):
    text = render(job(), SlurmOptions(partition="gpu", time="1:00:00", more=("--reservation=x",)))
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=ppo-1\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n")
    for line in ("--gpus-per-node=4", "--cpus-per-task=8", "--partition=gpu", "--time=1:00:00", "--reservation=x"):
        assert f"#SBATCH {line}\n" in text
    [srun] = words_of(text, tmp_path, "srun")
    at = srun.index("laurel")
    assert srun[:at] == ["srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--cpus-per-task=8"]
    assert srun[at:] == node_words("slurm")


def test_slurm_makes_another_token_for_every_run_and_passes_the_exit_code_on(tmp_path):
    text = render(job(), SlurmOptions())
    for _ in range(2):
        words_of(text, tmp_path, "srun", env={"CODE": "3"})
    tokens = (tmp_path / "token").read_text().split()
    assert len(tokens) == 2
    assert tokens[0] != tokens[1]
    assert all(len(token) == 64 for token in tokens)
    assert not any(token in text for token in tokens)


def test_slurm_inside_apptainer(tmp_path):
    text = render(job(), SlurmOptions(image="/images/a b.sif", binds=("/data", "/x:/y")))
    [srun] = words_of(text, tmp_path, "srun")
    at = srun.index("apptainer")
    assert srun[at : at + 8] == ["apptainer", "exec", "--nv", "--bind", "/data", "--bind", "/x:/y", "/images/a b.sif"]
    assert srun[at + 8 :] == node_words("slurm")


def test_skypilot_and_dstack_run_the_same_line(tmp_path):
    sky = yaml.safe_load(
        render(job(secrets=("WANDB_API_KEY",)), SkyPilotOptions("L4", memory="64+", mounts=("a=~/b",)))
    )
    assert (sky["num_nodes"], sky["resources"]) == (2, {"accelerators": "L4:4", "cpus": 8, "memory": "64+"})
    assert sky["secrets"] == {"LAUREL_CLUSTER_TOKEN": None, "WANDB_API_KEY": None}
    assert sky["file_mounts"] == {"a": "~/b"}
    assert words_of(sky["run"], tmp_path, "laurel") == [node_words("skypilot")]
    (tmp_path / "notes").unlink()
    options = DstackOptions("80GB", shared_memory="128GB", volumes=("/c:/c",), more=("spot_policy: auto",))
    dstack = yaml.safe_load(render(job(secrets=("WANDB_API_KEY",), setup=("echo 'a: b' >/dev/null",)), options))
    assert (dstack["type"], dstack["nodes"], dstack["spot_policy"]) == ("task", 2, "auto")
    assert dstack["env"][:2] == ["LAUREL_CLUSTER_TOKEN", "WANDB_API_KEY"]
    assert dstack["resources"] == {"cpu": "8..", "gpu": "80GB:4", "shm_size": "128GB"}
    assert words_of("\n".join(dstack["commands"]), tmp_path, "laurel") == [node_words("dstack")]


def test_ray_and_kuberay_train_with_the_numbers_of_the_job(tmp_path):
    training = ["python3", "-m", "laurel.trainer.main_ppo", *SETTINGS, "trainer.nnodes=2", "trainer.n_gpus_per_node=4"]
    [ray] = words_of(render(job(), RayOptions(runtime_env="env.yaml")), tmp_path, "ray")
    assert ray[ray.index("--") + 1 :] == training
    assert {"--submission-id=ppo-1", "--no-wait", "--runtime-env=env.yaml"} <= set(ray)
    pods = yaml.safe_load(render(job(secrets=("HF_TOKEN",)), KubeRayOptions("i:1", claim="disk")))["spec"]
    assert shlex.split(pods["entrypoint"].replace("\\\n", " ")) == training
    cluster = pods["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    [workers] = cluster["workerGroupSpecs"]
    assert workers["replicas"] == 1
    assert workers["template"] == cluster["headGroupSpec"]["template"]
    [container] = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": 4}
    assert container["env"][0]["valueFrom"] == {"secretKeyRef": {"name": "ppo-1-secrets", "key": "HF_TOKEN"}}


def test_settings_are_checked_before_anything_is_rendered():
    with pytest.raises(ConfigError, match=r"trainer\.total_epoch.*total_epochs"):
        check(job(settings=(*SETTINGS[:2], "trainer.total_epoch=1")), files_here=False)
    with pytest.raises(LaurelError, match=r"trainer\.nnodes=3, but the job has 2 nodes"):
        check(job(settings=("trainer.nnodes=3",)), files_here=False)


def test_files_of_the_nodes_are_not_looked_for_here_unless_they_lie_here():
    settings = (*SETTINGS[:2], "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct")
    notes = check(job(settings=settings), files_here=False)
    assert any("data.val_files=/data/val.parquet" in note for note in notes)
    with pytest.raises(ConfigError, match=r"data/val\.parquet' does not exist"):
        check(job(settings=settings), files_here=True)


def test_more_ranks_than_gpus_are_refused():
    settings = (*SETTINGS[:2], "actor_rollout_ref.model.path=a/b", "trainer.n_gpus_per_node=8")
    with pytest.raises(LaurelError, match=r"trainer\.n_gpus_per_node=8, but --gpus-per-node=4"):
        check(job(settings=settings), files_here=False)


@pytest.mark.parametrize("name", ["Upper", "a_b", "-a", "a" * 41, "a;rm", ""])
def test_a_name_that_a_platform_would_refuse(name):
    with pytest.raises(LaurelError, match="--name"):
        job(name=name)


def test_a_secret_with_its_value_is_refused_and_the_value_is_not_said():
    with pytest.raises(LaurelError, match="WANDB_API_KEY") as error:
        job(secrets=("WANDB_API_KEY=abc123",))
    assert "abc123" not in str(error.value)
