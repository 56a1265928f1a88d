"""Print the statements of each folder beside its ceiling: `scripts/statements.py [write]`. Fails where there are more.

A statement is a node of the syntax tree; docstrings are none. The ceilings stand in scripts/ceilings.txt; with `write`
those that are higher than what is there come down to it, and a new folder gets one.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

import click

ROOTS = ("router", "router_init", "plugins")
CEILINGS = Path(__file__).with_name("ceilings.txt")


def main(*, write: bool) -> int:
    """Return 1 if a folder has more statements than it may have, or no ceiling."""
    found: Counter[str] = Counter()
    for root in ROOTS:
        for path in Path(root).rglob("*.py"):
            found[str(path.parent)] += _statements(path)
    ceilings = {}
    for line in CEILINGS.read_text().splitlines():
        number, folder = line.split()
        ceilings[folder] = int(number)
    if write:
        ceilings = {folder: min(count, ceilings.get(folder, count)) for folder, count in sorted(found.items())}
        CEILINGS.write_text("".join(f"{ceiling:6} {folder}\n" for folder, ceiling in ceilings.items()))
    above = 0
    for folder, count in sorted(found.items()):
        ceiling = ceilings.get(folder, 0)
        is_above = count > ceiling
        above += is_above
        click.echo(f"{count:7,} of {ceiling:7,}  {folder}{'  ABOVE: see CONTRIBUTING.md' if is_above else ''}")
    click.echo(f"{sum(found.values()):7,} of {sum(ceilings.values()):7,}  all")
    return 1 if above else 0


def _statements(path: Path) -> int:
    count = 0
    for node in ast.walk(ast.parse(path.read_text())):
        is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_text = is_constant and isinstance(node.value.value, str)
        count += isinstance(node, ast.stmt) and not is_text
    return count


if __name__ == "__main__":
    raise SystemExit(main(write=sys.argv[1:] == ["write"]))
