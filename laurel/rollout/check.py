"""What can be wrong with the rollout settings, found without loading a model."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import get_args

from laurel.config.estimators import ESTIMATORS
from laurel.config.tree import Config, EngineName
from laurel.models.hub import published_config
from laurel.models.served import unserved
from laurel.rollout.vllm.arguments import accepted_arguments, check_arguments
from laurel.rollout.vllm.versions import INSTALL as INSTALL_VLLM
from laurel.rollout.vllm.versions import installed, untested
from laurel.types import Problem

ROLLOUT = "actor_rollout_ref.rollout"
DRIVEN = ("native", "vllm")
INSTALL = {"sglang": "pip install sglang"}
"""Engines that the configuration names and this version refuses, and how each is installed."""


def check(config: Config) -> list[Problem]:
    """Problems of actor_rollout_ref.rollout.*: an engine that is not there, limits that contradict each other."""
    rollout = config.actor_rollout_ref.rollout
    problems = _check_engine(rollout.name)
    for field, top_k in (("top_k", rollout.top_k), ("val_kwargs.top_k", rollout.val_kwargs.top_k)):
        if top_k == 0 or top_k < -1:
            problems.append(Problem(f"{ROLLOUT}.{field}", top_k, "use -1 for the whole vocabulary, or at least 1"))
    if rollout.val_kwargs.do_sample and rollout.val_kwargs.temperature == 0:
        cure = "do_sample=True needs a temperature above 0; set do_sample=False for greedy validation"
        problems.append(Problem(f"{ROLLOUT}.val_kwargs.temperature", rollout.val_kwargs.temperature, cure))
    longest = config.data.max_prompt_length + config.data.max_response_length
    if rollout.max_model_len is not None and rollout.max_model_len < longest:
        cure = (
            f"shorter than data.max_prompt_length + data.max_response_length = {longest}; "
            f"use at least {longest}, or null"
        )
        problems.append(Problem(f"{ROLLOUT}.max_model_len", rollout.max_model_len, cure))
    known = get_args(EngineName)
    for name in sorted(rollout.engine_kwargs.keys() - set(known)):
        cure = f"{name} is no engine; the entries of {ROLLOUT}.engine_kwargs are named {', '.join(known)}"
        problems.append(Problem(f"{ROLLOUT}.engine_kwargs.{name}", rollout.engine_kwargs[name], cure))
    problems += _check_filter(config)
    if rollout.name == "native":
        problems += _check_native(config, rollout.max_model_len or longest)
    elif rollout.free_cache_engine:
        problems += _check_allocator(rollout.name)
    if rollout.name == "vllm":
        problems += _check_vllm(config)
    return problems


def _check_vllm(config: Config) -> list[Problem]:
    """What is wrong with vLLM here, a machine's problem, and with what it is given."""
    rollout = config.actor_rollout_ref.rollout
    problems, here = [], installed()
    if here is None:
        cure = f"vLLM is not installed; {INSTALL_VLLM}, or use {ROLLOUT}.name=native, which needs nothing more"
        problems.append(Problem(f"{ROLLOUT}.name", rollout.name, cure, machine=True))
    elif (reason := untested(*here)) is not None:
        problems.append(Problem(f"{ROLLOUT}.name", rollout.name, reason, machine=True))
    parallel = rollout.tensor_model_parallel_size
    if parallel != 1:
        cure = "a vLLM replica runs on the one GPU of its learner rank; use 1"
        problems.append(Problem(f"{ROLLOUT}.tensor_model_parallel_size", parallel, cure))
    if given := rollout.engine_kwargs.get("vllm"):
        problems += check_arguments(given, None if here is None else accepted_arguments())
    return problems


def _check_allocator(name: str) -> list[Problem]:
    """These engines give memory back through a pool of their own, which growing segments do not work with."""
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        value = os.environ.get(variable, "")
        if "expandable_segments:true" in value.lower().replace(" ", ""):
            cure = f"expandable_segments cannot be used with the sleep mode of rollout.name={name}; unset it, or set "
            return [Problem(f"environment variable {variable}", value, f"{cure}{ROLLOUT}.free_cache_engine=False")]
    return []


def _check_filter(config: Config) -> list[Problem]:
    """Settings of algorithm.filter_groups under which no step could ever be filled, or none would be filtered."""
    settings, algorithm, n = config.algorithm.filter_groups, config.algorithm, config.actor_rollout_ref.rollout.n
    if not settings.enable or config.trainer.val_only:
        return []
    problems = []
    if n < 2 and not ESTIMATORS[algorithm.adv_estimator].compares_group:  # else algos/check.py says it
        cure = "algorithm.filter_groups compares the samples of one prompt and needs at least 2; use 8, say"
        problems.append(Problem(f"{ROLLOUT}.n", n, cure))
    if settings.metric == "seq_final_reward" and algorithm.use_kl_in_reward:
        cure = (
            "the KL in the reward (algorithm.use_kl_in_reward) is only known later, and no two samples would have the "
            "same; use seq_reward, or acc"
        )
        problems.append(Problem("algorithm.filter_groups.metric", settings.metric, cure))
    most, drawn, wanted = settings.max_num_gen_batches, config.prompts_at_once, config.data.train_batch_size
    if 0 < most * drawn < wanted:
        cure = (
            f"generation batches of data.gen_batch_size={drawn} prompts can never give data.train_batch_size={wanted} "
            f"groups; use at least {-(-wanted // drawn)}, or 0 for no limit"
        )
        problems.append(Problem("algorithm.filter_groups.max_num_gen_batches", most, cure))
    return problems


def _check_engine(name: str) -> list[Problem]:
    """An engine that cannot run here. A machine's problem: the job may run where it is installed."""
    if name in DRIVEN:
        return []
    cure = f"this version of Laurel does not drive {name} yet; use {ROLLOUT}.name=native, which does the work now"
    if find_spec(name) is None:
        cure = f"{name} is not installed (that would be `{INSTALL[name]}`), but installing it would not help: {cure}"
    return [Problem(f"{ROLLOUT}.name", name, cure, machine=True)]


def _check_native(config: Config, max_len: int) -> list[Problem]:
    problems = []
    parallel = config.actor_rollout_ref.rollout.tensor_model_parallel_size
    if parallel != 1:
        cure = "the native engine runs on one GPU per replica; use 1"
        problems.append(Problem(f"{ROLLOUT}.tensor_model_parallel_size", parallel, cure))
    further = config.actor_rollout_ref.rollout.engine_kwargs
    if further.get("native"):
        cure = f"the native engine has no further arguments; set those of {ROLLOUT}, and leave this out"
        problems.append(Problem(f"{ROLLOUT}.engine_kwargs.native", further["native"], cure))
    model = config.actor_rollout_ref.model
    try:
        published = published_config(model)
    except (OSError, ValueError):
        return problems  # which models/check.py says
    reason = None if published is None else unserved({**published, **model.override_config}, max_len)
    if reason is not None:
        problems.append(Problem("actor_rollout_ref.model.path", model.path, reason))
    return problems
