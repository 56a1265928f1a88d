"""Do what two pages tell a reader to do, in an empty folder: the tutorial, and the how-to for a package of plugins.

A block with a title is a file, a block of `sh` is run line by line, and each line of a `text` block right after it is
in its output.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from router.config.loader import load_config
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = DOCS / "tutorial" / "first-route.md"
PLUGIN = DOCS / "how-to" / "write-a-plugin.md"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)

PROGRAMS = {"router": "-m router", "python": "", "python3": "", "pytest": "-m pytest -p no:cacheprovider"}
"""What a reader has after the installation; Spark's workers are started as `python3`."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]  # several starts of Spark


@dataclass
class Reader:
    """Somebody who does what a page says, in a folder of their own."""

    folder: Path
    environ: dict[str, str]
    printed: str = ""

    def write(self, name: str, text: str) -> None:
        """Write a file that the page shows."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, line: str) -> None:
        """Run a command that the page shows, and remember what it printed."""
        done = subprocess.run(
            line, shell=True, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        self.printed += done.stdout

    @contextmanager
    def second_terminal(self, *command: str) -> Iterator[list[str]]:
        """Run a program meanwhile; afterwards the list has the lines that it printed."""
        lines: list[str] = []
        with subprocess.Popen(command, cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, text=True) as program:
            try:
                yield lines
            finally:
                program.terminate()
                lines += program.communicate()[0].splitlines()

    def rows(self, table: str) -> list[dict[str, object]]:
        """Return the rows of a table."""
        return list(DeltaTable(self.folder / "lake" / table.replace(".", "/")).to_pyarrow_table().to_pylist())


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """Return a reader who has installed the router."""
    tools, folder = tmp_path / "tools", tmp_path / "shop"
    folder.mkdir()
    tools.mkdir()
    for name, program in PROGRAMS.items():
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {program} "$@"\n')
        (tools / name).chmod(0o755)
    return Reader(folder, {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the language, the title and the text of each block of a page, in order."""
    yield from BLOCK.findall(page.read_text())


def follow(page: Path, reader: Reader) -> Iterator[str]:
    """Do what a page says. Yields the title of each file after it is written, and each command after it has run."""
    for language, title, text in blocks(page):
        if title:
            reader.write(title, text)
            yield title
        if language == "sh":
            reader.printed = ""
            for line in text.splitlines():
                if line.startswith("cd "):
                    reader.folder /= line.removeprefix("cd ")
                elif not line.startswith("pip "):
                    reader.run(line)
                    yield line
        if language == "text" and reader.printed:
            for line in text.splitlines():
                assert line.partition("...")[0] in reader.printed


def test_the_tutorial_does_what_it_says(reader: Reader) -> None:
    """Without it the first ten minutes of a user end with an error, or with other rows than the page shows."""
    with ExitStack() as terminals:
        calls: list[str] | None = None
        for step in follow(TUTORIAL, reader):
            if step == "in/tuesday.jsonl":
                # The rows that the page counts before it continues.
                rome, paris = reader.rows("silver.orders_rome"), reader.rows("silver.orders_paris")
                assert (len(rome), len(paris), len(reader.rows("bronze.orders"))) == (2, 1, 5)
                assert {row["stage"] for row in reader.rows("ops.dead_letters")} == {"decode", "expect"}
            if step == "api.py":
                calls = terminals.enter_context(reader.second_terminal("python", "api.py"))
            if step.startswith("router tables") and calls is not None:
                assert {row["customer"] for row in reader.rows("silver.customers")} == {"ann", "bob"}
    assert calls is not None
    (call,) = calls
    assert '"order_id":7' in call.replace(" ", "")


def test_the_tutorial_changes_the_source_to_one_that_exists(tmp_path: Path) -> None:
    """Without it the step to Kafka is an error."""
    *_, whole = (text for _, title, text in blocks(TUTORIAL) if title == "orders.yaml")
    (kafka,) = (text for language, title, text in blocks(TUTORIAL) if language == "yaml" and not title)
    changed = re.sub(r"source: .*\n", lambda _: kafka, whole)

    loaded = load_config(tmp_path / "orders.yaml", load_registry(), environ={}, text=changed)

    assert loaded.config.source.kafka is not None


def test_the_package_of_plugins_is_complete(reader: Reader) -> None:
    """Without it the author of a plugin begins with a package that the router does not find, or a broken contract."""
    tomllib = pytest.importorskip("tomllib")  # Python 3.10 has none
    written = ""
    for step in follow(PLUGIN, reader):
        if step == "router plugins new shop-router":
            package = reader.folder / "shop-router"
            _install(reader, package, tomllib.loads((package / "pyproject.toml").read_text())["project"])
            written = (package / "src" / "shop_router" / "rule.py").read_text()
        if step == "src/shop_router/rule.py":
            assert (reader.folder / step).read_text() == written
    assert written


def _install(reader: Reader, package: Path, project: dict[str, object]) -> None:
    """Make the package known to Python as an editable install does, without a build."""
    (group,) = project["entry-points"].items()  # type: ignore[attr-defined]
    folder = package / "src" / f"shop_router-{project['version']}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"{name} = {module}" for name, module in group[1].items()]
    (folder / "entry_points.txt").write_text("\n".join([f"[{group[0]}]", *lines, ""]))
    # Before what the checkout's own tests run with, which a reader has installed.
    reader.environ["PYTHONPATH"] = os.pathsep.join([str(package / "src"), os.environ.get("PYTHONPATH", "")])
