"""Which torch the environment gets: the part of scripts/make_env.py that decides, with pip replaced."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "make_env.py"
CPU_WHEEL = "file:///somewhere/torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
CUDA_WHEEL = "https://somewhere/torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.fixture
def make_env(monkeypatch):
    spec = importlib.util.spec_from_file_location("make_env", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.installs = []
    monkeypatch.setattr(module, "installed_torch", lambda: "")
    monkeypatch.setattr(module, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(module.subprocess, "run", lambda command, **_: module.installs.append(command))
    return module


def resolves(module, monkeypatch, *, pinned: str | None, index: bool) -> None:
    """``pinned`` is the wheel that pip finds for the pin; ``index`` whether PyTorch's own index answers."""

    def resolved(*args: str):
        url = CPU_WHEEL if "--index-url" in args and index else None if "--index-url" in args else pinned
        return url and {"metadata": {"version": "2.13.0"}, "download_info": {"url": url}}

    monkeypatch.setattr(module, "resolved_torch", resolved)


def words(module) -> list[str]:
    """The words of the one install that was made, without pip's own."""
    (command,) = module.installs
    return command[len(module.PIP) :]


def test_a_cpu_build_that_pip_finds_is_taken(make_env, monkeypatch):
    resolves(make_env, monkeypatch, pinned=CPU_WHEEL, index=True)
    make_env.install_torch()
    assert words(make_env) == ["install", "--quiet", "torch==2.13.0"]


def test_else_pytorchs_own_index_is_asked(make_env, monkeypatch):
    resolves(make_env, monkeypatch, pinned=CUDA_WHEEL, index=True)
    make_env.install_torch()
    assert make_env.TORCH_CPU_INDEX in words(make_env)


def test_else_the_size_of_what_comes_is_said(make_env, monkeypatch, capsys):
    resolves(make_env, monkeypatch, pinned=CUDA_WHEEL, index=False)
    make_env.install_torch()
    assert words(make_env) == ["install", "torch>=2.11"]
    assert "about 3 GB of downloads" in capsys.readouterr().out


def test_a_gpu_gets_the_cuda_build(make_env, monkeypatch):
    resolves(make_env, monkeypatch, pinned=CPU_WHEEL, index=True)
    monkeypatch.setattr(make_env, "has_nvidia_gpu", lambda: True)
    make_env.install_torch()
    assert words(make_env) == ["install", "torch>=2.11"]


def test_a_torch_that_is_there_stays(make_env, monkeypatch):
    monkeypatch.setattr(make_env, "installed_torch", lambda: "2.12.0")
    make_env.install_torch()
    assert make_env.installs == []


def test_another_python_is_refused_with_the_cure(make_env, monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    assert make_env.main() == 2
    assert "make PYTHON=python3.12" in capsys.readouterr().out
