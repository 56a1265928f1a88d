"""A decoder learns between batches and within one, and may work in Python as well as in Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from router.config.models import Route
from router.testing import check_decoder
from tests.engine.conftest import EITHER
from tests.engine.parts import Known, Named, Shouted, Where
from tests.engine.query import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router import Decoder
    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query

ROUTE = Route(name="all", match=Where(sql="event.game IS NOT NULL"), sinks=(Named(sql="'silver.' || event.game"),))


@pytest.fixture(params=EITHER)
def begin(request: pytest.FixtureRequest, make_query: MakeQuery, tmp_path: Path):
    def begin(decoder: Decoder) -> Query:
        return make_query(tmp_path, commit=request.param, decode=decoder, bronze="bronze.events", routes=(ROUTE,))

    return begin


def test_what_a_batch_wants_is_fetched_and_the_batch_decoded_anew(begin, tmp_path: Path) -> None:
    """Without it the first records of a new schema are dead letters, or the stream has to be started again."""
    Path(tmp_path, "uno").touch()
    query = begin(Known(folder=str(tmp_path)))

    report = query.take(records([b"uno:1", b"uno:2"]))

    assert (report.read, report.decoded, report.dead_letters) == (2, 2, 0)
    assert [row["text"] for row in query.rows("silver.uno", "text")] == ["1", "2"]
    assert len(query.rows("bronze.events")) == 2


def test_what_cannot_be_had_is_asked_for_once_and_is_a_dead_letter(begin, tmp_path: Path) -> None:
    Path(tmp_path, "uno").touch()
    query = begin(Known(folder=str(tmp_path)))

    report = query.take(records([b"uno:1", b"poker:2"]))
    again = query.take(records([b"poker:3"], first=2))

    assert (report.decoded, report.dead_letters) == (1, 1)
    assert (again.decoded, again.dead_letters) == (0, 1)
    assert Path(tmp_path, "asked").read_text().splitlines() == ["[]", "['poker', 'uno']", "[]"]
    assert query.letters("stage", "reason") == {("decode", "no word poker"): 2}


def test_a_batch_waits_while_what_it_wants_is_away(begin, tmp_path: Path) -> None:
    """Without it good records become dead letters because a registry was started anew."""
    query = begin(Known(folder=str(tmp_path)))
    Path(tmp_path, "away").touch()
    values = records([b"uno:1"])

    with pytest.raises(ConnectionError):
        query.take(values)
    Path(tmp_path, "away").unlink()
    Path(tmp_path, "uno").touch()
    report = query.again(0)

    assert (report.decoded, report.dead_letters) == (1, 0)
    assert len(query.rows("silver.uno")) == 1


def test_a_decoder_in_python_makes_the_same_tables_on_both_engines(begin) -> None:
    values = [b"a", b"\xff", None, b"", "\U0001f600".encode(), b"x" * 100_000]

    report = begin(Shouted()).take(records(values, partitions=2))

    assert (report.read, report.decoded, report.failed, report.dead_letters) == (6, 4, 2, 2)


def test_a_big_record_is_decoded_in_python_too(begin) -> None:
    """Big records land in a job of their own: their neighbours must not be counted twice."""
    query = begin(Shouted())

    query.take(records([b"small", b"y" * 20_000, b"small"] * 50))

    assert len(query.rows("silver.shouts")) == 150
    assert sum(len(row["text"]) == 20_001 for row in query.rows("silver.shouts", "text")) == 50
    assert len(query.rows("bronze.events")) == 150


def test_a_decoder_in_python_keeps_the_contract(spark: SparkSession) -> None:
    check_decoder(spark, Shouted(), [b"good"])
