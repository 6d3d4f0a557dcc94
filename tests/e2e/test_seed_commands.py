"""The commands of the multi-node guide: printed as they are they pass the checks, and they run on small things."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from e2e.by_hand import cluster_by_hand
from e2e.reversal import one_thread
from e2e.runs import REPOSITORY, Outcome, run_command, validation_rows, whole_tensors
from e2e.seed_commands import MAIN, PAGE, merged, options, submission
from laurel.config.load import load
from laurel.models.tiny import warm_start, write_tiny_model

OPTIONS = options(PAGE.read_text())
TRAINING_ROWS = {1: 1024, 2: 256, 3: 1024, 4: 1024}  # as few as their train_batch_size takes
STEPS = {1: 15, 2: 2, 3: 15, 4: 15}


def test_the_page_is_the_one_that_the_project_shares():
    shared = REPOSITORY.parent / "shared" / "seed_commands.md"
    if not shared.exists():
        pytest.skip("the shared page is not here; the copy in tests/fixtures stands")
    assert PAGE.read_text() == shared.read_text()


def test_the_page_is_read_as_a_person_reads_it():
    assert {number: len(words) for number, words in OPTIONS.items()} == {1: 17, 2: 28, 3: 17, 4: 20}
    assert OPTIONS[1][0] == "data.train_files=/path/to/train.parquet"
    assert OPTIONS[1][-1] == "trainer.total_epochs=15"
    assert OPTIONS[3] == OPTIONS[1]
    assert {"data.train_batch_size=256", "trainer.nnodes=2", "trainer.n_gpus_per_node=1"} <= set(OPTIONS[2])
    assert {"trainer.logger=[console,wandb]", "trainer.project_name=seed", "trainer.total_epochs=2"} <= set(OPTIONS[2])
    assert "critic.model.path=Qwen/Qwen2.5-7B-Instruct" in OPTIONS[4]
    assert "trainer.default_local_dir=/checkpoints" in OPTIONS[4]
    assert submission(PAGE.read_text()) == [
        "job",
        "submit",
        "--address=http://127.0.0.1:8265",
        "--runtime-env=laurel/trainer/runtime_env.yaml",
        "--no-wait",
    ]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model that answers 3+4= in two tokens, and the files that stand in for those of the guide."""
    folder = tmp_path_factory.mktemp("small")
    sums = [(a, b) for a in range(32) for b in range(32)]
    model = write_tiny_model(folder / "model", characters="0123456789+=", hidden=32, layers=2, seed=0)
    with one_thread():
        warm_start(model, [(f"{a}+{b}=", str(a + b)) for a, b in sums], steps=60)
    rows = [
        {
            "data_source": "laurel/arithmetic",
            "prompt": [{"role": "user", "content": f"{a}+{b}="}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"index": index},
        }
        for index, (a, b) in enumerate(sums)
    ]
    return folder, model, rows


def files(folder: Path, rows: list[dict], count: int) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows[:count]), folder / "train.parquet")
    pq.write_table(pa.Table.from_pylist(rows[::50]), folder / "val.parquet")
    return [f"data.train_files={folder / 'train.parquet'}", f"data.val_files={folder / 'val.parquet'}"]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_the_command_as_printed_passes_a_dry_run(number, small, tmp_path):
    """Only the paths of the data are stubbed: the model is a name of the hub, the engine vLLM, no device is named."""
    _, _, rows = small
    words = merged(OPTIONS[number], files(tmp_path, rows, TRAINING_ROWS[number]))
    run = run_command([*words, "--dry-run"], folder=tmp_path / "cwd", timeout_s=120, environment=quiet(tmp_path))
    assert run.code == 0, run.text
    asked = {word.partition("=")[0] for word in words} - {"trainer.default_hdfs_dir"}
    assert shown_as_given(run.text) == asked
    if number == 2:
        assert "note: trainer.default_hdfs_dir" in run.text, "a key that has no job here is answered"
    plan = run.text[run.text.index("\nPlan\n") :]
    assert f"2 nodes x {1 if number == 2 else 8}" in plan
    assert "KL in reward" in plan
    assert "yes, since kl_ctrl.kl_coef was given: weight 0.001, fixed" in plan
    assert ("Qwen/Qwen2.5-7B-Instruct" if number == 4 else "Qwen/Qwen2.5-0.5B-Instruct") in plan
    problems = re.findall(r"^warning: on this machine, (\S+?)[=:]", run.text, re.MULTILINE)
    machine = {"trainer.device", "trainer.nnodes", "trainer.n_gpus_per_node"}  # what this one lacks is no error yet
    assert set(problems) <= {"actor_rollout_ref.rollout.name", *machine}
    assert "error:" not in run.text


def shown_as_given(text: str) -> set[str]:
    """The keys that the printed tree marks with ``*``."""
    found, group = set(), ""
    for line in text[text.index("\nSettings") : text.index("\nPlan\n")].splitlines():
        if setting := re.match(r"  ([* ]) (\w+) = ", line):
            found |= {f"{group}.{setting[2]}"} if setting[1] == "*" else set()
        else:
            group = line.strip()
    return found


