"""docs/config.md from the tree: ``python -m laurel.config.docs docs/config.md``."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from laurel.config.keys import Leaf, leaves, show
from laurel.config.usage import SETTINGS, meaning

HEAD = """\
# Settings

Generated from laurel/config/tree.py by `make docs`; edit the sentences there. `null` as a default means that the value
is derived, as the sentence says. `laurel train --keys PATTERN` shows the same on the command line.

```
{settings}```
"""


def render() -> str:
    """The page: a table for each group of settings."""
    parts = [HEAD.format(settings=SETTINGS)]
    for group, members in groupby(leaves().values(), key=lambda leaf: leaf.path.rpartition(".")[0]):
        parts.append(f"\n## {group}\n\n| key | default | meaning |\n|---|---|---|\n")
        parts += [_row(leaf) for leaf in members]
    return "".join(parts)


def _row(leaf: Leaf) -> str:
    return f"| `{leaf.path}` | `{show(leaf.default)}` | {meaning(leaf)} |\n"


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/config.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(), encoding="utf-8")
    print(f"wrote {path}: {len(leaves())} settings")


if __name__ == "__main__":
    main()
