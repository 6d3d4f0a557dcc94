"""The peer's side of benchmarks.grpo_step: TRL's GRPOTrainer on work G, vLLM in the same process or transformers.

    defaults      vLLM colocated, everything else as TRL and vLLM have it
    tuned-512     nothing recomputed, bf16 weights, larger micro-batches, no pass for old log-probabilities, and vLLM
                  with max_num_seqs=512 and 16,384 prompt tokens in a forward
    tuned-1024    the same with max_num_seqs=1024 and graphs captured up to that batch
    transformers  model.generate instead of vLLM, tuned likewise

TRL has no setting for vLLM's graphs or batch, so the tuned ones are handed to vLLM's constructor where TRL calls it. A
step is what lies between the ends of two steps, everything included; the first one holds the warm-up. A row a step.
Imports nothing of ours.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from typing import Any

from benchmarks.decode_vllm import engine_arguments
from benchmarks.record import device, installed, peak_gib, show
from benchmarks.shapes import fields_of
from benchmarks.words import text_of
from benchmarks.works import Work, works

SETTINGS = ("defaults", "tuned-512", "tuned-1024", "transformers")


def trainer_arguments(setting: str, work: Work, rows: int, gpu_share: float) -> dict[str, Any]:
    """GRPOConfig's arguments of a setting. ``rows`` is the micro-batch of the tuned ones."""
    rows = 8 if setting == "defaults" else min(rows, work.sequences)
    chosen: dict[str, Any] = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": work.sequences // rows,
        "num_generations": work.samples,
        "max_completion_length": work.response,
        "use_vllm": setting != "transformers",
        "generation_kwargs": {"min_new_tokens": work.response} if setting == "transformers" else {"ignore_eos": True},
    }
    if setting == "defaults":
        return chosen
    chosen |= {"gradient_checkpointing": False, "model_init_kwargs": {"dtype": "bfloat16"}}
    if setting != "transformers":
        chosen |= {"vllm_gpu_memory_utilization": gpu_share, "vllm_max_model_length": work.longest + 16}
        chosen |= {"vllm_importance_sampling_correction": False}
    return chosen


def tune_vllm(setting: str) -> dict[str, Any]:
    """Have TRL make its vLLM with the engine arguments of a tuned setting; returns them."""
    name = setting.removeprefix("tuned-")
    if name == setting:
        return {}
    from trl.generation import vllm_generation

    chosen, plain = engine_arguments(name), vllm_generation.LLM

    def tuned(**given: Any) -> Any:
        return plain(**{**given, **chosen})

    vllm_generation.LLM = tuned
    return chosen


def reward(completions: list[Any], **ignored: Any) -> list[float]:
    return [random.random() for _ in completions]


def train(folder: str, work: Work, vocab: int, *, setting: str, steps: int, rows: int, gpu_share: float) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    chosen, engine = trainer_arguments(setting, work, rows, gpu_share), tune_vllm(setting)
    gpu = torch.cuda.is_available()
    fixed = {"output_dir": tempfile.mkdtemp(prefix="trl-"), "max_steps": steps, "bf16": gpu, "use_cpu": not gpu}
    fixed |= {
        "beta": 0.0,
        "temperature": 1.0,
        "learning_rate": 1e-6,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    prompts = [text_of(ids, vocab) for ids in work.prompt_ids(vocab)]

    class Steps(TrainerCallback):
        """Shows a row at the end of each step."""

        last = 0.0

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self.last = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if gpu:
                torch.cuda.synchronize()
            now = time.perf_counter()
            show("step", step=state.global_step, seconds=round(now - self.last, 3), peak_gib=peak_gib())
            self.last = now

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            kept = {key: value for key, value in (logs or {}).items() if "length" in key or "time" in key}
            show("log", step=state.global_step, logs=kept)

    trainer = GRPOTrainer(
        model=folder,
        reward_funcs=reward,
        args=GRPOConfig(**fixed, **chosen, logging_steps=1),
        train_dataset=Dataset.from_dict({"prompt": prompts * steps}),
        processing_class=AutoTokenizer.from_pretrained(folder),
        callbacks=[Steps()],
    )
    versions = {name: installed(name) for name in ("trl", "vllm", "transformers", "torch", "accelerate")}
    show("device", device=device(), arguments={**fixed, **chosen}, engine=engine, versions=versions)
    trainer.train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="Hugging Face folder with weights and tokenizer")
    parser.add_argument("--model", default="0.5b")
    parser.add_argument("--setting", choices=SETTINGS, default="defaults")
    parser.add_argument("--size", choices=["full", "small"], default="full")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", type=int, default=32, help="micro-batch of the tuned settings")
    parser.add_argument(
        "--gpu-share", type=float, default=0.4, help="vllm_gpu_memory_utilization of the tuned settings"
    )
    args = parser.parse_args()
    # vLLM in the trainer's process joins a process group of one
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    train(
        args.folder,
        works(args.size)["G"],
        fields_of(args.model)["vocab_size"],
        setting=args.setting,
        steps=args.steps,
        rows=args.rows,
        gpu_share=args.gpu_share,
    )


if __name__ == "__main__":
    main()
