"""The six hooks of the router, with an example of each. All plugins that implement a hook are called.

A plugin is a module (or package) with functions marked `@hookimpl`. The router finds it through the entry-point group
`event_router`; a plugin of one file can be loaded with `--plugin FILE`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.api.parts import BatchReport, Decoder, Encoder, Rule, ViewQuery
    from router.api.sinks import Sink

PROJECT_NAME = "event_router"
"""The name of the project, for pluggy, and of the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@hookspec
def router_decoders() -> Mapping[str, type[Decoder]]:  # type: ignore[empty-body]
    """Return decoders by the name that a configuration uses.

    >>> from pyspark.sql import DataFrame, functions as F
    >>> from router import Decoder, hookimpl
    >>> class Text(Decoder):
    ...     '''Take the value as one UTF-8 text.'''
    ...     def decode(self, raw: DataFrame) -> DataFrame:
    ...         text = F.struct(F.col("value").cast("string").alias("text"))
    ...         event = F.when(F.col("value").isNotNull(), text)
    ...         error = F.when(F.col("value").isNull(), F.lit("value is null"))
    ...         return raw.withColumns({"event": event, "_error": error})
    >>> @hookimpl
    ... def router_decoders():
    ...     return {"text": Text}
    """


@hookspec
def router_rules() -> Mapping[str, type[Rule]]:  # type: ignore[empty-body]
    """Return rules by the name that a configuration uses.

    >>> from pyspark.sql import Column, functions as F
    >>> from router import Rule, hookimpl
    >>> class Region(Rule):
    ...     '''Match events of one region. A missing region does not match.'''
    ...     code: str
    ...     def matches(self) -> Column:
    ...         return F.col("event.region") == self.code
    >>> @hookimpl
    ... def router_rules():
    ...     return {"region": Region}
    """


@hookspec
def router_sinks() -> Mapping[str, type[Sink]]:  # type: ignore[empty-body]
    """Return sinks by the name that a configuration uses.

    >>> from pyspark.sql import Column, functions as F
    >>> from router import TableSink, hookimpl
    >>> class ByDay(TableSink):
    ...     '''Append to one table per day.'''
    ...     def table(self) -> Column:
    ...         return F.concat(F.lit("daily.d"), F.date_format("timestamp", "yyyyMMdd"))
    >>> @hookimpl
    ... def router_sinks():
    ...     return {"by_day": ByDay}
    """


@hookspec
def router_encoders() -> Mapping[str, type[Encoder]]:  # type: ignore[empty-body]
    """Return encoders by the name that a configuration uses.

    >>> from pyspark.sql import functions as F
    >>> from router import Encoded, Encoder, Encoding, hookimpl, row
    >>> def lines(array, argument):
    ...     return Encoded(array.to_pylist())
    >>> def line(names):
    ...     return F.to_csv(row(names)).cast("binary")
    >>> class ToCsv(Encoder):
    ...     '''Encode a row as a line of CSV.'''
    ...     def open(self, columns, folder, subject=None, *, trial=False) -> Encoding:
    ...         return Encoding(lines, None, "CSV", line)
    >>> @hookimpl
    ... def router_encoders():
    ...     return {"to_csv": ToCsv}
    """


@hookspec
def router_views() -> Mapping[str, type[ViewQuery]]:  # type: ignore[empty-body]
    """Return queries of views by the name that a configuration uses.

    >>> from pyspark.sql import DataFrame, functions as F
    >>> from router import ViewQuery, hookimpl
    >>> class Sessions(ViewQuery):
    ...     '''Count the events of each gamer.'''
    ...     def rows(self, source, tables) -> DataFrame:
    ...         return source.groupBy("table", "gamer_id").agg(F.count("*").alias("events"))
    >>> @hookimpl
    ... def router_views():
    ...     return {"sessions": Sessions}
    """


@hookspec
def router_batch_finished(report: BatchReport) -> None:
    """Observe a finished batch. An exception is logged and never breaks delivery.

    >>> from router import hookimpl
    >>> @hookimpl
    ... def router_batch_finished(report):
    ...     print(report.batch, report.read)
    """
