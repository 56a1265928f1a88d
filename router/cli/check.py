"""`router check`: every mistake of a configuration, without running it; `router test`: what it makes of records."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from router.cli import config_argument, existing_file, plugin_option
from router.cli.documents import json_option, junit_report, show_json
from router.cli.saves import runs_at_saves
from router.cli.session import spark_session, start_jvm_early
from router.config.loader import Loaded, load_config, load_sound
from router.config.problems import sort_problems
from router.errors import ConfigError, RouterError
from router.registry import Entry, Registry, load_registry, missing_extras

if TYPE_CHECKING:
    from router.engine.preflight.lake_changes import Change
    from router.errors import Problem


@click.command()
@config_argument
@click.option("--plan", is_flag=True, help="Also analyse every rule and projection with Spark (takes seconds).")
@click.option(
    "--lake",
    is_flag=True,
    help="Also show what changes for checkpoint, ledger and tables, and what a start would refuse (takes seconds).",
)
@click.option("--fingerprint", is_flag=True, help="Print the fingerprint of a good FILE, and nothing else.")
@json_option
@plugin_option
@runs_at_saves
@click.pass_context
def check(
    ctx: click.Context,
    file: Path,
    plan: bool,
    lake: bool,
    fingerprint: bool,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Find every mistake in the configuration FILE.

    Prints one problem per line, as file:line:column: place: what; next step, and exits with 1 when there is any.
    Needs neither Spark nor the network, unless --plan or --lake is given: without them SQL is read as far as this needs
    no Spark, and fields of events are compared with the schema that FILE has, if it has one. The fingerprint
    identifies the content of FILE without its comments and variables; commits have it as router.configuration, rows of
    the ledger as configuration.

    With --lake each line names a change, and whether it is safe or what to do about it. A start refuses changes that
    would lose rows; the exit code is then 1. Nothing is written.
    """
    if fingerprint and as_json:
        raise click.UsageError("--json has the fingerprint: it goes without --fingerprint")
    if plan or lake:
        start_jvm_early(file)
    registry = load_registry(plugin_files)
    # The engine is imported for --plan and --lake only: checking a file takes tenths of a second.
    plan_summary = ""
    changes: list[Change] = []
    loaded = None
    problems: tuple[Problem, ...] = ()
    try:
        # With --plan and --lake Spark decides; what it does not come to is added below.
        loaded = load_config(file, registry, sql=not plan and not lake)
        missing = list(missing_extras(loaded.config).values())
        if missing:
            raise ConfigError((loaded.problem_at((), missing[0]),))
        if plan:
            from router.engine.preflight.check import check_plan

            plan_summary = check_plan(loaded, loaded.registry)
        if lake:
            from router.engine.preflight.check import check_lake

            changes = in_order_of_severity(check_lake(loaded))
    except ConfigError as error:
        problems = error.problems
        if plan and loaded is None:
            problems = with_plan_of_rest(file, registry, problems)
        if plan or lake:
            problems = with_written_sql(file, registry, problems)
    if as_json:
        document = _check_document(loaded, problems)
        document["notes"] = [asdict(note) for note in loaded.notes] if loaded else []
        document["plan"] = plan_summary or None
        document["changes"] = _change_rows(loaded, changes) if loaded and lake and not problems else None
        show_json(document)
    elif problems or loaded is None:
        for problem in problems:
            click.echo(str(problem))
    else:
        click.echo(loaded.fingerprint if fingerprint else _summary_line(loaded, loaded.registry))
        if plan_summary:
            click.echo(plan_summary)
        for note in loaded.notes if not fingerprint else ():
            click.echo(str(note))
        if lake:
            _show_changes(loaded, changes)
    is_refused = any(change.severity == "refused" for change in changes)
    ctx.exit(int(bool(problems) or is_refused))


