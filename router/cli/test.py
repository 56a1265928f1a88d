"""`router test`: route tests, without a line of Python."""

from __future__ import annotations

import os
from pathlib import Path

import click

from router.cli.invocation import plugin_option
from router.config.loader import load
from router.config.route_tests import load_tests
from router.registry import load_registry


@click.command(short_help="Run route tests: records in, rows expected.")
@click.argument("files", type=click.Path(exists=True, dir_okay=False, path_type=Path), nargs=-1, required=True)
@plugin_option
@click.pass_context
def test(ctx: click.Context, files: tuple[Path, ...], plugin_files: tuple[Path, ...]) -> None:
    """Run the route tests in FILES, such as games.test.yaml, which tests games.yaml.

    Every case goes through one batch into a lake of its own. No source is read, no registry
    asked and nothing sent anywhere. Exits with 1 when a case fails.
    """
    from router.engine.route_tests import run_tests
    from router.engine.session import build_session, stop_session

    registry = load_registry(plugin_files)
    found = [(file, load_tests(file)) for file in files]
    environs = [{**os.environ, **tests.variables} for _, tests in found]
    loaded = [
        load(tests.tested(file), registry, environ=environ)
        for (file, tests), environ in zip(found, environs, strict=True)
    ]
    session = build_session(loaded[0].config)
    failed = 0
    try:
        for (file, tests), configuration in zip(found, loaded, strict=True):
            for result in run_tests(configuration, tests, session):
                failed += bool(result.faults)
                click.echo(f"{file}: {result.name}: {'FAILED' if result.faults else 'passed'}")
                for fault in result.faults:
                    click.echo(f"  {fault}")
    finally:
        stop_session(session)
    ctx.exit(1 if failed else 0)
