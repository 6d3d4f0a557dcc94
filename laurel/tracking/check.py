"""What keeps a logger from working, before anything is held. Imports none of the loggers' packages."""

from __future__ import annotations

import netrc
import os
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlparse

from laurel.config.tree import Config
from laurel.types import Problem

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny sqlalchemy alembic"}
"""Logger (and module) name to what pip installs for it."""


def check(config: Config) -> list[Problem]:
    problems = []
    for name, packages in PACKAGES.items():
        if name in config.trainer.logger and find_spec(name) is None:
            cure = f"{name} is not installed; run `pip install {packages}`, or take it out of trainer.logger"
            problems.append(Problem("trainer.logger", name, cure, machine=True))
    if "wandb" in config.trainer.logger and find_spec("wandb") is not None and not _wandb_can_log_in():
        cure = "wandb has no key; set WANDB_API_KEY or run `wandb login`, or set WANDB_MODE=offline to log to disk only"
        problems.append(Problem("trainer.logger", "wandb", cure, machine=True))
    return problems


def _wandb_can_log_in() -> bool:
    # An unset or empty WANDB_MODE both mean online.
    if os.environ.get("WANDB_MODE", "") in ("offline", "disabled", "dryrun") or os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    if host is None or not path.is_file():
        return False
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except netrc.NetrcParseError:
        return False
