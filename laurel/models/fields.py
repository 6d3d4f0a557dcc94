"""Which fields a model's config class has, read from the source of transformers without importing it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_BASES = {"PreTrainedConfig", "PretrainedConfig"}


def config_fields(published: Mapping[str, Any]) -> frozenset[str] | None:
    """The fields of a config.json and those that its class adds; None where the source does not say.

    A class of the model's own code, or one that inherits from another model's, is left to the real one.
    """
    spec = find_spec("transformers")
    family = str(published.get("model_type") or "").replace("-", "_")
    if "auto_map" in published or not family or spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations)))
    own = _fields_of(root / "models" / family / f"configuration_{family}.py")
    common = _fields_of(root / "configuration_utils.py")
    return None if own is None or common is None else own | common | published.keys()


@cache
def _fields_of(source: Path) -> frozenset[str] | None:
    """Annotated names, properties and ``self.x = ...`` of a file's config classes; None if some come from elsewhere."""
    if not source.is_file():
        return None
    names: set[str] = set()
    for kind in ast.parse(source.read_text(encoding="utf-8")).body:
        if not isinstance(kind, ast.ClassDef) or not kind.name.endswith("Config"):
            continue
        if kind.name not in _BASES and not {ast.unparse(base) for base in kind.bases} <= _BASES:
            return None
        for node in kind.body:
            if isinstance(node, ast.AnnAssign | ast.Assign):
                targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                own = {target.id for target in targets if isinstance(target, ast.Name)}
                names |= own | (_keys(node.value) if "attribute_map" in own else set())
            elif isinstance(node, ast.FunctionDef):
                names |= {node.name} if node.decorator_list else _assigned_to_self(node)
    return frozenset(names)


def _assigned_to_self(function: ast.FunctionDef) -> set[str]:
    targets = [target for node in ast.walk(function) if isinstance(node, ast.Assign) for target in node.targets]
    return {t.attr for t in targets if isinstance(t, ast.Attribute) and ast.unparse(t.value) == "self"}


def _keys(table: ast.expr | None) -> set[str]:
    """The further names of fields that an ``attribute_map`` gives."""
    keys = table.keys if isinstance(table, ast.Dict) else []
    return {str(key.value) for key in keys if isinstance(key, ast.Constant)}
