import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from benchmarks import decode, decode_ours, decode_vllm
from benchmarks.child import environment
from benchmarks.record import Records
from benchmarks.works import SMALL, Asked
from laurel.types import Completion


def test_ours_answers_every_work_at_a_small_size(monkeypatch, rows):
    words = ["decode_ours", "--model", "tiny", "--size", "small", "--repeats", "1", "--work", "G", "S", "V", "L"]
    monkeypatch.setattr(sys, "argv", [*words, "--device", "cpu"])
    decode_ours.main()
    found = rows()
    calls = {row["work"]: row for row in found if row["what"] == "decode"}
    assert {name: row["tokens"] for name, row in calls.items()} == {
        "G": 16 * 16,
        "S": sum(SMALL["S"].lengths()),
        "S=": 8 * 16,
        "V": 13 * 12,
        "L": 8 * 16,
    }
    assert all(row["faults"] == [] for row in calls.values())
    assert calls["G"]["tokens_per_s"] == pytest.approx(256 / calls["G"]["seconds"], rel=0.05)
    assert calls["G"]["occupancy"] == calls["S="]["occupancy"] == 1.0
    assert 0.5 < calls["S"]["occupancy"] < 1.0, "the last ones leave slots empty"
    starts = [row for row in found if row["what"] == "start"]
    assert [row["first_in_process"] for row in starts] == [True, False], "works of one number of slots share an engine"
    assert starts[0]["process_to_first_token_s"] > starts[0]["engine_to_first_token_s"] > 0
    assert starts[1]["caches"] == "same process"


def test_faults_are_seen():
    asked = [Asked(0, (5,), 2), Asked(0, (5,), 2)]

    def done(tokens, log_probs):
        return Completion("", tokens, log_probs, "length", 0)

    right = done((1, 2), (-1.0, -2.0))
    assert decode_ours.faults(asked, [right, right]) == []
    assert decode_ours.faults(asked, [right, done((1,), (-1.0,))]) == [
        "1 of 2 responses have another length than was asked for"
    ]
    assert decode_ours.faults(asked, [right, done((1, 2), None)]) == ["1 responses lack log-probabilities"]
    assert decode_ours.faults(asked, [right, done((1, 2), (-1.0, float("nan")))]) == [
        "some log-probabilities are above 0 or not finite"
    ]


def test_occupancy_of_the_docstring():
    assert decode_ours.occupancy((10, 5), (40, 15), 4) == 0.75
    assert decode_ours.occupancy((10, 5), (10, 5), 4) is None


class StandInForVllm:
    """Answers with the tokens that are asked for, and remembers how it was called."""

    def __init__(self, **given):
        self.given, self.calls, self.emptied = given, [], 0
        StandInForVllm.made = self

    def reset_prefix_cache(self):
        self.emptied += 1

    def generate(self, prompts, params, use_tqdm):
        params = params if isinstance(params, list) else [params]
        self.calls.append((prompts, params))
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7] * one.max_tokens)]) for one in params]


