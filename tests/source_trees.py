"""The syntax trees of modules, for tests that look at the code: each module is read once per process."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the tree of a module. It is shared: leave it as it is."""
    return ast.parse(path.read_text())
