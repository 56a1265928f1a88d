"""The commands answer in lines that people and scripts can use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, write_deltalake

import router.cli
import router.registry
from router import BatchReport, ConfigError, Problem, StartError
from router.cli.watching import Watcher, batch_line
from router.engine.preflight.lake_changes import Change
from router.errors import VERBOSE, RunningError, SessionLost

TESTS = Path(__file__).parents[1]
PARTS = TESTS / "config" / "parts.py"
GOOD = """\
name: games
lake: ./lake
source: {kafka: {servers: "127.0.0.1:9092", topics: [game-events]}}
decode: {text: }
routes:
  - {name: a, match: {where: a}, sinks: [{fixed: silver.a}, {fixed: silver.b}]}
  - {name: b, match: {where: b}, sinks: [{fixed: silver.b}]}
dead_letters: ops.dead_letters
"""

Run = Callable[..., Result]


BUILT_IN = """\
name: games
lake: ./lake
source: {files: {path: ./in}}
decode: {json: "game string"}
routes:
  - {name: all, match: {sql: x}, sinks: [{delta: silver.all}]}
dead_letters: ops.dead
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in a folder with `good.yaml` and `bad.yaml`, with the parts of the tests only."""
    monkeypatch.setattr(router.registry, "entry_points", lambda group: ())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(GOOD.replace("lake:", "lak:").replace("where: b", "were: b"))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(router.cli.commands, arguments, prog_name="router")

    return run


def test_check_counts_what_is_good(run):
    result = run("check", "good.yaml", "--plugin", str(PARTS))

    assert result.output == f"good.yaml: good; 2 routes, 3 sinks; plugins: {PARTS}\n"
    assert result.exit_code == 0


def test_check_names_no_module_of_the_router_as_a_plugin(tmp_path, monkeypatch):
    """Without it a user looks for plugins that nobody installed: they come with the router."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "built_in.yaml").write_text(BUILT_IN)

    result = CliRunner().invoke(router.cli.commands, ["check", "built_in.yaml"], prog_name="router")

    assert result.output == "built_in.yaml: good; 1 route, 1 sink; plugins: built-in\n"


def test_check_says_how_a_plugin_is_found(run, tmp_path):
    """Without it the author of a plugin of one file does not learn that the file has to be named."""
    (tmp_path / "region.yaml").write_text(BUILT_IN.replace("{sql: x}", "{region_of: eu}"))

    result = run("check", "region.yaml")

    assert "there is no rule `region_of`; known rules: " in result.output
    assert result.output.endswith("install the plugin's package, or name its file under `plugins:`\n")


def test_check_prints_one_problem_a_line(run):
    result = run("check", "bad.yaml", "--plugin", str(PARTS))

    places = [line.split(": ")[0] for line in result.stdout.splitlines()]
    assert places == ["bad.yaml:1:1", "bad.yaml:2:1", "bad.yaml:7:23"]
    assert "routes.1.match.were: there is no rule `were`; did you mean `where`?" in result.stdout
    assert result.exit_code == 1


def test_maintain_says_what_it_did(run, tmp_path):
    for number in range(3):
        write_deltalake(tmp_path / "lake/silver/a", pa.table({"k": [number]}), mode="append")

    dry = run("maintain", "good.yaml", "--plugin", str(PARTS), "--dry-run")
    found = run("maintain", "good.yaml", "--plugin", str(PARTS), "silver.*")
    nothing = run("maintain", "good.yaml", "--plugin", str(PARTS), "gold.*")

    assert [line.split()[:3] for line in (dry.output + found.output).splitlines() if "silver.a" in line] == [
        ["silver.a", "3", "1"]
    ] * 2
    assert (dry.exit_code, found.exit_code, nothing.exit_code) == (0, 0, 2)
    assert len(DeltaTable(tmp_path / "lake/silver/a").file_uris()) == 1


@pytest.mark.parametrize(
    ("problems", "code"), [((), 0), ((Problem("good.yaml", 6, 23, "routes.0.match.where", "no column a"),), 1)]
)
def test_check_plan_asks_the_engine(run, monkeypatch, problems, code):
    def check_plan(loaded, registry):
        if problems:
            raise ConfigError(problems)
        return "in one stage"

    engine = ModuleType("router.engine.preflight.check")
    engine.check_plan = check_plan  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "router.engine.preflight.check", engine)

    result = run("check", "good.yaml", "--plan", "--plugin", str(PARTS))

    told = [line for line in result.output.splitlines() if "good;" not in line]
    assert told == ([str(problem) for problem in problems] or ["in one stage"])
    assert code == result.exit_code