def test_vllm_gets_the_same_requests_with_each_form_of_log_probabilities(monkeypatch, rows):
    module = SimpleNamespace(LLM=StandInForVllm, SamplingParams=lambda **given: SimpleNamespace(**given))
    monkeypatch.setitem(sys.modules, "vllm", module)
    words = ["decode_vllm", "/folder", "--model", "tiny", "--size", "small", "--setting", "1024", "--work", "G", "V"]
    monkeypatch.setattr(sys, "argv", words)
    decode_vllm.main()
    made = StandInForVllm.made
    assert made.given["model"] == "/folder"
    assert made.given["max_num_seqs"] == 1024
    sizes = made.given["compilation_config"]["cudagraph_capture_sizes"]
    assert (sizes[0], sizes[-1], 512 in sizes) == (1, 1024, True)
    found = [row for row in rows() if row["what"] == "decode"]
    assert [(row["work"], row["log_probs"]) for row in found] == [
        ("G", "dict"),
        ("G", "flat"),
        ("G", "none"),
        ("V", "none"),
    ]
    assert [row["tokens"] for row in found] == [256, 256, 256, 13 * 12]
    assert all(row["faults"] == [] for row in found)
    timed = made.calls[2::2]  # after the first token, a warm-up goes before each
    assert made.emptied == 8
    for (prompts, params), form in zip(
        timed, ({"logprobs": 0}, {"logprobs": 0, "flat_logprobs": True}, {}), strict=False
    ):
        assert [tuple(one["prompt_token_ids"]) for one in prompts] == [one.prompt for one in SMALL["G"].asked(512)]
        assert vars(params[0]) == {
            "temperature": 1.0,
            "max_tokens": 16,
            "ignore_eos": True,
            "detokenize": False,
            **form,
        }
    assert vars(timed[3][1][0])["temperature"] == 0.0
    assert max(vars(one)["max_tokens"] for one in made.calls[1][1]) == 2


def test_settings_of_vllm():
    assert decode_vllm.engine_arguments("default") == {}
    assert decode_vllm.engine_arguments("512") == {"max_num_seqs": 512, "max_num_batched_tokens": 16384}


def row(side, work, rate, *, setting="", log_probs="returned", faults=(), **more):
    return {
        **{"what": "decode", "side": side, "work": work, "setting": setting, "log_probs": log_probs, "model": "0.5b"},
        **{"size": "full", "tokens_per_s": rate, "tokens": 524288, "seconds": 524288 / rate, "faults": list(faults)},
        **more,
    }


def test_the_table_compares_the_best_with_the_best():
    rows = [
        row("ours", "G", 150_000.0, slots=1024, occupancy=1.0),
        row("ours", "G", 160_000.0, slots=1024, occupancy=1.0),
        row("ours", "G", 900_000.0, faults=["tokens are missing"]),
        row("vllm", "G", 20_000.0, setting="default", log_probs="dict"),
        row("vllm", "G", 32_000.0, setting="512", log_probs="flat"),
        row("vllm", "G", 64_000.0, setting="512", log_probs="none"),
        row("vllm", "V", 99_000.0, setting="512", log_probs="none"),
        row("ours", "S", 70_000.0, slots=512),
        row("ours", "S=", 100_000.0, slots=512),
    ]
    best = decode.best(rows)
    assert Counter(one["work"] for one in best) == {"G": 4, "V": 1, "S": 1, "S=": 1}
    ours = next(one for one in best if one["work"] == "G" and one["side"] == "ours")
    assert ours["tokens_per_s"] == 160_000.0
    assert decode.ratio(ours, best, told=True) == 5.0
    assert decode.ratio(ours, best, told=False) == 2.5
    records = Records(None)
    for one in rows:
        records.add(one)
    records.add({"what": "skipped", "side": "vllm", "why": "vllm is not installed here"})
    lines = decode.summary(records, "full").splitlines()
    (line,) = [line for line in lines if line.startswith("| G ") and "ours" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:3] == ["G", "0.5b", "ours"]
    assert cells[4:9] == ["160,000", "3.28", "1", "5", "2.5"]
    assert float(cells[10]) == pytest.approx(decode.floor_s(decode.works("full")["G"], "0.5b", 1024) / 3.2768, rel=0.01)
    assert "ours: S gives 0.70 of the rate of equal responses on its slots" in lines
    assert lines[-1] == "vllm: vllm is not installed here"


def test_the_program_itself_with_nothing_but_a_peer_that_is_not_there(tmp_path):
    out = tmp_path / "out.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.decode", "--model", "tiny", "--only", "vllm", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=True,
    )
    assert [one["what"] for one in Records(out).rows] == ["run", "skipped"]
    assert done.stdout.rstrip().endswith("vllm: vllm is not installed here")