def with_plan_of_rest(file: Path, registry: Registry, problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Add what only Spark can tell of the parts that have no problem."""
    from router.engine.preflight.check import check_plan

    rest = load_sound(file, registry, problems)
    try:
        if rest is not None:
            check_plan(rest, rest.registry)
    except ConfigError as error:
        return sort_problems([*problems, *error.problems])
    except RouterError:
        pass  # the machine has no Spark, or it does not start: what is wrong with the file is known
    return problems


def with_written_sql(file: Path, registry: Registry, problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Add the mistakes that Spark did not come to, since an earlier step raised; no place is named twice."""
    try:
        load_config(file, registry, sql=True)
    except ConfigError as error:
        # A problem of all routes says nothing of one of them.
        places = [problem.path for problem in problems if problem.path.count(".") > 1]
        others = [problem for problem in error.problems if not any(_is_in(problem.path, place) for place in places)]
        return sort_problems([*problems, *others])
    return problems


def _is_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}.")


def _check_document(loaded: Loaded | None, problems: tuple[Problem, ...]) -> dict[str, Any]:
    return {
        "name": loaded.config.name if loaded else None,
        "fingerprint": loaded.fingerprint if loaded else None,
        "problems": [asdict(problem) for problem in problems],
    }


def in_order_of_severity(changes: list[Change]) -> list[Change]:
    """Return changes with those first that a start refuses, and the safe ones last: nothing hides among these."""
    return sorted(changes, key=lambda change: ("refused", "to do", "safe").index(change.severity))


def _change_rows(loaded: Loaded, changes: list[Change]) -> list[dict[str, Any]]:
    """Return changes as problems are, with their severity."""
    rows = []
    for change in changes:
        rows.append({"severity": change.severity, **asdict(loaded.problem_at(change.place, change.what, change.todo))})
    return rows


def _show_changes(loaded: Loaded, changes: list[Change]) -> None:
    """Print a line for each change, with its place."""
    for change in changes:
        click.echo(str(loaded.problem_at(change.place, f"{change.severity}: {change.what}", change.todo)))
    if not changes:
        click.echo("no change for checkpoint, ledger or tables")


def _summary_line(loaded: Loaded, registry: Registry) -> str:
    routes = loaded.config.routes
    sinks = sum(len(route.sinks) for route in routes)
    providers = sorted({_provider_of(entry) for entry in registry.selected_entries(loaded.config)})
    counts = f"{_count_of_noun(len(routes), 'route')}, {_count_of_noun(sinks, 'sink')}"
    return f"{loaded.path}: good; {counts}; plugins: {', '.join(providers)}"


def _provider_of(entry: Entry) -> str:
    """Return the plugin of a part; those that come with the router are one."""
    return "built-in" if "(spark-event-router " in entry.provider else entry.provider


def _count_of_noun(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@click.command()
@click.argument("files", type=existing_file, nargs=-1, required=True)
@click.option("--junit-xml", type=click.Path(dir_okay=False, path_type=Path), help="Also write a report for CI.")
@json_option
@plugin_option
@runs_at_saves
@click.pass_context
def test(
    ctx: click.Context,
    files: tuple[Path, ...],
    junit_xml: Path | None,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Run the route tests in FILES, such as games.test.yaml, which tests games.yaml.

    Every case is one batch into a lake of its own. No source is read, no registry
    is asked, and nothing is sent. Exits with 1 when a case fails.
    """
    from router.engine.preflight.route_tests import load_tests, run_tests

    registry = load_registry(plugin_files)
    tests_of_files = [load_tests(file) for file in files]
    start_jvm_early(tests_of_files[0].tested_configuration(files[0]))
    loaded_of_files = []
    for file, tests in zip(files, tests_of_files, strict=True):
        environ = {**os.environ, **tests.variables}
        loaded_of_files.append(load_config(tests.tested_configuration(file), registry, environ=environ))

    cases: list[dict[str, Any]] = []
    # One session for all files; each case has a lake of its own, so that none is reached for.
    with spark_session(loaded_of_files[0].config) as session:
        for file, tests, loaded in zip(files, tests_of_files, loaded_of_files, strict=True):
            for result in run_tests(loaded, tests, session):
                passed = not result.faults
                cases.append({"file": str(file), "case": result.name, "passed": passed, "faults": list(result.faults)})
                if as_json:
                    continue
                click.echo(f"{file}: {result.name}: {'passed' if passed else 'FAILED'}")
                for fault in result.faults:
                    click.echo(f"  {fault}")
    if as_json:
        show_json({"cases": cases})
    if junit_xml is not None:
        junit_xml.write_bytes(junit_report(cases))
    ctx.exit(int(not all(case["passed"] for case in cases)))
