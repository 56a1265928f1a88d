"""Open the applying sinks of a query: let them look at what they will get before the first batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from router.applying import ApplyingSink, Opening
from router.engine.label.planner import Planner
from router.engine.label.route import sink_names
from router.errors import RouterError, StartError
from router.parts import RAW_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Config, Route
    from router.engine.label.layout import Layout
    from router.parts import Sink


def wants_opening(sink: Sink) -> bool:
    """Say whether a sink has anything to do before the stream starts."""
    return isinstance(sink, ApplyingSink) and type(sink).prepare is not ApplyingSink.prepare


def opened(config: Config, spark: SparkSession, folder: Path, *, trial: bool = False) -> Config:
    """Return the configuration with its sinks made ready; the decoder must be prepared already. No job runs.

    With `trial` they change nothing. Raises StartError by route and sink, and OSError where something is away: try
    again later.
    """
    if not any(wants_opening(sink) for route in config.routes for sink in route.sinks):
        return config
    decoder = config.decode.refresh(frozenset())
    config = config.model_copy(update={"decode": decoder})
    layout = Planner(config, decoder, quiet=True).plan(spark.createDataFrame([], RAW_SCHEMA)).layout

    def openings(route: Route) -> dict[str, Opening]:
        return {sink: Opening(folder, frame, trial) for sink, frame in _frames(layout, route, spark)}

    routes = tuple(_route(route, openings(route)) for route in config.routes)
    return config.model_copy(update={"routes": routes})


def _frames(layout: Layout, route: Route, spark: SparkSession) -> Iterator[tuple[str, DataFrame]]:
    """Yield an empty frame for each lane of a route."""
    for target in layout.targets:
        if target.lane and target.route == route.name:
            kinds = from_arrow_schema(target.schema, prefer_timestamp_ntz=True)
            yield target.sink, spark.createDataFrame([], kinds)


def _route(route: Route, openings: dict[str, Opening]) -> Route:
    sinks: list[Sink] = []
    for name, sink in zip(sink_names(route.sinks), route.sinks, strict=True):
        if isinstance(sink, ApplyingSink) and wants_opening(sink):
            try:
                sinks.append(sink.prepare(openings[name]))
            except RouterError as error:
                raise StartError(f"route {route.name}, sink {name}: {error}") from error
        else:
            sinks.append(sink)
    return route.model_copy(update={"sinks": tuple(sinks)})
