# Two commands do everything, set-up included: `make quickstart` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin

.PHONY: quickstart test test-all lint docs env launch-env clean

quickstart: env  ## train a real language model on this machine, in minutes
	$(BIN)/laurel quickstart

test: env launch-env lint  ## style, types and the tests that fit in 15 minutes on 2 cores
	$(BIN)/python -m pytest -m "not slow"

test-all: env launch-env lint  ## also the slow ones
	$(BIN)/python -m pytest

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

clean:
	rm -rf .venv .envs build dist .pytest_cache .ruff_cache .mypy_cache
