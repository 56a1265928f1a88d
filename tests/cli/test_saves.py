"""`--watch` of `check`, `test` and `preview` does it again after each save of a file that was read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from router.cli.documents import junit_report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIGURATION = """\
name: games
lake: ./lake
source: {format: {name: rate}}
decode: {json: {schema_file: event.json}}
plugins: [parts.py]
routes: [{name: all, match: {sql: "event.game IS NOT NULL"}, sinks: [{delta: silver.games}]}]
dead_letters: ops.dead
"""
PLUGIN = "from router import hookimpl, Rule\n"
SCHEMA = '{"type": "object", "properties": {"game": {"type": "string"}}}'
TESTS = """\
tests:
  - {name: one, records: [{value: {game: uno}}], expect: {tables: {silver.games: 1}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"g.yaml": CONFIGURATION, "parts.py": PLUGIN, "event.json": SCHEMA, "g.test.yaml": TESTS}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@contextmanager
def watching(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command with `--watch`; at the end it is interrupted."""
    command = [sys.executable, "-m", "router", *arguments, "--watch"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=folder, env={**os.environ}, **output) as process:  # type: ignore[call-overload]
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def line_with(process: subprocess.Popen[str], *texts: str) -> str:
    """Return the next line that has one of some texts."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if any(text in line for text in texts):
            return line
    raise AssertionError("".join(seen))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_configuration_is_checked_after_each_save_of_what_it_consists_of(folder: Path) -> None:
    with watching(folder, "check", "g.yaml") as process:
        assert "good" in line_with(process, "g.yaml")

        change(folder / "g.yaml", "match: {sql", "mach: {sql")
        assert "g.yaml was saved" in line_with(process, "saved")
        assert line_with(process, "mach").startswith("g.yaml:6:")

        change(folder / "g.yaml", "mach: {sql", "match: {sql")
        assert "good" in line_with(process, "good")
        # A file that the configuration names, by the name that its field has there.
        change(folder / "event.json", '"game"', '"gmae"')
        assert "event.json was saved" in line_with(process, "saved")
        assert "gmae" in line_with(process, "g.yaml:6:")
        # One that is missing for a while.
        (folder / "event.json").unlink()
        assert "event.json" in line_with(process, "g.yaml:4")
        (folder / "event.json").write_text(SCHEMA)
        assert "good" in line_with(process, "good")


def test_saved_code_of_a_plugin_begins_the_process_again(folder: Path) -> None:
    """Without it the code that was imported first goes on to run."""
    with watching(folder, "check", "g.yaml") as process:
        line_with(process, "good")
        change(folder / "parts.py", "Rule\n", "Rule\n\n\n@hookimpl\ndef router_rules():\n    return {'odd': 7}\n")

        assert "parts.py was saved: the process begins again" in line_with(process, "saved")
        assert "odd" in line_with(process, "parts.py")
        change(folder / "parts.py", "{'odd': 7}", "{}")
        assert "good" in line_with(process, "good")


@pytest.mark.spark
def test_spark_is_started_once_for_all_saves(folder: Path) -> None:
    """Without it each save costs the start of Spark, twenty times what the tests take."""
    with watching(folder, "test", "g.test.yaml") as process:
        assert "passed" in line_with(process, "g.test.yaml: one")
        jvm = _java_of(process.pid)

        change(folder / "g.test.yaml", "silver.games: 1", "silver.games: 2")
        assert "FAILED" in line_with(process, "g.test.yaml: one")
        change(folder / "g.yaml", "delta: silver.games", "delta: silver.others")
        assert "FAILED" in line_with(process, "g.test.yaml: one")
        change(folder / "g.test.yaml", "silver.games: 2", "silver.others: 1")
        assert "passed" in line_with(process, "g.test.yaml: one")

        assert len(jvm) == 1
        assert _java_of(process.pid) == jvm


def _java_of(parent: int) -> list[str]:
    """Return the processes of Java that a process has started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True)
    lines = [line.split() for line in listed.stdout.splitlines()]
    return [pid for pid, of, name, *_ in lines if of == str(parent) and name == "java"]


def test_one_document_is_printed_once(folder: Path) -> None:
    command = [sys.executable, "-m", "router", "check", "g.yaml", "--watch", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "--json prints one document: it goes without --watch" in done.stderr


def test_a_report_has_what_failed_by_file_whatever_signs_it_has() -> None:
    """Without it a name with a sign that XML cannot have makes the whole report unreadable."""
    cases = [
        {"file": "a.test.yaml", "case": "good", "faults": []},
        {"file": "a.test.yaml", "case": "b\x00d <&>", "faults": ["silver.a: 1 row\x1b[2J", "two"]},
        {"file": "c.test.yaml", "case": "good", "faults": []},
    ]
    root = ET.fromstring(junit_report(cases))

    assert (root.attrib["tests"], root.attrib["failures"]) == ("3", "1")
    assert [(suite.attrib["name"], suite.attrib["tests"]) for suite in root] == [
        ("a.test.yaml", "2"),
        ("c.test.yaml", "1"),
    ]
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.text == "silver.a: 1 row\\x1b[2J\ntwo"
    assert root[0][1].attrib["name"] == "b\\x00d <&>"
