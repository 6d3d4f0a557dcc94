"""Every room's check, together, without a heavy import."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from laurel.config.load import load
from laurel.preflight.check import check_all, check_fetched

ROW = {
    "data_source": "laurel/arithmetic",
    "prompt": [{"role": "user", "content": "1+1"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"index": 0},
}
LONGEST_S = 3.0


@pytest.fixture
def words(tmp_path):
    """A command line whose files exist."""
    (tmp_path / "train.jsonl").write_text((json.dumps(ROW) + "\n") * 8)
    return [
        f"data.train_files={tmp_path / 'train.jsonl'}",
        "data.train_batch_size=4",
        "actor_rollout_ref.model.path=org/model",
        "trainer.device=cpu",
    ]


def fields(words):
    return [problem.field for problem in check_all(load(words).config)]


def test_a_good_command_line_has_no_problem(words):
    assert check_all(load(words).config) == []


@pytest.mark.parametrize(
    ("word", "field"),
    [
        ("data.train_files=/no/such.parquet", "data.train_files"),
        ("actor_rollout_ref.model.path=/no/such", "actor_rollout_ref.model.path"),
        ("trainer.logger=[]", "trainer.logger"),
        ("actor_rollout_ref.actor.clip_ratio_low=1.5", "actor_rollout_ref.actor.clip_ratio_low"),
        ("reward.custom_reward_function.path=/no/such.py", "reward.custom_reward_function.path"),
        ("actor_rollout_ref.actor.fsdp_config.fsdp_size=0", "actor_rollout_ref.actor.fsdp_config.fsdp_size"),
        ("actor_rollout_ref.rollout.top_k=0", "actor_rollout_ref.rollout.top_k"),
        ("ray_kwargs.ray_init.num_cpus=0", "ray_kwargs.ray_init.num_cpus"),
    ],
)
def test_each_room_is_asked(words, word, field):
    assert fields([*words, word]) == [field]


def test_a_data_source_that_nobody_scores_is_found(tmp_path, words):
    (tmp_path / "train.jsonl").write_text((json.dumps({**ROW, "data_source": "my/own"}) + "\n") * 8)
    assert fields(words) == ["data.reward_fn_key=data_source"]


def test_an_engine_that_is_not_there_is_the_machines_problem(words):
    (problem,) = check_all(load([*words, "actor_rollout_ref.rollout.name=vllm"]).config)
    assert problem.machine
    assert "actor_rollout_ref.rollout.name=native" in problem.cure


def test_a_problem_is_said_once(words, monkeypatch):
    import laurel.models.check
    import laurel.rollout.check

    problem = check_all(load([*words, "trainer.logger=[]"]).config)[0]
    monkeypatch.setattr(laurel.models.check, "check", lambda config: [problem])
    monkeypatch.setattr(laurel.rollout.check, "check", lambda config: [replace(problem), replace(problem, value=None)])
    assert check_all(load([*words, "trainer.logger=[]"]).config) == [problem, replace(problem, value=None)]


def test_a_hub_id_is_looked_at_once_it_is_fetched(words, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--org--model"
    config = load(words).config
    assert check_all(config) == []

    def fetch(model, *, say):
        (repository / "snapshots" / "c0").mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("c0")
        described = {"model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
        (repository / "snapshots" / "c0" / "config.json").write_text(json.dumps(described))
        say(f"fetching {model.path}")

    said = []
    monkeypatch.setattr("laurel.preflight.check.fetch", fetch)
    grpo = load([*words, "algorithm.adv_estimator=grpo"]).config
    problems = check_fetched(grpo, say=said.append)
    assert said == ["fetching org/model"]
    assert [problem.field for problem in problems] == ["actor_rollout_ref.model.path"] * 2
    assert [name in problem.cure for name, problem in zip(("final_", "attn_"), problems, strict=True)] == [True, True]


def test_a_folder_needs_no_fetching(words, monkeypatch, tmp_path):
    monkeypatch.setattr("laurel.preflight.check.fetch", None)
    config = load([*words, f"actor_rollout_ref.model.path={tmp_path}", "algorithm.adv_estimator=grpo"]).config
    assert check_fetched(config) == []


def test_load_and_checks_are_quick_and_import_nothing_heavy(words):
    script = (
        "import sys\n"
        "from laurel.trainer.main_ppo import main\n"
        "code = main([*sys.argv[1:], '--dry-run'])\n"
        "heavy = {'torch', 'transformers', 'ray', 'vllm', 'wandb', 'datasets', 'math_verify'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    took = time.monotonic() - start
    assert done.returncode == 0, done.stdout + done.stderr
    assert took < LONGEST_S
