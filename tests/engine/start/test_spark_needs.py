"""What of a configuration has Spark itself reach the lake: a bucket needs a file system of Spark for it."""

from __future__ import annotations

from typing import Any

import pytest

from router.config.models import Config, DeltaSource, Lookup, Route, Source, View
from router.engine.start.spark_needs import spark_needs
from router_decoders import Json
from router_rest.sink import Rest
from router_rules import Sql
from router_sinks import Tables, Upsert
from tests.engine.query import SOURCE

TABLES = Tables(table="silver.{event.game}")
UPSERT = Upsert(table="gold.a", keys=("event.id",))
API = Rest(url="https://api.example.com/bets")


def needs(*sinks: Any, lookup: tuple[Lookup, ...] = (), **settings: Any) -> list[str]:
    """Return the needs of a configuration with one route."""
    route = Route(name="games", match=Sql(where="true"), sinks=sinks or (TABLES,), lookup=lookup)
    settings = {"source": SOURCE, "decode": Json(schema="id int"), "routes": (route,), **settings}
    return spark_needs(Config(name="games", lake="s3://lake/a", dead_letters="ops.dead", **settings))


def test_tables_and_upserts_need_nothing() -> None:
    """Without it a lake in a bucket has to come with the file system of a cloud, 560 MB, for nothing."""
    rows = Lookup(name="plan", rows=({"id": 1, "plan": "a"},), on={"id": "event.id"})
    assert needs(TABLES, UPSERT, lookup=(rows,)) == []


@pytest.mark.parametrize(
    ("settings", "need"),
    [
        ({"commit": "spark"}, "`commit: spark`"),
        ({"views": (View(name="v", **{"from": "silver.a"}, sql="SELECT * FROM source", into="gold.v"),)}, "the views"),
        ({"source": Source(delta=DeltaSource(table="bronze.all"))}, "the source"),
        ({"lookup": (Lookup(name="plan", table="silver.plans", on={"id": "event.id"}),)}, "the lookups"),
    ],
    ids=["commit", "views", "source", "lookup"],
)
def test_what_spark_reads_is_named(settings: dict[str, Any], need: str) -> None:
    """Without it the first batch that needs Spark's file system ends in hundreds of lines of Java."""
    assert needs(**settings) == [need]


@pytest.mark.parametrize(
    ("sink", "reason"),
    [
        (API, "Spark reads its outbox"),
        (UPSERT.model_copy(update={"engine": "spark"}), "Spark merges its tables"),
        (TABLES.model_copy(update={"cluster_by": ("id",)}), "Spark makes its tables: it is to be clustered"),
    ],
    ids=["outbox", "engine", "clustered"],
)
def test_a_sink_is_named_with_the_reason(sink: Any, reason: str) -> None:
    """Without it nobody knows which sink to change."""
    (need,) = needs(sink)
    assert need.startswith("the sink")
    assert reason in need


def test_a_debugging_run_sends_nothing() -> None:
    """Without it a trial of a configuration asks for what only the real run needs."""
    assert needs(API, debug=True) == []
