"""`router schema`: the configuration file as JSON Schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from router.cli.options import plugin_option
from router.config.json_schema import json_schema
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Print the configuration's JSON Schema, for editors.")
@plugin_option
def schema(plugin_files: tuple[Path, ...]) -> None:
    """Print the JSON Schema of configuration files, with every part on offer.

    Save it and name it in the first line of a file: # yaml-language-server: $schema=router.schema.json
    """
    click.echo(json.dumps(json_schema(load_registry(plugin_files)), indent=2))