@pytest.mark.parametrize(("severity", "code"), [("safe", 0), ("to do", 0), ("refused", 1)])
def test_check_lake_says_what_changes(run, monkeypatch, severity, code):
    """Without it a deployment goes on with a configuration that the start refuses."""
    engine = ModuleType("router.engine.preflight.check")
    change = Change(severity, ("routes", 0), "rows wait", "put it back")
    engine.check_lake = lambda loaded: [change]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "router.engine.preflight.check", engine)

    result = run("check", "good.yaml", "--lake", "--plugin", str(PARTS))

    (line,) = [line for line in result.output.splitlines() if "good;" not in line]
    assert line.endswith(f"routes.0: {severity}: rows wait; put it back")
    assert line.startswith("good.yaml:")
    assert code == result.exit_code


def test_check_prints_a_document_of_its_problems(run):
    """Without it an editor or a pipeline reads places out of sentences."""
    result = run("check", "bad.yaml", "--json", "--plugin", str(PARTS))
    document = json.loads(result.stdout)

    assert result.exit_code == 1
    assert (document["name"], document["fingerprint"], document["plan"], document["changes"]) == (None,) * 4
    assert [(problem["line"], problem["column"]) for problem in document["problems"]] == [(1, 1), (2, 1), (7, 23)]
    assert document["problems"][2]["path"] == "routes.1.match.were"
    assert document["problems"][2]["hint"].startswith("did you mean `where`?")


@pytest.mark.parametrize(("severity", "code"), [("safe", 0), ("refused", 1)])
def test_check_prints_a_document_of_what_changes(run, monkeypatch, severity, code):
    engine = ModuleType("router.engine.preflight.check")
    change = Change(severity, ("routes", 0), "rows wait", "put it back")
    engine.check_lake = lambda loaded: [change]  # type: ignore[attr-defined]
    engine.check_plan = lambda loaded, registry: "in one stage"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "router.engine.preflight.check", engine)

    result = run("check", "good.yaml", "--json", "--lake", "--plan", "--plugin", str(PARTS))
    document = json.loads(result.stdout)

    assert result.exit_code == code
    assert (document["name"], document["plan"], document["problems"]) == ("games", "in one stage", [])
    assert len(document["fingerprint"]) > 8
    (row,) = document["changes"]
    assert (row["severity"], row["path"], row["what"], row["hint"]) == (
        severity,
        "routes.0",
        "rows wait",
        "put it back",
    )


@pytest.mark.parametrize(("faults", "code"), [((), 0), (("it has 2 rows",), 1)])
def test_test_prints_a_document_of_its_cases(run, tmp_path, monkeypatch, faults, code):
    """Without it a pipeline cannot show which case failed."""
    (tmp_path / "good.test.yaml").write_text("tests: [{name: a win, records: [{event: {}}], expect: {}}]\n")
    tests = import_module("router.engine.preflight.route_tests")
    monkeypatch.setattr(tests, "run_tests", lambda *_: [tests.CaseResult("a win", faults)])
    monkeypatch.setattr(import_module("router.cli.check"), "spark_session", lambda _: nullcontext())

    result = run("test", "good.test.yaml", "--json", "--plugin", str(PARTS))

    assert result.exit_code == code
    assert json.loads(result.stdout) == {
        "cases": [{"file": "good.test.yaml", "case": "a win", "passed": not faults, "faults": list(faults)}]
    }


def test_check_without_plan_needs_no_engine(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "router.engine.preflight.check", None)

    assert run("check", "good.yaml", "--plugin", str(PARTS)).exit_code == 0


def test_broken_plugin_is_one_line(run, tmp_path):
    (tmp_path / "broken.py").write_text("import nowhere")

    result = run("check", "good.yaml", "--plugin", "broken.py")

    assert result.stderr.startswith(f"router: plugin {tmp_path / 'broken.py'}: cannot be imported")
    assert len(result.stderr.splitlines()) == 1
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["chek"], "Did you mean 'check'?"),
        (["zzz"], "No such command 'zzz'"),
        (["check"], "Missing argument 'FILE'"),
        (["check", "none.yaml"], "does not exist"),
        (["check", "good.yaml", "--plan=x"], "--plan"),
        (["plugins", "pots", "--plugin", str(PARTS)], "did you mean `post`?"),
    ],
)
def test_wrong_use_exits_with_2(run, arguments, told):
    result = run(*arguments)

    assert told in result.stderr
    assert result.exit_code == 2


def test_plugins_lists_every_part(run):
    result = run("plugins", "--plugin", str(PARTS))

    rows = [line.split() for line in result.output.splitlines()]
    assert [row[:2] for row in rows if row[0] in {"decoder", "rule", "sink"}] == [
        ["decoder", "text"],
        ["rule", "both"],
        ["rule", "equals"],
        ["rule", "never"],
        ["rule", "where"],
        ["sink", "fixed"],
        ["sink", "post"],
    ]
    assert "Match by a condition." in result.output


