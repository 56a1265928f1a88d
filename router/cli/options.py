"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

config_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
"""FILE, the configuration; the command gets it as `file`."""

plugin_option = click.option(
    "--plugin",
    "plugin_files",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Load a plugin from one file; may be given several times.",
)
"""`--plugin FILE`; the command gets a tuple of paths as `plugin_files`."""
