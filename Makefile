# Two commands do everything, set-up included: `make quickstart` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin

# The tests of the vLLM engine run in an environment of their own, where it can be had.
VLLM = $(firstword $(wildcard $(if $(wildcard .envs/vllm-*),.envs/vllm/bin/python)) $(BIN)/python)

.PHONY: quickstart test test-all lint docs env launch-env vllm-env clean

quickstart: env  ## train a real language model on this machine, in minutes
	$(BIN)/laurel quickstart

test: env launch-env vllm-env lint  ## style, types and the tests that fit in 20 minutes on 2 cores
	$(VLLM) -m pytest tests/vllm_engine
	$(BIN)/python -m pytest -m "not slow" --ignore=tests/vllm_engine

test-all: env launch-env vllm-env lint  ## also the slow ones
	$(VLLM) -m pytest tests/vllm_engine
	$(BIN)/python -m pytest --ignore=tests/vllm_engine

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: env  ## docs/config.md from the configuration tree
	$(BIN)/python -m laurel.config.docs docs/config.md

env:
	@$(PYTHON) scripts/make_env.py

launch-env:  ## Slurm, sshd and others for the launch tests, where they can be had
	@$(PYTHON) scripts/make_launch_env.py

vllm-env:  ## vLLM's build for CPUs, for the tests of the vLLM engine
	@$(PYTHON) scripts/make_vllm_env.py

clean:
	rm -rf .venv .envs build dist .pytest_cache .ruff_cache .mypy_cache