def test_plugins_shows_a_manual_page(run):
    result = run("plugins", "post", "--plugin", str(PARTS))

    assert result.output == (
        f"post - sink of {PARTS}\n"
        "\n"
        "Post events.\n"
        "\n"
        "Options:\n"
        "  was: str | None, default None\n"
        "      the name that this sink had in its route, as rest_2: its waiting rows, notes and ids stay under that "
        "name. Keep this option\n"
        "  url: str, required\n"
        "      where to post\n"
        "  login: Login | None, default None\n"
        "  calls: int, default 1\n"
        "      calls per second\n"
        "  mode: 'detached' | 'inline', default 'detached'\n"
        "  retry: int | 'never', default 'never'\n"
    )


def test_manual_page_names_the_main_option(run):
    result = run("plugins", "where", "--plugin", str(PARTS))

    assert "sql: str, required; the main option, for a bare value" in result.output


def test_schema_is_json(run):
    result = run("schema", "--plugin", str(PARTS))

    assert json.loads(result.stdout)["title"] == "Spark Event Router"


def test_help_imports_no_command(run, monkeypatch):
    for module, _ in (place.split(":") for place, _ in router.cli.COMMANDS.values()):
        monkeypatch.setitem(sys.modules, module, None)

    result = run("--help")

    assert all(name in result.output for name in router.cli.COMMANDS)
    assert result.exit_code == 0


def test_help_lists_each_command_once_under_what_it_is_for(run):
    """Somebody who wants to mend a table would have to read the lines of all commands."""
    listed = [name for names in router.cli.COMMAND_GROUPS.values() for name in names]
    assert sorted(listed) == sorted(router.cli.COMMANDS)

    lines = run("--help").output.splitlines()

    begins = [lines.index(f"{title}:") for title in router.cli.COMMAND_GROUPS]
    assert begins == sorted(begins)
    mending = {line.split()[0] for line in lines[begins[3] + 1 : begins[4]] if line.startswith("  ") and line[2] != " "}
    assert mending == {"rebuild", "backfill", "replay", "quarantine"}


@pytest.mark.parametrize("former", router.cli.FORMER_COMMANDS)
def test_a_former_name_says_what_the_command_is_now(run, former):
    """Whoever has it in a script would have to look for what became of it."""
    result = run(former, "games.yaml")

    now = router.cli.FORMER_COMMANDS[former]
    assert f"`router {former}` is `{now}` now" in result.stderr
    assert result.exit_code == 2
    program, command, *more = now.split()
    if program == "router":
        options = run(command, *[word for word in more if not word.startswith("-")], "--help").output
        assert all(option in options for option in more if option.startswith("-"))


def test_command_that_is_not_there_says_what_it_needs(run, monkeypatch):
    monkeypatch.setitem(router.cli.COMMANDS, "bench", ("nowhere.cli:bench", ""))

    result = run("bench")

    assert "`bench` needs the module nowhere, which is not installed" in result.stderr
    assert result.exit_code == 2


def test_errors_of_the_router_come_without_a_traceback(run, monkeypatch):
    @click.command()
    def refuse() -> None:
        raise StartError("it is running already; stop it first")

    monkeypatch.setattr("router.cli.plugins.schema", refuse)

    result = run("schema")

    assert result.stderr == "router: it is running already; stop it first\n"
    assert result.exit_code == 2


HOSTILE = "games\x1b[2J\n2026-01-01 INFO all is well\u202e\u2028\ud800"
"""A name from data: it clears a terminal, forges a line of the log, turns the text round, and is no UTF-8."""
HARMLESS = r"games\x1b[2J\n2026-01-01 INFO all is well\u202e\u2028\ud800"


def test_an_unexpected_error_is_a_line_unless_the_stack_is_asked_for(run, monkeypatch):
    """Without it an operator reads forty lines for the last one, or whoever mends it has no line of code."""
    monkeypatch.setenv(VERBOSE, "")

    @click.command()
    def broken() -> None:
        raise ZeroDivisionError("a plugin\ndivided")

    monkeypatch.setattr(import_module("router.cli.check"), "check", broken)

    short = run("check")
    long = run("--verbose", "check")

    assert (short.exit_code, long.exit_code) == (2, 2)
    line = "router: unexpected ZeroDivisionError: a plugin; `router --verbose check ...` shows where\n"
    assert short.output == line
    assert long.output.endswith("router: unexpected ZeroDivisionError: a plugin\n"), "the stack is there"
    assert "Traceback (most recent call last)" in long.output
    assert "in broken" in long.output


