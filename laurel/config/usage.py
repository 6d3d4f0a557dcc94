"""What the help of `laurel train` and of `python3 -m laurel.trainer.main_ppo` says, and the list of keys."""

from __future__ import annotations

from laurel.config.keys import Leaf, leaves, search, show

SETTINGS = """\
Settings are written KEY=VALUE, with the dotted keys of docs/config.md:

  trainer.nnodes=2                  a number, a name, True or False
  trainer.logger=[console,wandb]    a list; "['console','wandb']" is the same
  data.val_files=null               nothing, or the value that is derived
  +reward.reward_kwargs.scale=0.5   a plus sign changes nothing; any name fits
                                    in reward_kwargs, engine_kwargs, ray_init
  ~trainer.nnodes                   back to the default
  --config FILE.yaml                settings from a file, under those typed
"""

EXAMPLE = """\
  {command} \\
      data.train_files=$HOME/data/gsm8k/train.parquet \\
      data.val_files=$HOME/data/gsm8k/test.parquet \\
      actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \\
      algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 \\
      trainer.n_gpus_per_node=8
"""

OPTIONS = """\
  --config FILE      read settings from a YAML file (may be given more than once)
  --dry-run          show the resolved settings and the plan; start and hold nothing
  --keys [PATTERN]   list the keys with default and meaning, all or those that match
  --help             show this
"""

NEXT = """\
Find a key:       laurel train --keys lr
Look first:       add --dry-run
No data yet:      laurel data gsm8k --local_save_dir data/gsm8k
No model, no GPU: laurel quickstart
"""


def help_text(command: str) -> str:
    """The whole help of a command that has no typer around it."""
    return (
        f"usage: {command} KEY=VALUE... [--config FILE.yaml] [--dry-run]\n\n"
        "Train a language model with reinforcement learning (PPO, GRPO).\n\n"
        f"{EXAMPLE.format(command=command)}\n{SETTINGS}\noptions:\n{OPTIONS}\n{NEXT}"
    )


def list_keys(pattern: str = "") -> str:
    """Keys that match, one paragraph each: ``key = default`` and what it means."""
    found: list[Leaf] = search(pattern) if pattern else list(leaves().values())
    if not found:
        return f"no key matches {pattern!r}; `laurel train --keys` lists all"
    return "\n".join(f"{leaf.path}={show(leaf.default)}\n    {meaning(leaf)}" for leaf in found)


def meaning(leaf: Leaf) -> str:
    """The sentence of a setting, with its choices if it has some."""
    return f"{leaf.sentence} One of: {', '.join(leaf.choices)}." if leaf.choices else leaf.sentence
