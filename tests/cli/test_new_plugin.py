"""`router plugins new` writes a package that is green before anybody has changed a line, with any kinds of parts."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from router.cli import commands
from router.registry import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("empty_folder")

SUBSETS = [kinds for size in range(1, len(FAMILIES) + 1) for kinds in combinations(FAMILIES, size)]


def router(*words: str | Path) -> Result:
    return CliRunner().invoke(commands, [str(word) for word in words])


def run_module(folder: Path, sources: Iterable[str], *words: str) -> None:
    """Run a module of Python in a folder, as if the packages in these folders below it were installed."""
    path = [*(str(folder / source) for source in sources), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kinds", SUBSETS, ids="-".join)
def test_a_package_of_any_parts_is_good(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]
) -> None:
    """Without it somebody who needs no sink gets a configuration with one, or an import of a file that is not there."""
    name = "-".join(["of", *kinds])
    package = empty_folder / name
    assert router("plugins", "new", name, "--parts", ",".join(kinds)).exit_code == 0
    module = package / "src" / name.replace("-", "_")
    monkeypatch.syspath_prepend(package / "src")

    checked = router("check", "--plugin", module / "__init__.py", package / "orders.yaml")

    assert f"plugins: {module / '__init__.py'}" in checked.output
    assert checked.exit_code == 0
    assert {path.stem for path in module.iterdir() if path.is_file()} == {"__init__", *kinds}
    assert {path.stem for path in (package / "tests").iterdir()} == {"conftest", *(f"test_{kind}" for kind in kinds)}
    run_module(package, [], "ruff", "check", "--isolated", "--no-cache")
    run_module(package, [], "ruff", "format", "--isolated", "--no-cache", "--check")
    written = "".join(path.read_text() for path in package.rglob("*.*") if path.suffix in {".py", ".toml", ".yaml"})
    assert "own_parts" not in written
    assert "own-parts" not in written
    assert "# if" not in written
    assert "# unless" not in written


@pytest.mark.spark
def test_a_package_of_one_part_passes_its_route_test(empty_folder: Path) -> None:
    """Built-in parts stand in for the others. tests/docs/test_walked_pages.py runs the package of all parts."""
    plugins = []
    tests = []
    for kind in FAMILIES:
        router("plugins", "new", f"only-{kind}", "--parts", kind)
        plugins += ["--plugin", f"only-{kind}/src/only_{kind}/__init__.py"]
        tests.append(f"only-{kind}/orders.test.yaml")

    # One start of Spark for all of them.
    run_module(empty_folder, [f"only-{kind}/src" for kind in FAMILIES], "router", "test", *plugins, *tests)


@pytest.mark.slow  # mypy reads Spark
def test_a_package_is_typed(empty_folder: Path) -> None:
    """Without it the first look of a type checker at a new package is a list of errors."""
    router("plugins", "new", "shop-router")

    run_module(empty_folder / "shop-router", ["src"], "mypy", "--strict", "src", "tests")


def test_the_next_commands_are_named() -> None:
    """Without it a newcomer has files and no idea what to do with them."""
    result = router("plugins", "new", "shop-router", "--parts", "rule")

    assert result.output == (
        "shop-router/orders.test.yaml\n"
        "shop-router/orders.yaml\n"
        "shop-router/pyproject.toml\n"
        "shop-router/src/shop_router/__init__.py\n"
        "shop-router/src/shop_router/rule.py\n"
        "shop-router/tests/conftest.py\n"
        "shop-router/tests/test_rule.py\n"
        "\n"
        "next:\n"
        "  cd shop-router && pip install -e . pytest\n"
        "  pytest\n"
        "  router test orders.test.yaml\n"
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("../shop", "is not a name"),
        ("-shop", "No such option"),
        ("2shop", "is not a name"),
        ("shop\x1b[31m", "`shop\\x1b[31m` is not a name"),
        ("shop\n", "is not a name"),
        ("s" * 41, "is not a name"),
        ("Class", "is a word of Python"),
        ("json", "would hide the module `json`"),
        ("router-rules", "would hide the module `router_rules`"),
        ("spark-event-router", "which `pip install` would replace"),
    ],
)
def test_a_name_that_breaks_something_is_refused(empty_folder: Path, name: str, problem: str) -> None:
    """Without it `pip install -e .` replaces the router itself, or files are written somewhere else."""
    result = router("plugins", "new", name)

    assert problem in result.output
    assert result.exit_code == 2
    assert list(empty_folder.iterdir()) == []


def test_nothing_is_overwritten_unless_forced(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a second call takes the work of a day away."""
    router("plugins", "new", "kept-parts", "--parts", "rule")
    package = empty_folder / "kept-parts"
    changed = package / "src" / "kept_parts" / "rule.py"
    changed.write_text("mine")
    (package / "notes.md").write_text("mine")

    refused = router("plugins", "new", "kept-parts", "--parts", "rule")

    assert "kept-parts is there already; --force overwrites files in it" in refused.output
    assert (refused.exit_code, changed.read_text()) == (2, "mine")

    monkeypatch.syspath_prepend(package / "src")  # as after `pip install -e`
    forced = router("plugins", "new", "kept-parts", "--parts", "rule", "--force")

    assert forced.exit_code == 0, forced.output
    assert (changed.read_text() != "mine", (package / "notes.md").read_text()) == (True, "mine")


@pytest.mark.parametrize("kinds", ["rules", "", "rule,", "rule,\x1b[31m"])
def test_an_unknown_kind_is_refused(empty_folder: Path, kinds: str) -> None:
    """Without it a misspelt kind is a package without that part."""
    result = router("plugins", "new", "shop-router", "--parts", kinds)

    assert "kinds: decoder, encoder, rule, sink, view" in result.output
    assert "\x1b" not in result.output
    assert (result.exit_code, list(empty_folder.iterdir())) == (2, [])


def test_an_installation_without_the_package_is_one_sentence(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the command names the next steps in a folder that it did not write."""
    monkeypatch.setattr("router.cli.__file__", str(empty_folder / "router" / "cli" / "__init__.py"))

    result = router("plugins", "new", "shop-router")

    assert "this installation lacks the folder `new_plugin`" in result.output
    assert (result.exit_code, list(empty_folder.iterdir())) == (2, [])
