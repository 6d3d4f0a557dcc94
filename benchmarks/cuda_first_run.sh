#!/usr/bin/env bash
# The main job on one CUDA GPU: GRPO and PPO on the reversal task of tests/e2e, resume, export. OUT_DIR gets the logs.
#     PYTHON=python3 benchmarks/cuda_first_run.sh OUT_DIR
# It shows that the code of the CPU runs on a GPU and learns there; the model is far too small to say anything of speed.
set -euo pipefail
out=$(realpath "$1"); cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
export PYTHONPATH="$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
{
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
  $python -c 'import platform, ray, torch, transformers as t; print("Python", platform.python_version(), "torch", torch.__version__, "transformers", t.__version__, "ray", ray.__version__)'
} | tee "$out/machine.txt"
$python - "$work" <<'P' >"$work/arguments"
import sys
from pathlib import Path
from e2e.reversal import write_task
print(" ".join(word for word in write_task(Path(sys.argv[1])).arguments() if "device" not in word))
P
run() {
  name=$1; shift
  $python -m laurel.trainer.main_ppo $(tail -n 1 "$work/arguments") trainer.device=cuda trainer.n_gpus_per_node=1 \
    data.train_batch_size=32 data.max_prompt_length=8 data.max_response_length=4 \
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    actor_rollout_ref.actor.optim.lr=1e-3 actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    trainer.default_local_dir="$work/$name" "$@" 2>&1 | sed "s#$work#.#g" | tee -a "$out/$name.log"
  cp "$work/$name/metrics.jsonl" "$out/$name.jsonl"
}
run grpo algorithm.adv_estimator=grpo trainer.total_training_steps=40
run ppo algorithm.adv_estimator=gae algorithm.kl_ctrl.kl_coef=0.001 critic.optim.lr=1e-3 trainer.total_training_steps=40
run grpo algorithm.adv_estimator=grpo trainer.total_training_steps=42 # goes on from step 40
$python -m laurel export "$work/grpo/global_step_42" "$work/exported"