def test_what_data_says_is_shown_and_not_obeyed(run, monkeypatch, capsys):
    @click.command()
    def refuse() -> None:
        raise StartError(f"table {HOSTILE} is gone")

    monkeypatch.setattr("router.cli.plugins.schema", refuse)

    assert run("schema").stderr == f"router: table {HARMLESS} is gone\n"
    with Watcher("games") as watcher:
        watcher.log.warning("%s waits", HOSTILE)
    (shown,) = capsys.readouterr().err.splitlines()
    assert shown.endswith(f"WARNING {HARMLESS} waits")


@pytest.mark.parametrize("json_lines", [False, True], ids=["text", "JSON"])
def test_commands_in_errors_and_log_lines_have_the_file(run, monkeypatch, json_lines):
    """Without it whoever pastes a command gets the usage of the command line."""
    hint = "`router rebuild FILE silver.uno` rebuilds it, `router quarantine list FILE` shows its rows"

    @click.command()
    @router.cli.config_argument
    def refuse(file: Path) -> None:
        with Watcher("games", json_lines=json_lines) as watcher:
            watcher.log.warning("%s", hint)
        raise StartError(hint)

    monkeypatch.setattr("router.cli.plugins.schema", refuse)
    Path("my games.yaml").touch()
    assert run("schema", "my games.yaml").stderr.count(hint.replace("FILE", "'my games.yaml'")) == 2


@pytest.mark.parametrize(
    ("error", "code"), [(StartError("lost"), 2), (RunningError("twice"), 1), (SessionLost("d"), 1)]
)
def test_run_says_by_its_exit_code_whether_a_restart_may_help(run, monkeypatch, error, code):
    @click.command()
    def refuse() -> None:
        raise error

    monkeypatch.setattr("router.cli.run.run", refuse)

    assert run("run").exit_code == code


@pytest.mark.parametrize("name", router.cli.COMMANDS)
def test_a_command_has_one_line_in_the_help(name):
    """Without it `router --help` and the reference page say different things of a command."""
    module, _, attribute = router.cli.COMMANDS[name][0].partition(":")

    assert getattr(import_module(module), attribute).short_help is None


@pytest.mark.parametrize("arguments", [["-m", "router"], [str(TESTS.parent / "router" / "__main__.py")]])
def test_module_and_file_run_the_command_line(tmp_path, arguments):
    """`spark-submit router/__main__.py` runs the file, with its folder first on the path."""
    path = tmp_path / "good.yaml"
    path.write_text(GOOD.replace("name:", "nam:"))

    command = [sys.executable, *arguments, "check", str(path), "--plugin", str(PARTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ})

    assert f"{path}:1:1: nam: unknown key; did you mean `name`?" in done.stdout
    assert done.returncode == 1


def test_check_starts_no_spark(tmp_path):
    """Checking a file must stay a matter of tenths of a second."""
    (tmp_path / "good.yaml").write_text(GOOD)
    code = (
        "import sys; from router.cli import commands\n"
        f"commands(['check', 'good.yaml', '--plugin', {str(PARTS)!r}], standalone_mode=False)\n"
        "print(sorted({'delta', 'deltalake', 'pyarrow', 'pandas', 'rich', 'requests'} & set(sys.modules)))\n"
        "from pyspark import SparkContext; print(SparkContext._gateway)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)

    assert done.stdout.splitlines()[1:] == ["[]", "None"]


def test_what_hooks_into_forks_is_imported_before_the_jvm_is_forked_off(tmp_path):
    """Without it a start now and then writes a traceback about a lock that nobody holds."""
    (tmp_path / "good.yaml").write_text(GOOD)
    code = (
        "import sys, threading; from router.cli import commands\n"
        "def start(thread): print('concurrent.futures.thread' in sys.modules); sys.exit()\n"
        "threading.Thread.start = start\n"
        f"commands(['run', 'good.yaml', '--plugin', {str(PARTS)!r}], standalone_mode=False)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)

    assert done.stdout == "True\n"


def test_line_of_a_batch_names_rows_that_are_not_in_their_table():
    routes = {"a": {"landed": 3, "quarantined": 2, "frozen": 1}, "b": {"landed": 1, "quarantined": 1}}
    report = BatchReport("games", 7, 9, 8, 1, 1, 2, 2, 3, {"decide": 0.5, "land": 1.0}, routes)

    assert batch_line(report, 4) == (
        "games batch 7: 9 rows into 2 tables (3 files), 2 dead letters, 1 frozen, 3 quarantined, "
        "1.50 s (land 1.00 decide 0.50), 4 behind"
    )
