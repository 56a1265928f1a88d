"""What of a configuration has Spark itself read or write the lake: in a bucket it needs a file system of Spark then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.api.sinks import ApplyingSink, LakeSink, MergingSink
from router.delta.replace import made_by_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.api.sinks import Sink
    from router.config.models import Config


def spark_needs(config: Config) -> list[str]:
    """Return the parts for which Spark itself must reach the lake, in words; none if the router's own tasks do it all.

    What only comes up while a stream runs is not among them: a table that delta-rs cannot write, and rows that leave
    the quarantine. Their commits fail with a sentence then.
    """
    needs = []
    if config.commit == "spark":
        needs.append("`commit: spark`")
    if config.views:
        needs.append("the views")
    if any(lookup.table or lookup.let for lookup in config.lookups_by_name().values()):
        needs.append("the lookups")
    if config.source.delta is not None:
        needs.append("the source")
    for route, name, sink in config.all_sinks():
        for reason in _needs_of_sink(sink, sends=not config.debug):
            needs.append(f"the sink {name} of the route {route} ({reason})")
    return needs


def _needs_of_sink(sink: Sink, *, sends: bool) -> Iterator[str]:
    if isinstance(sink, ApplyingSink) and sends:
        yield "Spark reads its outbox"
    if isinstance(sink, MergingSink) and sink.keyed().engine == "spark":
        yield "Spark merges its tables: its engine is given"
    if isinstance(sink, LakeSink) and made_by_spark(sink):
        yield f"Spark makes its tables: {made_by_spark(sink)}"
