"""Rules of the house that a reader relies on: names that mean one thing, rooms that stand in a contract."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.source_trees import tree_of

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path for name in ("router", "router_bench", "plugins") for path in (ROOT / name).rglob("*.py"))
ALL = sorted([*SHIPPED, *(path for name in ("demo", "benchmarks", "tests") for path in (ROOT / name).rglob("*.py"))])
SAYS_NOTHING = {"utils", "helpers", "common", "base", "manager"}


def trees(paths: list[Path]) -> list[tuple[str, ast.Module]]:
    return [(str(path.relative_to(ROOT)), tree_of(path)) for path in paths]


def test_no_two_public_classes_have_one_name() -> None:
    """Without it a reader who looks for a class finds another one."""
    places: dict[str, list[str]] = defaultdict(list)
    for place, tree in trees(SHIPPED):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(place)

    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_docstring_begins_with_be() -> None:
    """A class is a thing: its docstring says which, as a noun phrase."""
    found = [path for path in ALL if re.search(r'^\s*r?"""\s*Be ', path.read_text(), re.MULTILINE)]

    assert found == []


def test_the_name_of_a_module_says_what_is_in_it() -> None:
    """Whatever has no place ends up in a module called `utils`."""
    assert [path for path in SHIPPED if SAYS_NOTHING & {path.stem, path.parent.name}] == []


def test_one_module_asks_delta_rs_for_rows() -> None:
    """delta-rs lets a filter leave out files without bounds of a column: whoever asks it directly misses rows."""
    calls = {
        place
        for place, tree in trees(SHIPPED)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("to_pyarrow_dataset", "to_pyarrow_table", "to_pandas")
        and "router" in place
    }
    # A case of `router test` reads whole tables.
    assert calls == {"router/delta/dataset.py", "router/engine/preflight/route_tests.py"}


def test_one_module_of_the_command_line_builds_sessions() -> None:
    """A command with a session of its own reads a lake without its credentials, or asks another account's bucket."""
    users: dict[str, set[str]] = defaultdict(set)
    for place, tree in trees(sorted((ROOT / "router" / "cli").rglob("*.py"))):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                users[node.id].add(place)
            if isinstance(node, ast.Attribute):
                users[node.attr].add(place)

    assert users["build_session"] | users["stop_session"] | users["getOrCreate"] == {"router/cli/session.py"}
    # A stream reaches its lake by itself; route tests and the archive of classes have lakes of their own on a disk.
    names = ("run", "check", "capture", "class_archive", "session")
    without_lake = {f"router/cli/{name}.py" for name in names}
    assert users["spark_session"] == without_lake


@pytest.fixture(scope="module")
def rooms() -> set[str]:
    """Return the packages of router/ and plugins/, and the public modules beside the packages of router/."""
    packages = {path.parent for path in SHIPPED if path.name == "__init__.py"}
    modules = [path.with_suffix("") for path in (ROOT / "router").glob("*.py") if not path.stem.startswith("_")]
    found = {".".join(path.relative_to(ROOT).parts) for path in (*packages, *modules)}
    return {name.removeprefix("plugins.") for name in found}


def test_every_room_stands_in_a_contract(rooms: set[str]) -> None:
    """Without it an import in the wrong direction is noticed by nobody."""
    tomllib = pytest.importorskip("tomllib")  # Python 3.10 has none
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named: set[str] = set()
    for contract in contracts:
        layers = [name for layer in contract.get("layers", ()) for name in re.split(r"\s*[|:]\s*", layer)]
        named |= {f"{top}.{name}" for top in contract.get("containers", ()) for name in layers}
        named |= {*layers, *contract.get("source_modules", ()), *contract.get("forbidden_modules", ())}

    assert rooms - named == set()


def test_every_slow_twin_is_a_test() -> None:
    """Without it a renamed test takes its minute in every run again, and its line misleads."""
    twins = slow_twins()
    for test, small_version in twins.items():
        path, _, name = test.partition("::")
        assert small_version, test
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), test


def test_the_small_version_of_a_slow_twin_is_none_itself() -> None:
    """Without it `make test` leaves out both, since each is taken for the other's small version."""
    twins = slow_twins()
    for test, small_version in twins.items():
        function = test.partition("[")[0]
        if small_version.startswith("["):
            assert f"{function}{small_version}" not in twins, test
        for name in re.findall(r"\btest_\w+\b(?!\.py)", small_version):
            left_out = [twin for twin in twins if twin.partition("::")[2] == name]
            assert not left_out, test


def slow_twins() -> dict[str, str]:
    """Return the tests that `make test` leaves out, each with its smaller version."""
    twins: dict[str, str] = {}
    for line in (ROOT / "tests" / "slow_twins.txt").read_text().splitlines():
        if not line.startswith("#"):
            test, small_version = line.split(" -> ")
            twins[test] = small_version
    return twins
