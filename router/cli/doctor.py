"""`router doctor`: what on this machine, or of the servers a configuration uses, keeps it from running."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from router.cli import existing_file, plugin_option
from router.errors import ConfigError, PluginError, to_printable

if TYPE_CHECKING:
    from router.config.models import Config
    from router.engine.preflight.doctor import Diagnosis


@click.command()
@click.argument("file", type=existing_file, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list: subject, state, what, todo.")
@plugin_option
def doctor(file: Path | None, as_json: bool, plugin_files: tuple[Path, ...]) -> None:
    """Check Java, jars, extras and memory; with FILE also the storage, brokers, registries, APIs and clocks.

    One line each: ok, warn or wrong, what was found, and the next step. Starts no Spark, fetches nothing, and sends no
    event; a file is written to the storage and deleted. Exit code 1: something is wrong.
    """
    from router.engine.preflight.doctor import diagnose_machine

    # Without a file, or with one that cannot be loaded, the machine is still looked at.
    config, diagnoses = _load_configuration(file, plugin_files)
    diagnoses += diagnose_machine(config, file.parent if file else Path())
    if as_json:
        click.echo(json.dumps([asdict(diagnosis) for diagnosis in diagnoses], indent=2))
    else:
        width = max(len(diagnosis.subject) for diagnosis in diagnoses)
        for diagnosis in diagnoses:
            line = f"{diagnosis.state:<5}  {diagnosis.subject:<{width}}  {diagnosis.what}"
            if diagnosis.todo:
                line += f"; {diagnosis.todo}"
            click.echo(to_printable(line))
    raise SystemExit(int(any(diagnosis.state == "wrong" for diagnosis in diagnoses)))


def _load_configuration(file: Path | None, plugin_files: tuple[Path, ...]) -> tuple[Config | None, list[Diagnosis]]:
    """Return the configuration, None if it cannot be loaded, and what is said about it."""
    from router.config.loader import load_config
    from router.engine.preflight.doctor import Diagnosis
    from router.registry import load_registry

    try:
        registry = load_registry(plugin_files)
        if file is None:
            return None, []
        return load_config(file, registry).config, [Diagnosis("configuration", "ok", f"{file} is good")]
    except ConfigError as error:
        return None, [Diagnosis("configuration", "wrong", str(problem)) for problem in error.problems]
    except PluginError as error:
        return None, [Diagnosis("plugins", "wrong", str(error))]
