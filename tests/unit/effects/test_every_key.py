"""No dead keys: the registry of effect tests and the tree have the same keys."""

import importlib
from pathlib import Path

from unit.effects.registry import EFFECTS, effect

from laurel.config.keys import leaves


def registered() -> dict[str, set[str]]:
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        if file.stem != Path(__file__).stem:
            importlib.import_module(f"unit.effects.{file.stem}")
    return EFFECTS


def test_every_key_has_a_test_that_observes_its_effect():
    missing = [key for key in leaves() if key not in registered()]
    assert not missing, f"no effect test for {', '.join(missing)}; add one with @effect({missing[0]!r})"


def test_no_test_observes_a_key_that_is_gone():
    gone = sorted(registered().keys() - leaves().keys())
    assert not gone, f"effect tests of keys that the tree does not have: {', '.join(gone)}"


def test_the_registry_holds_what_tests_declare():
    before = dict(EFFECTS)
    try:
        effect("data.no_such_key")(test_the_registry_holds_what_tests_declare)
        assert EFFECTS["data.no_such_key"] == {"test_the_registry_holds_what_tests_declare"}
    finally:
        EFFECTS.clear()
        EFFECTS.update(before)
