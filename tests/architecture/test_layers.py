"""Imports go down only, rooms of one layer do not know each other, and a heavy dependency has one door."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "laurel"
LAYERS = [
    {"config", "types"},
    {"batch", "models", "tools", "tracking"},
    {"data", "rewards", "algos", "weights"},
    {"learner", "rollout"},
    {"workers"},
    {"preflight"},
    {"trainer"},
    {"launch"},
    {"cli"},
]
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
DOORS = {
    "ray": ("workers/", "preflight/", "launch/"),
    "transformers": ("models/",),
    "vllm": ("rollout/vllm/",),
    "sglang": ("rollout/sglang/",),
    "wandb": ("tracking/loggers.py",),
    "mlflow": ("tracking/loggers.py",),
    "tensorboard": ("tracking/loggers.py",),
    "torch.utils.tensorboard": ("tracking/loggers.py",),
    "matplotlib": ("tracking/plot.py",),
    "triton": (
        "models/kernels/layers_triton.py",
        "models/kernels/log_probs_triton.py",
        "models/kernels/paged_attention_triton.py",
        "models/kernels/rows_triton.py",
        "models/kernels/train_triton.py",
        "rollout/native/draw_triton.py",
        "weights/fingerprint_triton.py",
    ),
    "torch.distributed": ("learner/", "weights/", "preflight/bandwidth.py"),
}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(module: str) -> str:
    return module.split(".")[1]


def imports(path: Path) -> list[str]:
    """Every module that the file imports, at the top or inside a function; `from a import b` counts as a.b too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def wrong_imports(path: Path) -> list[str]:
    own = room(path)
    if own in ("__init__", "__main__"):
        return []
    wrong = []
    for module in imports(path):
        if module.startswith("laurel.") and room_of(module) not in (own, "__version__", "types"):
            other = room_of(module)  # types are the words that every room speaks, config too
            if LAYER_OF[other] >= LAYER_OF[own]:
                wrong.append(f"{name(path)} (layer {LAYER_OF[own]}) imports {module} (layer {LAYER_OF[other]})")
    return wrong


def wrong_doors(path: Path) -> list[str]:
    return [
        f"{name(path)} imports {module}, whose door is {' or '.join(doors)}"
        for module in imports(path)
        for dependency, doors in DOORS.items()
        if (module == dependency or module.startswith(dependency + ".")) and not name(path).startswith(doors)
    ]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_go_down(path):
    assert wrong_imports(path) == []


@pytest.mark.parametrize("path", FILES, ids=name)
def test_heavy_dependencies_come_through_their_door(path):
    assert wrong_doors(path) == []


def test_config_imports_nothing_of_ours_but_the_words():
    for path in (PACKAGE / "config").rglob("*.py"):
        rooms = {room_of(module) for module in imports(path) if module.startswith("laurel.")}
        assert rooms <= {"config", "types"}, name(path)


def test_types_need_no_torch():
    assert not any(module.startswith(("torch", "numpy")) for module in imports(PACKAGE / "types.py"))


def test_no_module_cycles():
    """A cycle inside a room is as hard to read as one between rooms."""
    modules = {"laurel." + name(path).removesuffix(".py").replace("/", "."): path for path in FILES}
    edges = {
        module: {other for used in imports(path) for other in modules if used == other or used.startswith(other + ".")}
        - {module}
        for module, path in modules.items()
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, "cycle: " + " -> ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for other in edges[module]:
                visit(other, (*trail, module))
            done.add(module)

    for module in modules:
        visit(module, ())


def test_the_rules_can_fail(tmp_path, monkeypatch):
    """The checks above see a wrong import, a wrong door and a hidden one inside a function."""
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    bad = tmp_path / "batch" / "bad.py"
    bad.parent.mkdir()
    bad.write_text("def f():\n    from laurel.trainer.train import train\n    import ray.util\n")
    assert wrong_imports(bad) == ["batch/bad.py (layer 1) imports laurel.trainer.train.train (layer 6)"]
    assert wrong_doors(bad) == ["batch/bad.py imports ray.util, whose door is workers/ or preflight/ or launch/"]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_rooms_stay_small(path):
    """Guidance, with room: a file of 400 lines or a function of 80 is a sign that a noun is missing."""
    source = path.read_text()
    assert len(source.splitlines()) <= 420, f"{name(path)} is long: split it by its nouns"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= 90, f"{name(path)}: {node.name} has {length} lines"


def test_no_room_for_odds_and_ends():
    assert [name(path) for path in FILES if path.stem in ("utils", "util", "common", "helpers", "misc")] == []
