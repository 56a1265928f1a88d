"""`plugins:` of a configuration: its files and modules are loaded by every command, without an option."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from router.cli import commands
from router.cli.archives import configuration_files
from router.config.loader import load_config
from router.errors import ConfigError
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
name: games
plugins: [{plugins}]
lake: ./lake
source: {{files: {{path: ./in}}}}
decode: {{json: "region string"}}
routes: [{{name: games, match: {{region: {{code: eu}}}}, sinks: [{{delta: silver.eu}}]}}]
dead_letters: ops.dead_letters
"""
REGION = """\
from pyspark.sql import Column, functions as F
from router import Rule, hookimpl

class Region(Rule):
    '''Match events of one region.'''

    code: str

    def matches(self) -> Column:
        return F.col("event.region") == self.code

@hookimpl
def router_rules():
    return {"region": Region}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a configuration, which is not the one that commands run in."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "region.py").write_text(REGION)
    return tmp_path


def write(folder: Path, plugins: str) -> Path:
    path = folder / "games.yaml"
    path.write_text(TEXT.format(plugins=plugins))
    return path


def router(*words: str | Path) -> Result:
    return CliRunner().invoke(commands, [str(word) for word in words])


@pytest.mark.parametrize("command", ["check", "status", "tables", "graph", "ledger", "dead-letters", "doctor"])
def test_no_command_needs_an_option(folder: Path, command: str) -> None:
    """Without it each of twelve commands fails until somebody adds --plugin to it."""
    done = router(command, write(folder, "parts/region.py"))

    assert not re.search(r"games\.yaml:\d", done.output)


def test_they_are_those_of_the_file_alone(folder: Path) -> None:
    """Without it a configuration is good because another one was read before."""
    registry = load_registry()
    loaded = load_config(write(folder, "./parts/region.py"), registry)

    assert "region" in loaded.registry.entries["rule"]
    assert "region" not in registry.entries["rule"]


def test_the_option_adds_to_them(folder: Path) -> None:
    """Without it a file that is named twice is refused, or a second one is not loaded."""
    region = folder / "parts" / "region.py"
    other = folder / "other.py"
    other.write_text(REGION.replace('"region"', '"other"'))
    registry = load_registry([region, other])

    loaded = load_config(write(folder, "parts/region.py"), registry)

    assert {"region", "other"} <= loaded.registry.entries["rule"].keys()


def test_a_module_is_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a package that has no entry point has to be copied."""
    (folder / "rules_of_this_test.py").write_text(REGION)
    monkeypatch.syspath_prepend(folder)

    loaded = load_config(write(folder, "rules_of_this_test"), load_registry())

    assert loaded.registry.modules_of_parts(loaded.config) != ()
    assert "rules_of_this_test" in loaded.registry.modules_of_parts(loaded.config)


@pytest.mark.parametrize(
    ("plugins", "column", "what"),
    [
        ("parts/gone.py", 11, "no such file"),
        ("parts/region.py, ./parts/region.py", 28, "is listed twice"),
        ("parts/raises.py", 11, "cannot be imported: ValueError: broken (raises.py:1)"),
        ("parts/exits.py", 11, "cannot be imported: SystemExit"),
        ("parts/syntax.py", 11, "cannot be imported: SyntaxError"),
        ("parts/misspelt.py", 11, "there is no hook"),
        ("parts/region.py, parts/again.py", 28, "region"),
        ("no_such_module_anywhere", 11, "cannot be imported: ModuleNotFoundError"),
        ("parts", 11, "cannot be imported: ModuleNotFoundError"),
        ("''", 11, "neither a file"),
        ("../..", 11, "neither a file"),
    ],
)
def test_one_that_cannot_be_loaded_is_one_problem_with_its_place(
    folder: Path, plugins: str, column: int, what: str
) -> None:
    """Without it there is a traceback, or a line about each rule that the plugin would have offered."""
    hostile = {
        "raises": "raise ValueError('broken')",
        "exits": "import sys; sys.exit()",
        "syntax": "def",
        "misspelt": "from router import hookimpl\n@hookimpl\ndef router_rule(): return {}\n",
        "again": REGION,
    }
    for name, text in hostile.items():
        (folder / "parts" / f"{name}.py").write_text(text)

    with pytest.raises(ConfigError) as failed:
        load_config(write(folder, plugins), load_registry())

    (problem,) = failed.value.problems
    assert (problem.line, problem.column) == (2, column)
    assert what in str(problem)
    assert "\n" not in str(problem)


@pytest.mark.parametrize("plugins", ["{a: b}", "[a.py]"])
def test_another_form_is_a_problem_of_the_configuration(folder: Path, plugins: str) -> None:
    with pytest.raises(ConfigError) as failed:
        load_config(write(folder, plugins), load_registry())
    assert all(problem.line in (2, 6) for problem in failed.value.problems)


def test_they_travel_to_a_cluster_with_the_configuration(folder: Path) -> None:
    """Without it the driver on a cluster lacks what the configuration names."""
    path = write(folder, "parts/region.py")
    travelling = configuration_files(path, [], ["parts/region.py"])
    assert travelling["parts/region.py"] == (folder / "parts" / "region.py").resolve()
    assert travelling["games.yaml"] == path.resolve()