def quiet(home: Path) -> dict[str, str]:
    """Nothing of the user's own: a home folder of its own, no network for wandb."""
    return {"HOME": str(home), "WANDB_MODE": "offline", "WANDB_DIR": str(home), "RAY_AUTH_MODE": "token"}


@pytest.fixture(scope="module")
def two_nodes():
    with cluster_by_hand(nodes=2) as cluster:
        yield cluster


def replaced(number: int, small, folder: Path) -> list[str]:
    """The option with model, data, device and engine changed, and with /checkpoints in a folder of the test."""
    _, model, rows = small
    words = merged(
        OPTIONS[number],
        files(folder, rows, TRAINING_ROWS[number]),
        [f"actor_rollout_ref.model.path={model}", f"critic.model.path={model}"],
        ["actor_rollout_ref.rollout.name=native", "trainer.device=cpu"],
    )
    words = [word.replace("=/checkpoints", f"={folder}/checkpoints") for word in words]
    mine = {word.partition("=")[0] for word in set(words) - set(OPTIONS[number])} - {"trainer.default_local_dir"}
    assert mine == {
        *("data.train_files", "data.val_files", "actor_rollout_ref.model.path", "critic.model.path"),
        *("actor_rollout_ref.rollout.name", "trainer.device"),
    }
    return words


def submit(words: list[str], cluster, *, timeout_s: float) -> str:
    """Option 1's ``ray job submit``, followed to its end, as printed but for the address. Returns the job's log."""
    printed = [word.replace("http://127.0.0.1:8265", cluster.dashboard) for word in submission(PAGE.read_text())]
    said = cluster.ray(*printed, "--", *MAIN.split(), *words, folder=REPOSITORY)
    job = re.search(r"raysubmit_\w+", said)[0]
    log = cluster.ray("job", "logs", f"--address={cluster.dashboard}", job, "--follow", timeout_s=timeout_s)
    status = cluster.ray("job", "status", f"--address={cluster.dashboard}", job)
    assert "succeeded" in status.lower(), log
    return log


def check(log: str, outcome: Outcome, *, model: Path, number: int, ranks_per_node: int, updates: int) -> None:
    """The job trained on both nodes, validated, saved, and moved both models."""
    config = load(OPTIONS[number]).config
    nodes = re.findall(r"node \S+: (ranks? \S+) on cpu", log)
    if ranks_per_node == 1:
        assert nodes == ["rank 0", "rank 1"]
    else:
        assert nodes == ["ranks 0-7", "ranks 8-15"]
    steps = STEPS[number]
    assert f"training: {steps} steps" in log
    rows = len(range(0, 1024, 50))
    first = [0] if config.trainer.val_before_train else []
    freq = config.trainer.test_freq
    due = first + [step for step in range(1, steps + 1) if step == steps or (freq > 0 and step % freq == 0)]
    assert validation_rows(log) == [rows] * len(due)
    final = outcome.checkpoint(steps)
    state = json.loads((final / "run_state.json").read_text())
    assert (state["step"], state["consumed"]) == (steps, steps * config.data.train_batch_size)
    for role in ("actor", "critic"):
        counts = json.loads((final / role / "state.json").read_text())
        assert counts["shards"] == 2 * ranks_per_node
        assert counts["counts"]["updates"] == updates
        assert counts["counts"]["skipped"] == 0
    weights = whole_tensors(final)
    start = load_file(model / "model.safetensors")
    assert all(not torch.equal(weights[f"actor:param/{name}"], tensor) for name, tensor in start.items())


def test_option_2_runs_as_a_job_on_two_nodes(small, two_nodes, tmp_path):
    """Submitted as Option 1 prints it. Its loggers are console and wandb, so there is no metrics.jsonl."""
    log = submit(replaced(2, small, tmp_path), two_nodes, timeout_s=280)
    # No folder was given and the job ran in Ray's copy of the code, which Ray deletes: results lie at home
    folder = two_nodes.home / "checkpoints" / "seed" / "seed"
    assert f"trainer.default_local_dir is {folder}, since the job runs in a folder that Ray deletes" in log
    check(log, Outcome(0, log, folder), model=small[1], number=2, ranks_per_node=1, updates=2 * 4)
    assert re.search(r"step 2\b.*score", log)
    assert list(two_nodes.home.rglob("offline-run-*")), "wandb logged, offline"


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("number", [1, 4])
def test_options_1_and_4_run_with_8_ranks_on_each_of_two_nodes(number, small, two_nodes, tmp_path):
    """16 processes; Option 3 is Option 1's command inside a script. About 8 GB of memory."""
    log = submit(replaced(number, small, tmp_path), two_nodes, timeout_s=1400)
    folder = tmp_path / "checkpoints" if number == 4 else two_nodes.home / "checkpoints" / "laurel" / "default"
    outcome = Outcome(0, log, folder)
    check(log, outcome, model=small[1], number=number, ranks_per_node=8, updates=15 * 4)
    assert len(outcome.series("critic/score/mean")) == 15
    saved = sorted(int(path.name.rpartition("_")[2]) for path in folder.glob("global_step_*"))
    assert saved == ([10, 15] if number == 4 else [15])
