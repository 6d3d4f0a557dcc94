import json
import re
from types import SimpleNamespace

import pytest

from laurel.config.load import load
from laurel.models.tiny import write_tiny_model
from laurel.tracking.timer import Timer
from laurel.trainer.build import one_update_per_batch, prepare
from laurel.trainer.report import Report
from laurel.trainer.run_state import RunState
from laurel.types import LaurelError
from laurel.workers.fit import Fit


def write_rows(path, questions: list[str]) -> None:
    rows = [
        {
            "data_source": "laurel/arithmetic",
            "prompt": [{"role": "user", "content": question}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "2"},
            "extra_info": {},
        }
        for question in questions
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def settings(tmp_path, *more: str):
    write_tiny_model(tmp_path / "model", hidden=16, layers=1)
    return load(
        [
            f"data.train_files={tmp_path}/train.jsonl",
            f"data.cache_dir={tmp_path}/cache",
            f"actor_rollout_ref.model.path={tmp_path}/model",
            "trainer.device=cpu",
            "data.max_prompt_length=8",
            *more,
        ]
    ).config


def test_a_batch_larger_than_what_filtering_leaves_is_refused_before_a_rank_starts(tmp_path):
    write_rows(tmp_path / "train.jsonl", ["1+1=", "2+2=", "100000+100000="])
    with pytest.raises(LaurelError, match=r"train_batch_size=3 exceeds the 2 training prompts .* use at most 2"):
        prepare(settings(tmp_path, "data.train_batch_size=3"))
    assert len(prepare(settings(tmp_path, "data.train_batch_size=2")).train_prompts) == 2


def test_a_model_that_cannot_be_trained_is_refused_before_a_rank_starts(tmp_path):
    write_rows(tmp_path / "train.jsonl", ["1+1="])
    config = settings(tmp_path, "data.train_batch_size=1", "+actor_rollout_ref.model.override_config.no_such_field=3")
    with pytest.raises(LaurelError, match=re.escape("override_config.no_such_field")):
        prepare(config)


def test_updates_of_the_run_leave_the_warm_up_of_the_critic_out(tmp_path):
    write_rows(tmp_path / "train.jsonl", [f"{i}+1=" for i in range(8)])
    config = settings(
        tmp_path,
        "data.train_batch_size=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.ppo_epochs=3",
        "trainer.total_training_steps=10",
        "trainer.critic_warmup=4",
    )
    updates = prepare(config).updates
    assert (updates.actor, updates.critic) == (6 * 3 * 2, 10 * 3 * 2)
    assert not one_update_per_batch(config)


def test_predicted_memory_stands_beside_what_is_measured(tmp_path, monkeypatch):
    logged = {}
    monkeypatch.setattr("laurel.trainer.report.batch_metrics", lambda batch: {})
    monkeypatch.setattr("laurel.trainer.report.speed_metrics", lambda *_, **__: {})
    loggers = SimpleNamespace(log=lambda step, metrics: logged.update({step: metrics}))
    for step, predicted in ((1, None), (2, 5 * 2**30)):
        report = Report(loggers, Timer(), 1, 1, tmp_path, None, predicted_memory=predicted)
        report.step(RunState(kl_coef=0.0, step=step), [], None, {"perf/max_memory_allocated_gb": 3.0})
    assert "perf/predicted_memory_gb" not in logged[1]
    assert logged[2]["perf/predicted_memory_gb"] == 5.0
    assert logged[2]["perf/max_memory_allocated_gb"] == 3.0


def test_the_run_goes_on_with_the_settings_that_its_ranks_have(tmp_path):
    write_rows(tmp_path / "train.jsonl", ["1+1="])
    prepared = prepare(settings(tmp_path, "data.train_batch_size=1"))
    fit = prepared.fit(0)
    assert (fit.config, fit.predicted) == (prepared.config, None)
    other = prepared.config.model_copy(update={"reward": prepared.config.reward.model_copy()})
    fitted = prepared.as_fitted(Fit(other, predicted=7.0))
    assert fitted.config is other
    assert fitted.predicted_memory == 7.0
