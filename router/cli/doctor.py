"""`router doctor`: what on this machine, or of the servers a configuration uses, keeps it from running."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from router.cli import plugin_option
from router.errors import ConfigError, PluginError, printable

if TYPE_CHECKING:
    from router.config.models import Config
    from router.engine.preflight.doctor import Diagnosis


@click.command(short_help="Say what on this machine keeps a configuration from running.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list: subject, state, what, todo.")
@plugin_option
def doctor(file: Path | None, as_json: bool, plugin_files: tuple[Path, ...]) -> None:
    """Look at Java, jars, extras and memory; with FILE at the storage, brokers, registries, APIs and clocks, too.

    One line each: ok, warn or wrong, what was seen, and the next step. Starts no Spark, fetches nothing, and sends no
    event; the storage gets a file that is deleted again. Exit code 1: something is wrong.
    """
    from router.engine.preflight.doctor import diagnose

    config, found = _configuration(file, plugin_files)
    found += diagnose(config, file.parent if file else Path())
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
    else:
        width = max(len(one.subject) for one in found)
        for one in found:
            todo = f"; {one.todo}" if one.todo else ""
            click.echo(printable(f"{one.state:<5}  {one.subject:<{width}}  {one.what}{todo}"))
    raise SystemExit(int(any(one.state == "wrong" for one in found)))


def _configuration(file: Path | None, plugin_files: tuple[Path, ...]) -> tuple[Config | None, list[Diagnosis]]:
    """Return the configuration where it can be loaded, and what is said about it."""
    from router.config.loader import load
    from router.engine.preflight.doctor import Diagnosis
    from router.registry import load_registry

    try:
        registry = load_registry(plugin_files)
        if file is None:
            return None, []
        return load(file, registry).config, [Diagnosis("configuration", "ok", f"{file} is good")]
    except ConfigError as error:
        return None, [Diagnosis("configuration", "wrong", str(problem)) for problem in error.problems]
    except PluginError as error:
        return None, [Diagnosis("plugins", "wrong", str(error))]
