"""The peer's side of benchmarks.decode: vLLM with one setting, the same prompts and lengths. Imports nothing of ours.

    default   nothing but the model, bf16 and dummy weights: vLLM's own choices for this GPU
    256, 512  max_num_seqs, within the graphs that vLLM captures by itself
    1024      max_num_seqs=1024 with graphs captured up to that batch

Each work is run without log-probabilities (``none``), with those of the sampled tokens (``dict``), and with them in
vLLM's flat form, which makes fewer objects (``flat``). One call with an eighth of the tokens (at most 16) goes before
each and is not counted; the prefix cache is emptied before every call.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.record import born, device, installed, show
from benchmarks.shapes import fields_of
from benchmarks.works import Asked, Work, works

SETTINGS = ("default", "256", "512", "1024")
LOG_PROBS = ("dict", "flat", "none")


def engine_arguments(setting: str) -> dict[str, Any]:
    """What a setting adds to the model, its dtype and its dummy weights."""
    if setting == "default":
        return {}
    most = int(setting)
    chosen: dict[str, Any] = {"max_num_seqs": most, "max_num_batched_tokens": 16384}
    if most > 512:
        sizes = [1, 2, 4, 8, 16, 32, *range(64, most + 1, 64)]
        chosen["compilation_config"] = {"cudagraph_capture_sizes": sizes, "cudagraph_mode": "FULL_AND_PIECEWISE"}
    return chosen


def sampling(asked: Sequence[Asked], *, greedy: bool, log_probs: str) -> list[Any]:
    from vllm import SamplingParams

    told = {"none": {}, "dict": {"logprobs": 0}, "flat": {"logprobs": 0, "flat_logprobs": True}}[log_probs]
    return [
        SamplingParams(
            temperature=0.0 if greedy else 1.0, max_tokens=one.tokens, ignore_eos=True, detokenize=False, **told
        )
        for one in asked
    ]


def call(llm: Any, asked: Sequence[Asked], *, greedy: bool, log_probs: str) -> tuple[float, int]:
    """Seconds and tokens of one call."""
    llm.reset_prefix_cache()
    prompts = [{"prompt_token_ids": list(one.prompt)} for one in asked]
    params = sampling(asked, greedy=greedy, log_probs=log_probs)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start, sum(len(output.outputs[0].token_ids) for output in outputs)


def timed(llm: Any, work: Work, vocab: int, *, log_probs: str, repeats: int, **about: Any) -> None:
    asked = work.asked(vocab)
    short = [Asked(one.group, one.prompt, max(1, min(16, one.tokens // 8))) for one in asked]
    warm_s, _ = call(llm, short, greedy=work.greedy, log_probs=log_probs)
    wanted = sum(one.tokens for one in asked)
    for repeat in range(repeats):
        seconds, tokens = call(llm, asked, greedy=work.greedy, log_probs=log_probs)
        show(
            "decode",
            **about,
            work=work.name,
            log_probs=log_probs,
            repeat=repeat,
            warm_up_s=round(warm_s, 2),
            seconds=round(seconds, 5),
            tokens=tokens,
            tokens_per_s=round(tokens / seconds, 1),
            faults=[] if tokens == wanted else [f"{tokens} tokens came, {wanted} were asked for"],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder with config.json")
    parser.add_argument("--model", default="0.5b")
    parser.add_argument("--setting", choices=SETTINGS, default="default")
    parser.add_argument("--work", nargs="+", default=["G", "S", "V"])
    parser.add_argument("--size", choices=["full", "small"], default="full")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--log-probs", nargs="+", choices=LOG_PROBS, default=list(LOG_PROBS))
    args = parser.parse_args()

    from vllm import LLM, SamplingParams

    chosen = engine_arguments(args.setting)
    start = time.perf_counter()
    llm = LLM(model=args.folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", **chosen)
    init_s = time.perf_counter() - start
    one = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": list(range(3, 131))}], one, use_tqdm=False)
    about = {"side": "vllm", "setting": args.setting, "model": args.model}
    show(
        "start",
        **about,
        first_in_process=True,
        engine_s=round(init_s, 2),
        engine_to_first_token_s=round(time.perf_counter() - start, 2),
        process_to_first_token_s=round(time.time() - born(), 2),
        version=installed("vllm"),
        arguments=chosen,
        device=device(),
    )
    vocab = fields_of(args.model)["vocab_size"]
    for name in args.work:
        work = works(args.size)[name]
        # A validation reports no log-probabilities
        for log_probs in ["none"] if work.greedy else args.log_probs:
            timed(llm, work, vocab, log_probs=log_probs, repeats=args.repeats, **about)


if __name__ == "__main__":
    main()
