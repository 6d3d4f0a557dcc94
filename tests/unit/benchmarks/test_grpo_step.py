import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import grpo_ours, grpo_step, grpo_trl
from benchmarks.child import Ended, environment
from benchmarks.record import Records
from benchmarks.works import FULL, SMALL
from laurel.config.load import load


def test_the_whole_program_on_a_tiny_model(tmp_path):
    """The one run of the product's own command: every step is there, and the peer is skipped with its reason."""
    out = tmp_path / "out.jsonl"
    words = [
        "--model",
        "tiny",
        "--steps",
        "2",
        "--folder",
        str(tmp_path / "work"),
        "--out",
        str(out),
        "--device",
        "cpu",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.grpo_step", *words, "--settings", "defaults"],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment({"OMP_NUM_THREADS": "1"}),
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    records = Records(out)
    assert records.of("failed") == []
    first, second = records.of("step")
    assert (first["step"], second["step"]) == (1, 2)
    assert second["seconds"] >= second["metrics"]["timing_s/step"] - 0.01, "what lies between steps counts too"
    for phase in ("gen", "publish", "update_actor"):
        assert 0 < second["metrics"][f"timing_s/{phase}"] < second["seconds"]
    lengths = [second["metrics"][f"response_length/{name}"] for name in ("min", "mean", "max")]
    assert lengths == [16.0, 16.0, 16.0]
    assert second["metrics"]["perf/total_num_tokens"] == 16 * 32
    assert second["metrics"]["actor/grad_norm"] > 0
    assert second["metrics"]["rollout/log_prob_diff/mean"] < 1e-4
    (skipped,) = records.of("skipped")
    assert skipped["why"].endswith("not installed here")
    assert "| ours" in done.stdout
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["tiny"], "the run's folder went with it"


@pytest.mark.parametrize("name", ["G", "P"])
def test_settings_are_read_as_they_are_meant(name, tmp_path):
    work = grpo_ours.WORKS["full"][name]
    data = grpo_ours.write_data(grpo_ours.WORKS["small"][name], 512, 1, tmp_path)
    config = load([*data, *grpo_ours.settings(name, work), "actor_rollout_ref.model.path=/model"]).config
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    assert rollout.ignore_eos
    if name == "G":
        sizes = (
            config.data.train_batch_size,
            rollout.n,
            config.data.max_prompt_length,
            config.data.max_response_length,
        )
        assert sizes == (128, 8, 128, 512)
        assert actor.ppo_mini_batch_size == 128
        assert not config.critic.enable
        assert not config.needs_reference
    else:
        sizes = (
            config.data.train_batch_size,
            rollout.n,
            config.data.max_prompt_length,
            config.data.max_response_length,
        )
        assert sizes == (256, 1, 512, 256)
        assert actor.ppo_mini_batch_size == 64
        assert config.critic.enable
        assert config.algorithm.use_kl_in_reward


def test_seconds_of_a_step_are_from_line_to_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    steps = grpo_ours.Steps(path, Records(None), {"side": "ours"})
    assert steps.poll() == 0

    def line(step, time, seconds):
        return json.dumps({"step": step, "time": time, "timing_s/step": seconds, "perf/throughput": 1.23456789}) + "\n"

    path.write_text(line(1, 100.0, 9.0) + json.dumps({"step": 1, "time": 101.0, "val-core/acc": 1.0}) + "\n")
    assert steps.poll() == 1
    with path.open("a") as file:
        file.write(line(2, 107.5, 7.0) + line(3, 114.0, 6.0)[:-1])
    assert steps.poll() == 2, "a line that is being written is not read"
    with path.open("a") as file:
        file.write("\n")
    assert steps.poll() == 3
    assert [row["seconds"] for row in steps.records.of("step")] == [9.0, 7.5, 6.5]
    assert steps.records.of("step")[0]["metrics"] == {"timing_s/step": 9.0, "perf/throughput": 1.23457}


def test_calls_at_the_same_time_do_not_read_each_others_steps(tmp_path, monkeypatch):
    """Each run has a folder of its own, though both were given the same parent."""
    folders = []

    def run(command, *, enough, **ignored):
        (folder,) = [Path(word.partition("=")[2]) for word in command if word.startswith("trainer.default_local_dir=")]
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(
            json.dumps({"step": 1, "time": 5.0, "timing_s/step": len(folders) + 1.0}) + "\n"
        )
        folders.append(folder)
        if len(folders) == 1:
            call()  # a second call runs while the first has a step to read
        assert enough()
        return Ended("", 1.0, ())

    def call():
        grpo_ours.measure(
            Records(out), "G", model="tiny", size="small", model_folder=tmp_path, parent=tmp_path, steps=1,
            device="cpu", overrides=[], limit_s=1.0, log=None,
        )  # fmt: skip

    out = tmp_path / "out.jsonl"
    monkeypatch.setattr(grpo_ours, "run", run)
    call()
    assert folders[0] != folders[1]
    assert [row["seconds"] for row in Records(out).of("step")] == [2.0, 1.0], "the inner call ends first"
    assert not any(folder.exists() for folder in folders)


def test_settings_of_trl():
    default = grpo_trl.trainer_arguments("defaults", FULL["G"], 32, 0.4)
    assert default["per_device_train_batch_size"] * default["gradient_accumulation_steps"] == 1024
    assert not {"gradient_checkpointing", "vllm_gpu_memory_utilization", "model_init_kwargs"} & set(default)
    tuned = grpo_trl.trainer_arguments("tuned-512", FULL["G"], 32, 0.4)
    assert (tuned["per_device_train_batch_size"], tuned["gradient_accumulation_steps"]) == (32, 32)
    assert (tuned["gradient_checkpointing"], tuned["vllm_importance_sampling_correction"]) == (False, False)
    plain = grpo_trl.trainer_arguments("transformers", SMALL["G"], 32, 0.4)
    assert (plain["use_vllm"], plain["per_device_train_batch_size"]) == (False, 16)
    assert plain["generation_kwargs"] == {"min_new_tokens": 16}


def test_tuned_vllm_is_handed_to_trl(monkeypatch):
    inside = ModuleType("trl.generation.vllm_generation")
    inside.LLM = lambda **given: given
    for name, module in (("trl", ModuleType("trl")), ("trl.generation", ModuleType("trl.generation"))):
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["trl.generation"].vllm_generation = inside
    monkeypatch.setitem(sys.modules, "trl.generation.vllm_generation", inside)
    assert grpo_trl.tune_vllm("defaults") == {}
    assert inside.LLM(max_num_seqs=1024) == {"max_num_seqs": 1024}
    chosen = grpo_trl.tune_vllm("tuned-512")
    made = inside.LLM(model="m", max_num_seqs=1024, max_num_batched_tokens=4096)
    assert made == {"model": "m", **chosen} == {"model": "m", "max_num_seqs": 512, "max_num_batched_tokens": 16384}


def test_the_table_leaves_the_first_step_out():
    records = Records(None)
    about = {"what": "step", "work": "G", "model": "0.5b", "size": "full", "metrics": {"timing_s/gen": 3.5}}
    for side, setting, seconds in (("ours", "", [20, 8, 7, 9]), ("TRL", "tuned-512", [60, 41, 39])):
        for step, value in enumerate(seconds, 1):
            records.add({**about, "side": side, "setting": setting, "step": step, "seconds": float(value)})
    lines = grpo_step.summary(records, "full").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| G")]
    assert cells[0][2:6] == ["ours", "20.00 8.00 7.00 9.00", "8", "1"]
    assert cells[1][2:6] == ["TRL tuned-512", "60.00 41.00 39.00", "40", "5"]
    assert float(cells[0][6]) == pytest.approx(3.4, abs=0.3), "prompts shared"
    assert "ours, G, last step: gen 3.5" in lines
