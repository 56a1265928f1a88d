"""Tables are written in one module with delta-rs, and in its twin with Spark."""

from __future__ import annotations

import ast
from pathlib import Path

from delta.exceptions import captured as exceptions

from router.delta.replace_by_spark import CONFLICTS
from tests.source_trees import tree_of

ROOT = Path(__file__).parents[2]
FUNCTIONS = {"create_table_with_add_actions", "write_deltalake"}
METHODS = {"add_constraint", "create_write_transaction", "set_table_properties"}
"""What delta-rs commits with, but for merges, deletions and maintenance."""
MERGES = {"router/delta/keyed/upsert.py"}


def writes_of_delta_rs(path: Path) -> set[str]:
    """Return what a module calls of delta-rs to commit."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        method = name.rpartition(".")[2] if "." in name else ""
        if name in FUNCTIONS or name in ("DeltaTable.create", "table.merge") or method in METHODS:
            found.add(name)
    return found


def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_no_other_module_commits_with_delta_rs() -> None:
    """Without it a module commits without an id, or without the hooks that keep a log short."""
    found = {path.relative_to(ROOT).as_posix(): writes_of_delta_rs(path) for path in modules("router", "plugins")}
    merges = {place for place, calls in found.items() if "table.merge" in calls}

    assert merges == MERGES
    assert {place for place, calls in found.items() if calls - {"table.merge"}} == {"router/delta/replace.py"}


def test_every_conflict_of_delta_on_spark_is_tried_again() -> None:
    """Without it a merge, a deletion or the dead letters of a sink fail if another writer was faster."""
    conflicts = []
    for name, error in vars(exceptions).items():
        if isinstance(error, type) and name.startswith(("Concurrent", "Delta")):
            conflicts.append(error)
    assert len(conflicts) >= 5
    assert {*conflicts, exceptions.MetadataChangedException, exceptions.ProtocolChangedException} == {*CONFLICTS}
