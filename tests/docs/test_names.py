"""What the documentation names has to exist: files, tests, a batch's functions, the methods of parts as they are."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

from router import ApplyingSink, ArrowDecoder, Decoder, Encoder, MergingSink, Rule, TableSink
from router.api import hookspecs
from router.engine.label.layout import COORDINATES, DEAD_SCHEMA, QUARANTINE_COLUMNS, SCHEMA_COLUMNS
from router.engine.ledger import SCHEMA as LEDGER

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXPLANATION, REFERENCE = ROOT / "docs" / "explanation", ROOT / "docs" / "reference"
TOP = ("router", "router_bench", "plugins", "routes", "tests", "benchmarks", "demo", "docs", "scripts")
FILE = re.compile(rf"`((?:{'|'.join(TOP)})/[\w./-]+)`")
TEST = re.compile(r"`(test_\w+)`")
STEP = re.compile(r"^\| \d \w+ \| `([\w/]+\.py)`, `([\w.]+)`", re.MULTILINE)


def named(pattern: re.Pattern[str]) -> list[tuple[Path, str]]:
    return [(page, name) for page in PAGES for name in dict.fromkeys(pattern.findall(page.read_text()))]


def where(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


@cache
def defined() -> frozenset[str]:
    """Return the names of all tests and test modules."""
    files = [*(ROOT / "tests").rglob("*.py")]
    found = {path.stem for path in files}
    for path in files:
        found |= {*re.findall(r"\bdef (test_\w+)\(", path.read_text())}
    return frozenset(found)


@pytest.mark.parametrize(("page", "name"), named(FILE), ids=where)
def test_a_file_that_a_page_names_is_there(page: Path, name: str) -> None:
    """Without it a reader looks for what was moved long ago."""
    assert (ROOT / name).exists()


@pytest.mark.parametrize(("page", "name"), named(TEST), ids=where)
def test_a_test_that_a_page_names_is_there(page: Path, name: str) -> None:
    """Without it a page promises a guard that nobody stands."""
    assert name in defined()


@pytest.mark.parametrize(("file", "name"), STEP.findall((EXPLANATION / "architecture.md").read_text()))
def test_a_step_of_the_architecture_is_a_function(file: str, name: str) -> None:
    """Without it the page that explains a batch explains another one."""
    found: list[ast.AST] = [ast.parse((ROOT / file).read_text())]
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        found = [node for node in ast.iter_child_nodes(found[0]) if isinstance(node, kinds) and node.name == part]
        assert found, f"{file} has no {part}"


def test_the_architecture_has_nine_steps_in_the_order_of_the_code() -> None:
    """Without it the picture and the code tell two stories."""
    page = (EXPLANATION / "architecture.md").read_text()
    steps = re.findall(r"^\| (\d) (\w+) \|", page, re.MULTILINE)
    process = (ROOT / "router" / "engine" / "batch.py").read_text()

    assert [number for number, _ in steps] == list("123456789")
    body = process[process.index("def process(") :]
    places = [body.index(f"{number} {name}") for number, name in steps]
    assert places == sorted(places)


def signatures(*owners: object) -> list[str]:
    """Return the public functions of classes and modules as a page writes them: `name(argument: Type) -> Type`."""
    found = set()
    for owner in owners:
        for name, function in vars(owner).items():
            if inspect.isfunction(function) and function.__module__.startswith("router.") and name[0] != "_":
                found.add(f"{name}{inspect.signature(function)}".replace("'", ""))
    return sorted(re.sub(r"\(self(, )?", "(", text) for text in found)


@pytest.mark.parametrize(
    "signature",
    signatures(Decoder, ArrowDecoder, Rule, TableSink, MergingSink, ApplyingSink, Encoder, hookspecs),
    ids=str,
)
def test_a_method_of_parts_and_a_hook_are_documented_with_their_signature(signature: str) -> None:
    """Without it an author of a plugin implements what was called so before."""
    assert f"`{signature}`" in (REFERENCE / "plugins.md").read_text().replace("\\|", "|")


@pytest.mark.parametrize(
    "column",
    sorted({*LEDGER.names, *DEAD_SCHEMA.names, *COORDINATES, *QUARANTINE_COLUMNS, *SCHEMA_COLUMNS}),
)
def test_a_column_of_the_router_is_documented(column: str) -> None:
    """Without it somebody who queries a ledger or a quarantine guesses what its columns mean."""
    assert f"`{column}`" in (REFERENCE / "system-tables.md").read_text()
