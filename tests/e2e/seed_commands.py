"""The command lines of the multi-node guide, taken out of the page that fixes them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PAGE = Path(__file__).parents[1] / "fixtures" / "seed_commands.md"
MAIN = "python3 -m laurel.trainer.main_ppo"
BIG_MODEL = "Qwen/Qwen2.5-7B-Instruct"


def options(page: str) -> dict[int, list[str]]:
    """Settings of each option, later ones of a key replacing earlier ones, read as a shell reads them.

    2 and 4 print only what differs from 1, with ``...`` where a name is to be filled in. 2 has two nodes with one GPU;
    3 puts the command of 1 into a script; 4 names another model.
    """
    first, second, third, fourth = (section(page, number) for number in (1, 2, 3, 4))
    by_hand = settings(re.search(re.escape(MAIN) + r"(.*?)\n```", joined(first), re.DOTALL)[1].partition("\n")[0])
    further = settings(re.search(r"Keys beyond Option 1: `(.*?)`", second, re.DOTALL)[1])
    task = settings(re.search(re.escape(MAIN) + r"(.*?)`", fourth, re.DOTALL)[1])
    assert "Two nodes, one L4 each" in " ".join(second.split())
    assert "sbatch" in third
    assert BIG_MODEL in fourth
    big = [f"{key}={BIG_MODEL}" for key in ("actor_rollout_ref.model.path", "critic.model.path")]
    return {
        1: by_hand,
        2: merged(by_hand, ["trainer.n_gpus_per_node=1", "trainer.nnodes=2"], further),
        3: by_hand,
        4: merged(by_hand, big, task),
    }


def submission(page: str) -> list[str]:
    """The words of Option 1's ``ray job submit`` before its ``--``."""
    return shlex.split(re.search(r"^ray (job submit .*?) -- ", joined(section(page, 1)), re.MULTILINE)[1])


def section(page: str, number: int) -> str:
    """The text under ``## Option NUMBER``."""
    return re.search(rf"^## Option {number}\b.*?$(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)[0]


def joined(text: str) -> str:
    """Lines that end in a backslash put together with the next."""
    return re.sub(r"\\\n\s*", "", text)


def settings(words: str) -> list[str]:
    """Only key=value words; a value of ``...`` becomes "seed"."""
    found = [word for word in shlex.split(words) if re.match(r"[a-z_.]+=", word)]
    return [word.replace("=...", "=seed") for word in found]


def merged(*parts: list[str]) -> list[str]:
    chosen: dict[str, str] = {}
    for word in (word for part in parts for word in part):
        key = word.partition("=")[0]
        chosen.pop(key, None)
        chosen[key] = word
    return list(chosen.values())
