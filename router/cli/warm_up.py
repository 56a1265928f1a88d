"""`router warm-up`: make every later start some seconds shorter."""

from __future__ import annotations

import click


@click.command(short_help="Make every later start some seconds shorter.")
def warm_up() -> None:
    """Write an archive of the classes that a run loads (about 200 MB, in ~/.cache/spark-event-router or $ROUTER_CACHE).

    Runs a small configuration once, which takes half a minute. Sessions that `router` starts by itself then map the
    archive instead of loading some ten thousand classes from jars; under spark-submit nothing changes.
    """
    from router.engine.session import make_class_archive

    click.echo(make_class_archive())
