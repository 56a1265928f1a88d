"""`router check`: every mistake of a configuration, without running it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from router.cli.invocation import config_argument, plugin_option
from router.config.loader import Loaded, load
from router.errors import ConfigError
from router.registry import Registry, load_registry

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Find every mistake in a configuration.")
@config_argument
@click.option("--plan", is_flag=True, help="Also analyse every rule and projection with Spark (takes seconds).")
@plugin_option
@click.pass_context
def check(ctx: click.Context, file: Path, plan: bool, plugin_files: tuple[Path, ...]) -> None:
    """Find every mistake in the configuration FILE.

    Prints one problem per line, as file:line:column: place: what; next step, and exits with 1 when there is any.
    Needs neither Spark nor the network, unless --plan is given.
    """
    registry = load_registry(plugin_files)
    try:
        loaded = load(file, registry)
        told = import_module("router.engine.check").check_plan(loaded, registry) if plan else ""
    except ConfigError as error:
        for problem in error.problems:
            click.echo(str(problem))
        ctx.exit(1)
    click.echo(_summary(loaded, registry))
    if told:
        click.echo(told)


def _summary(loaded: Loaded, registry: Registry) -> str:
    routes = loaded.config.routes
    sinks = sum(len(route.sinks) for route in routes)
    providers = sorted({entry.provider for entry in registry.selected(loaded.config)})
    counts = f"{_count(len(routes), 'route')}, {_count(sinks, 'sink')}"
    return f"{loaded.path}: good; {counts}; plugins: {', '.join(providers)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
