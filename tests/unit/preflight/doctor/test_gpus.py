import pytest

from laurel.preflight.doctor.gpus import Gpu, Gpus, judge, look, parse

GIB = 2**30
LISTING = """\
GPU-1a, NVIDIA H200, 143771, 0, 570.86.15
GPU-2b, NVIDIA H200, 143771, 4096, 570.86.15
GPU-3c, Some board, [N/A], [N/A], 570.86.15
"""


def gpu(uuid: str, name: str = "H200", used: int = 0) -> Gpu:
    return Gpu(uuid, name, 140 * GIB, used, "570")


def test_what_the_driver_lists():
    first, second, third = parse(LISTING)
    assert first == Gpu("GPU-1a", "NVIDIA H200", 143771 << 20, 0, "570.86.15")
    assert second.used == 4096 << 20
    assert (third.total, third.used) == (0, 0)


def test_healthy_nodes_have_no_findings():
    nodes = {"a": Gpus((gpu("1"), gpu("2")), 2), "b": Gpus((gpu("3"), gpu("4")), 2)}
    assert judge(nodes, wanted=2, torch={"a": "2.11.0", "b": "2.11.0"}) == []


@pytest.mark.parametrize(
    ("gpus", "severity", "what", "cure"),
    [
        (Gpus((gpu("1"),), 1), "error", "offers 1 GPUs to Ray, 2 are wanted", "CUDA_VISIBLE_DEVICES"),
        (Gpus((gpu("1"),), 2), "error", "offers 2 GPUs to Ray, but the driver shows 1", "xid"),
        (Gpus(None, 2, "nvidia-smi is not installed"), "warning", "nvidia-smi is not installed", "duplicates"),
        (Gpus((gpu("1"), gpu("2", used=9 * GIB)), 2), "warning", "GPU 1 (2) has 9.0 of 140.0 GiB in use", "end it"),
    ],
)
def test_one_node(gpus, severity, what, cure):
    (found,) = judge({"a": gpus}, wanted=2)
    assert (found.topic, found.severity, found.where) == ("GPUs", severity, "a")
    assert what in found.what
    assert cure in found.cure


def test_gpus_of_another_run_are_a_note_while_enough_are_idle():
    (found,) = judge({"a": Gpus((gpu("1", used=9 * GIB), gpu("2")), 2)}, wanted=1)
    assert (found.severity, found.what) == ("note", "GPU 0 (1) has 9.0 of 140.0 GiB in use")


def test_a_gpu_that_two_nodes_show_is_one_machine():
    (found,) = judge({"a": Gpus((gpu("1"),), 1), "b": Gpus((gpu("1"),), 1)}, wanted=1)
    assert (found.severity, found.where) == ("error", "b")
    assert found.what == "its GPU 1 is also a's: both run on one machine"
    assert "CUDA_VISIBLE_DEVICES" in found.cure


def test_gpus_of_two_kinds_and_a_torch_without_cuda():
    nodes = {"a": Gpus((gpu("1"),), 1), "b": Gpus((gpu("2", name="A100"),), 1)}
    torch, kinds = judge(nodes, wanted=1, torch={"a": "2.11.0", "b": "2.11.0+cpu"})
    assert (torch.severity, torch.where, torch.what) == ("error", "b", "torch 2.11.0+cpu is a build without CUDA")
    assert (kinds.severity, kinds.what) == ("warning", "different GPUs: H200 on a; A100 on b")


def test_a_run_on_cpus_does_not_ask_for_gpus():
    assert judge({"a": Gpus(None, 0, "no tool"), "b": Gpus((gpu("2", used=9 * GIB),), 1)}, wanted=0) == []


def test_the_tool_is_asked_for_what_the_raylet_sees(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$*" in *--id=1*) echo "GPU-2b, H200, 100, 1, 570";; *) exit 9;; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert look(1, "1").shown == (Gpu("GPU-2b", "H200", 100 << 20, 1 << 20, "570"),)
    assert look(1, "").shown == ()
    assert look(2, "MIG-1,MIG-2") == Gpus(None, 2, "parts of GPUs (MIG) are not listed")
    failed = look(1, None)
    assert (failed.shown, failed.problem) == (None, "nvidia-smi: code 9")
