# Two commands do everything, set-up included: `make quickstart` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin

# Unit tests run beside each other, each process with one thread; all others start services and have the machine alone.
BESIDE = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto tests/unit tests/architecture
ALONE = $(BIN)/python -m pytest --ignore=tests/unit --ignore=tests/architecture --ignore=tests/vllm_engine

# The tests of the vLLM engine run in an environment of their own, where it can be had.
VLLM = $(firstword $(wildcard $(if $(wildcard .envs/vllm-*),.envs/vllm/bin/python)) $(BIN)/python)

.PHONY: quickstart test test-all lint docs env launch-env vllm-env clean

quickstart: env  ## train a real language model on this machine, in minutes
	$(BIN)/laurel quickstart

test: env launch-env vllm-env lint  ## style, types and the tests that fit in 20 minutes on 2 cores
	$(VLLM) -m pytest tests/vllm_engine
	$(BESIDE) -m "not slow"
	$(ALONE) -m "not slow"

test-all: env launch-env vllm-env lint  ## also the slow ones
	$(VLLM) -m pytest tests/vllm_engine
	$(BESIDE)
	$(ALONE)

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
