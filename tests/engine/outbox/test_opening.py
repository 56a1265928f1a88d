"""Applying sinks look at what they will get before the first batch, and make the stream wait while they cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from router import ApplyingSink, Batch, Opening, Outcome, SinkError, StartError, TableError
from router.config.models import Config, Route
from router.engine.checkpoint_store import LearntSchemas
from router.engine.outbox.apply import open_sinks
from router.engine.retryable_errors import is_temporary
from tests.engine.parts import Copy, Events, Fixed, Where
from tests.engine.query import SOURCE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


class Picky(ApplyingSink):
    """Refuse to start without a column, or while a file says that the other side is away."""

    wants: str = "n"
    away: str = ""
    seen: str = ""

    def prepare(self, opening: Opening) -> Picky:
        if self.away and (opening.folder / self.away).exists():
            raise ConnectionError("the other side is away")
        if self.wants not in opening.events.columns:
            raise StartError(f"field {self.wants}: it is not there")
        return self.model_copy(update={"seen": opening.events.schema.simpleString()})

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        raise AssertionError("nothing is sent before the start")


def config_of_sinks(*sinks: Any, select: tuple[str, ...] = ("event.*",)) -> Config:
    route = Route(name="all", match=Where(sql="event.n > 0"), select=select, sinks=sinks)
    decode = Events(ddl="n int, at timestamp_ntz, s struct<a: array<date>>")
    return Config(name="games", lake="./lake", dead_letters="ops.dead", source=SOURCE, decode=decode, routes=(route,))


def test_a_sink_sees_the_columns_it_will_get(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a schema that does not fit is found out by the first batch."""
    made = open_sinks(
        config_of_sinks(Fixed(name="silver.t"), Picky(), Copy(to="x")), spark, tmp_path, LearntSchemas()
    ).config

    table, picky, copy = made.routes[0].sinks
    assert (table.part_name, copy) == ("fixed", Copy(to="x"))
    assert isinstance(picky, Picky)
    coordinates = "_topic:string,_partition:int,_offset:bigint,_timestamp:timestamp,_key:binary"
    assert picky.seen == f"struct<{coordinates},n:int,at:timestamp_ntz,s:struct<a:array<date>>>"


def test_a_sink_that_refuses_to_start_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Without it nobody knows which of forty sinks is meant."""
    with pytest.raises(StartError, match="route all, sink picky_2: field x: it is not there"):
        open_sinks(config_of_sinks(Picky(), Picky(wants="x")), spark, tmp_path, LearntSchemas())


def test_a_configuration_without_such_sinks_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Without it every start plans its batches twice."""
    plain = config_of_sinks(Fixed(name="silver.t"), Copy(to="x"))

    assert open_sinks(plain, spark, tmp_path, LearntSchemas()).config is plain


def test_what_is_away_at_the_start_passes(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a router that starts together with its broker ends."""
    (tmp_path / "gone").touch()

    with pytest.raises(ConnectionError) as caught:
        open_sinks(config_of_sinks(Picky(away="gone")), spark, tmp_path, LearntSchemas())
    assert is_temporary(caught.value)


def caused(cause: Exception) -> SinkError:
    error = SinkError("games", 0, "all", "kafka", str(cause))
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (caused(ConnectionError("away")), True),
        (caused(TimeoutError("slow")), True),
        (caused(ValueError("ConnectionError is but a word here")), False),
        (caused(StartError("no such topic")), False),
        (SinkError("games", 0, "all", "kafka", "1 row landed, but 0 applied"), False),
        (TableError("silver.t", "conflict"), True),
        (StartError("TimeoutException"), False),
        (ConnectionError("away"), True),
        (RuntimeError("org.apache.kafka.common.errors.TimeoutException: a record may quote this"), False),
        (RuntimeError("a bug"), False),
    ],
    ids=repr,
)
def test_what_passes_by_itself_is_waited_for(error: Exception, passes: bool) -> None:
    """Without it a service that restarts ends the stream, or a mistake is tried for ever."""
    assert is_temporary(error) is passes
