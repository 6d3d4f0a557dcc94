import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from laurel.config.tree import Config, EngineName
from laurel.rollout import check as room
from laurel.rollout.check import check

ROLLOUT = "actor_rollout_ref.rollout"


def config(rollout, model=None):
    return Config.model_validate({"actor_rollout_ref": {"rollout": rollout, "model": model or {}}})


def found(rollout, model=None):
    return [(p.field, p.value, p.machine) for p in check(config(rollout, model))]


def test_the_defaults_are_fine():
    assert check(Config()) == []


@pytest.mark.parametrize(
    ("rollout", "field", "value"),
    [
        ({"top_k": 0}, "top_k", 0),
        ({"val_kwargs": {"top_k": -2}}, "val_kwargs.top_k", -2),
        ({"val_kwargs": {"do_sample": True, "temperature": 0}}, "val_kwargs.temperature", 0),
        ({"max_model_len": 100}, "max_model_len", 100),
        ({"tensor_model_parallel_size": 2}, "tensor_model_parallel_size", 2),
    ],
)
def test_contradictions_are_found(rollout, field, value):
    assert found(rollout) == [(f"{ROLLOUT}.{field}", value, False)]


def filtered(n=8, metric="acc", most=0, drawn=None, **algorithm):
    groups = {"enable": True, "metric": metric, "max_num_gen_batches": most}
    return Config.model_validate(
        {
            "actor_rollout_ref": {"rollout": {"n": n}},
            "algorithm": {"filter_groups": groups, **algorithm},
            "data": {"train_batch_size": 32, "gen_batch_size": drawn},
        }
    )


@pytest.mark.parametrize(
    ("settings", "field", "value", "cure"),
    [
        ({"n": 1}, f"{ROLLOUT}.n", 1, "needs at least 2"),
        (
            {"metric": "seq_final_reward", "use_kl_in_reward": True},
            "algorithm.filter_groups.metric",
            "seq_final_reward",
            "use seq_reward",
        ),
        (
            {"most": 3, "drawn": 10},
            "algorithm.filter_groups.max_num_gen_batches",
            3,
            "data.gen_batch_size=10 prompts can never give data.train_batch_size=32 groups; use at least 4",
        ),
    ],
)
def test_filters_that_could_never_fill_a_step_are_found(settings, field, value, cure):
    (problem,) = check(filtered(**settings))
    assert (problem.field, problem.value) == (field, value)
    assert cure in problem.cure


def test_filters_that_can_are_fine():
    for settings in ({}, {"metric": "seq_final_reward"}, {"most": 4, "drawn": 10}, {"most": 1, "drawn": 96}):
        assert check(filtered(**settings)) == []
    assert check(filtered(n=1, adv_estimator="grpo")) == []  # the algorithm's own check says it


def test_a_missing_engine_says_how_to_install_it_and_offers_native(monkeypatch):
    monkeypatch.setattr(room, "installed", lambda: None)
    (problem,) = check(config({"name": "vllm", "engine_kwargs": {"vllm": {"unheard_of": 1}}}))
    assert (problem.field, problem.value, problem.machine) == (f"{ROLLOUT}.name", "vllm", True)
    assert "pip install 'vllm==" in problem.cure
    assert "name=native" in problem.cure


@pytest.fixture
def vllm_here(monkeypatch, tmp_path):
    """A vLLM whose EngineArgs are known from its source, which cannot be imported."""
    source = tmp_path / "vllm" / "engine" / "arg_utils.py"
    source.parent.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("raise AssertionError('it must not be imported')")
    source.write_text("class EngineArgs:\n    block_size: int = 16\n    swap: str = ''\n    def f(self): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(room, "installed", lambda: ("0.32.1", "2.13.0+cpu"))


def test_a_pair_of_vllm_and_torch_that_is_not_tested_is_named(vllm_here, monkeypatch):
    assert check(config({"name": "vllm"})) == []
    monkeypatch.setattr(room, "installed", lambda: ("0.30.0", "2.12.1"))
    (problem,) = check(config({"name": "vllm"}))
    assert problem.machine
    assert "vllm 0.30.0 with torch 2.12.1" in problem.cure
    assert "vllm 0.26.* with torch 2.11.*" in problem.cure


def test_arguments_of_vllm_are_compared_with_what_it_takes(vllm_here):
    given = {"block_size": 32, "blocksize": 32, "max_model_len": 9, "enable_lora": True}
    problems = {
        p.field.rpartition(".")[2]: p for p in check(config({"name": "vllm", "engine_kwargs": {"vllm": given}}))
    }
    assert sorted(problems) == ["blocksize", "enable_lora", "max_model_len"]
    assert "EngineArgs has no blocksize; did you mean block_size?" in problems["blocksize"].cure
    assert f"set {ROLLOUT}.max_model_len" in problems["max_model_len"].cure
    assert problems["enable_lora"].value is True
    assert not any(problem.machine for problem in problems.values())


def test_a_replica_of_vllm_has_one_gpu(vllm_here):
    (problem,) = check(config({"name": "vllm", "tensor_model_parallel_size": 2}))
    assert (problem.field, problem.value, problem.machine) == (f"{ROLLOUT}.tensor_model_parallel_size", 2, False)


def test_every_engine_of_the_configuration_is_driven_or_refused():
    assert set(get_args(EngineName)) == {*room.DRIVEN, *room.INSTALL}
    assert not set(room.DRIVEN) & set(room.INSTALL)
    engines = Path(room.__file__).parent
    assert all((engines / name / "engine.py").is_file() for name in room.DRIVEN)
    assert [name for name in room.INSTALL if (engines / f"{name}_engine.py").exists()] == []


def test_an_engine_that_is_installed_but_not_driven_yet(monkeypatch):
    monkeypatch.setattr(room, "find_spec", lambda name: None if name.startswith("laurel") else object())
    (problem,) = check(config({"name": "sglang"}))
    assert "does not drive sglang yet" in problem.cure


def test_a_model_that_the_native_engine_cannot_serve_is_found_from_its_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma2", "attn_logit_softcapping": 50.0}))
    (problem,) = check(config({}, {"path": str(tmp_path)}))
    assert problem.field == "actor_rollout_ref.model.path"
    assert "attn_logit_softcapping=50.0" in problem.cure
    off = {"attn_logit_softcapping": None}
    assert check(config({}, {"path": str(tmp_path), "override_config": off})) == []
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert check(config({}, {"path": str(tmp_path)})) == []
    overridden = {"path": str(tmp_path), "override_config": {"sliding_window": 16}}
    (problem,) = check(config({}, overridden))
    assert "sliding_window=16" in problem.cure


def test_the_check_needs_no_heavy_import():
    code = "import sys, laurel.rollout.check; print({'torch', 'transformers', 'ray'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_growing_segments_do_not_go_with_the_sleep_of_vllm(variable, monkeypatch):
    monkeypatch.setenv(variable, "max_split_size_mb:64, Expandable_Segments:True")
    assert [field for field, *_ in found({"name": "vllm"}) if "environment" in field] == [
        f"environment variable {variable}"
    ]
    assert not any("environment" in field for field, *_ in found({"name": "vllm", "free_cache_engine": False}))
    assert found({}) == []
    monkeypatch.setenv(variable, "expandable_segments:False")
    assert not any("environment" in field for field, *_ in found({"name": "vllm"}))
