from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from laurel.tracking import check as tracking_check
from laurel.tracking.check import check


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(tracking_check, "find_spec", lambda name: object())


def test_console_and_file_need_nothing(config) -> None:
    assert check(config("console", "file", "tensorboard", "mlflow")) == []


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_missing_package_says_what_to_install(config, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(tracking_check, "find_spec", lambda module: None)
    (problem,) = check(config("console", name))
    assert (problem.field, problem.value, problem.machine) == ("trainer.logger", name, True)
    assert f"`pip install {name}" in problem.cure


def test_missing_wandb_key_is_named(config) -> None:
    (problem,) = check(config("wandb"))
    assert (problem.field, problem.value, problem.machine) == ("trainer.logger", "wandb", True)
    assert "WANDB_API_KEY" in problem.cure
    assert "WANDB_MODE=offline" in problem.cure


@pytest.mark.parametrize(
    ("name", "value"), [("WANDB_MODE", "offline"), ("WANDB_MODE", "disabled"), ("WANDB_API_KEY", "k")]
)
def test_wandb_by_environment(config, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert check(config("wandb")) == []


@pytest.mark.parametrize(("host", "problems"), [("api.wandb.ai", 0), ("example.org", 1)])
def test_wandb_by_netrc(config, tmp_path: Path, host: str, problems: int) -> None:
    (tmp_path / "netrc").write_text(f"machine {host}\n login user\n password k\n")
    assert len(check(config("wandb"))) == problems


def test_check_imports_no_heavy_package() -> None:
    code = "import sys, laurel.tracking.check; sys.exit(bool({'torch', 'wandb', 'mlflow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
