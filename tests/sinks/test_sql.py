"""The sink `sql`: rows in tables of real databases, without Spark: what a task does with record batches."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from router import Sink, StartError
from router.registry import load_registry
from tests.sinks import postgres
from tests.sinks.mistakes import assert_mistake_has_a_line, missing_extra
from tests.sinks.reports import rows_by_kind

sa = pytest.importorskip("sqlalchemy")
pytest.importorskip("pg8000")

from router_sinks.sql_client import InsertJob, Session, check_database, insert_task  # noqa: E402 - needs the extra

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDS_SERVER = pytest.mark.skipif(not postgres.THERE, reason="PostgreSQL is not installed here")
DATABASES = ("sqlite", pytest.param("postgresql", marks=NEEDS_SERVER))
BEGIN = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)
HOSTILE = [
    'Robert"); DROP TABLE wins; --',
    "'; DROP TABLE wins; --",
    "%s %(n)s :n {n}",
    "a\\b\n\t",
    "ünï\U0001f600",
    "",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[postgres.Postgres]:
    """Run one PostgreSQL for the module."""
    folder = tmp_path_factory.mktemp("postgres", numbered=True)
    for place in (folder, *folder.parents[:3]):
        place.chmod(0o755)  # it runs as another user
    made = postgres.Postgres(folder / "server")
    made.make()
    made.start()
    yield made
    made.stop()


class Database:
    """A database with tables of a test's own, and the sink's tasks."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)

    def does(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            names = [sa.column(name) for name in columns]
            return sorted(map(tuple, connection.execute(sa.select(*names).select_from(sa.table(table)))), key=repr)

    def inserts(
        self, rows: list[dict[str, Any]], schema: pa.Schema, table: str | list[str | None] = "wins", **more: Any
    ) -> list[dict[str, Any]]:
        """Let a task insert rows, and return its reports."""
        job = InsertJob(more.pop("url", self.url), None, tuple(schema.names), more.pop("key", ()), **{**SMALL, **more})
        batch = self.batch(rows, schema, table)
        return [row for found in insert_task(job)([batch]) for row in found.to_pylist()]

    def batch(self, rows: list[dict[str, Any]], schema: pa.Schema, table: str | list[str | None]) -> pa.RecordBatch:
        """Return rows as a task gets them."""
        places = [{"_topic": "events", "_partition": 0, "_offset": n} for n in range(len(rows))]
        tables = table if isinstance(table, list) else [table] * len(rows)
        values = pa.array(rows, pa.struct(list(schema)))
        kinds = pa.schema([("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())])
        batch = pa.RecordBatch.from_pylist(places, kinds)
        columns = [*batch.columns, pa.array(tables, pa.string()), values]
        return pa.RecordBatch.from_arrays(columns, names=[*kinds.names, "_table", "_row"])


SMALL = {"rows_per_statement": 500, "at_most": 100}


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Return a database without tables."""
    if request.param == "sqlite":
        yield Database(f"sqlite:///{tmp_path}/games.db")
        return
    found = Database(request.getfixturevalue("server").url)
    found.does("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    yield found


NAMED = pa.schema([("n", pa.int64()), ("name", pa.string())])


def test_every_value_arrives_as_it_is(database: Database) -> None:
    """Without it a text ends a statement, or a null becomes a word."""
    database.does(
        'CREATE TABLE "wins" (n BIGINT, name VARCHAR(200), amount NUMERIC(20,4), seen TIMESTAMP, born DATE, '
        'ok BOOLEAN, ratio DOUBLE PRECISION, cards TEXT, "order by ""x""; --" VARCHAR(20))'
    )
    schema = pa.schema(
        {
            **{"n": pa.int64(), "name": pa.string(), "amount": pa.decimal128(20, 4), "seen": pa.timestamp("us", "UTC")},
            **{"born": pa.date32(), "ok": pa.bool_(), "ratio": pa.float64(), "cards": pa.list_(pa.string())},
            'order by "x"; --': pa.string(),
        }
    )
    full = [
        {
            **{
                "n": 2**62 + n,
                "name": name,
                "amount": Decimal("1234567890.1234"),
                "seen": BEGIN,
                "born": date(1, 1, 1),
            },
            **{"ok": True, "ratio": 0.1, "cards": ["queen", '"'], 'order by "x"; --': "odd"},
        }
        for n, name in enumerate(HOSTILE)
    ]
    empty = dict.fromkeys(schema.names)

    reports = database.inserts([*full, empty], schema)

    assert rows_by_kind(reports) == {"sent": len(full) + 1}
    found = database.rows("wins", "n", "name", "cards")
    assert Counter(found) == Counter(
        [*((row["n"], row["name"], json.dumps(row["cards"])) for row in full), (None, None, None)]
    )
    one = database.rows("wins", "seen", "born", "amount", "ok", "ratio", 'order by "x"; --')[-1]
    if database.engine.dialect.name == "postgresql":
        when = BEGIN.replace(tzinfo=None)
        assert one == (when, date(1, 1, 1), Decimal("1234567890.1234"), True, 0.1, "odd")


NESTED = pa.struct(
    {
        "amount": pa.decimal128(38, 18),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "day": pa.date32(),
        "raw": pa.binary(),
        "ratio": pa.float64(),
        "points": pa.map_(pa.string(), pa.decimal128(4, 2)),
        "pairs": pa.list_(pa.list_(pa.int64())),
        "note": pa.string(),
    }
)
NESTED_ROW = {
    "amount": Decimal("12345678901234567890.123456789012345678"),
    "at": BEGIN,
    "local": BEGIN.replace(year=1, tzinfo=None),
    "day": date(1, 1, 1),
    "raw": b"\xff\x00",
    "ratio": float("nan"),
    "points": [("a", Decimal("1.50")), ("b", None)],
    "pairs": [[1, 2], []],
    "note": HOSTILE[4],
}
NESTED_JSON = {
    "amount": Decimal("12345678901234567890.123456789012345678"),
    "at": "2026-01-01T12:00:00.123456Z",
    "local": "0001-01-01T12:00:00.123456",
    "day": "0001-01-01",
    "raw": "/wA=",
    "ratio": "NaN",
    "points": {"a": Decimal("1.50"), "b": None},
    "pairs": [[1, 2], []],
    "note": HOSTILE[4],
}
AS_JSON = [
    pytest.param(pa.map_(pa.string(), pa.int64()), [], {}, id="empty map"),
    pytest.param(pa.list_(pa.int64()), [], [], id="empty list"),
    pytest.param(pa.map_(pa.int64(), pa.string()), [(1, "a"), (2, None)], {"1": "a", "2": None}, id="map"),
    pytest.param(NESTED, NESTED_ROW, NESTED_JSON, id="struct"),
    pytest.param(pa.string(), '{"a": 1}', '{"a": 1}', id="text that looks like JSON"),
    pytest.param(pa.string(), "null", "null", id="text null"),
    pytest.param(pa.int64(), 2**62, 2**62, id="number"),
    pytest.param(pa.bool_(), True, True, id="boolean"),
    pytest.param(pa.decimal128(20, 4), Decimal("0.1000"), Decimal("0.1"), id="decimal"),
    pytest.param(pa.float64(), float("-inf"), "-Infinity", id="infinity"),
    pytest.param(pa.timestamp("us", "UTC"), BEGIN, "2026-01-01T12:00:00.123456Z", id="time"),
]


@pytest.mark.parametrize(("arrow_type", "value", "wanted"), AS_JSON)
def test_a_json_column_has_each_value_encoded_once_by_its_type(
    database: Database, arrow_type: pa.DataType, value: Any, wanted: Any
) -> None:
    """Without it a NOT NULL column takes nulls, an empty map is a list, and numbers are texts."""
    column_types = ["JSON"]
    if database.engine.dialect.name == "postgresql":
        database.does("CREATE DOMAIN document AS JSONB")
        column_types += ["JSONB", "document"]
    schema = pa.schema([("n", pa.int64()), ("j", arrow_type)])
    rows = [{"n": 1, "j": value}, {"n": 2, "j": None}]
    for column_type in column_types:
        may_be_null, never_null = f"wins_{column_type}", f"never_{column_type}"
        database.does(
            f'CREATE TABLE "{may_be_null}" (n BIGINT, j {column_type})',
            f'CREATE TABLE "{never_null}" (n BIGINT, j {column_type} NOT NULL)',
        )

        reports = database.inserts(rows, schema, may_be_null)
        reports_of_never = database.inserts(rows, schema, never_null)

        assert rows_by_kind(reports) == {"sent": 2}, reports
        assert rows_by_kind(reports_of_never) == {"sent": 1, "refused": 1}, "a null is NULL, which the column forbids"
        with database.engine.connect() as connection:
            rows_as_text = connection.execute(sa.text(f'SELECT n, CAST(j AS TEXT) FROM "{may_be_null}"'))
            texts = dict(map(tuple, rows_as_text))
        assert texts.pop(2) is None
        assert json.loads(texts.pop(1), parse_float=Decimal) == wanted


@pytest.mark.parametrize(("arrow_type", "value", "wanted"), AS_JSON[:4])
def test_a_text_column_has_the_same_json(database: Database, arrow_type: pa.DataType, value: Any, wanted: Any) -> None:
    """Without it the same struct is written in two ways."""
    database.does("CREATE TABLE wins (n BIGINT, j TEXT)")
    schema = pa.schema([("n", pa.int64()), ("j", arrow_type)])

    assert rows_by_kind(database.inserts([{"n": 1, "j": value}, {"n": 2, "j": None}], schema)) == {"sent": 2}

    first, second = database.rows("wins", "n", "j")
    assert json.loads(first[1], parse_float=Decimal) == wanted
    assert second[1] is None


@NEEDS_SERVER
def test_arrays_have_values_of_their_type(server: postgres.Postgres) -> None:
    """Without it the elements of an array are texts, and a null in one of JSON is a JSON null."""
    database = Database(server.url)
    database.does(
        "DROP TABLE IF EXISTS wins",
        "CREATE TABLE wins (amounts NUMERIC(20,4)[], times TIMESTAMP[], grid BIGINT[], cards JSONB[], "
        "key BIGINT PRIMARY KEY)",
    )
    schema = pa.schema(
        {
            "amounts": pa.list_(pa.decimal128(20, 4)),
            "times": pa.list_(pa.timestamp("us", "UTC")),
            "grid": pa.list_(pa.list_(pa.int64())),
            "cards": pa.list_(pa.map_(pa.string(), pa.int64())),
            "key": pa.int64(),
        }
    )
    row = {
        "amounts": [Decimal("0.1000"), None],
        "times": [BEGIN],
        "grid": [[1, 2], [3, 4]],
        "cards": [[("a", 1)], [], None],
        "key": 1,
    }

    reports = database.inserts([row], schema, key=("key",))

    assert rows_by_kind(reports) == {"sent": 1}, reports
    ((amounts, times, grid),) = database.rows("wins", "amounts", "times", "grid")
    assert amounts == [Decimal("0.1000"), None]
    assert times == [BEGIN.replace(tzinfo=None)]
    assert grid == [[1, 2], [3, 4]]
    with database.engine.connect() as connection:
        cards = connection.execute(sa.text("SELECT c::text FROM wins, unnest(cards) AS c")).scalars().all()
    assert cards == ['{"a": 1}', "{}", None]


def test_a_row_that_is_refused_leaves_its_neighbours(database: Database) -> None:
    """Without it one bad row keeps five hundred others out, or the stream stops."""
    database.does("CREATE TABLE wins (n BIGINT NOT NULL UNIQUE CHECK (n <> 13), name VARCHAR(20))")
    rows: list[dict[str, Any]] = [{"n": n, "name": f"player {n}"} for n in range(100)]
    rows[7]["n"], rows[50]["n"] = None, 49
    rows[60]["name"] = "nul \x00 byte"

    reports = database.inserts(rows, NAMED)

    assert rows_by_kind(reports) == {"sent": 96, "refused": 4}
    refused = {report["offset"]: report["text"] for report in reports if report["kind"] == "refused"}
    assert set(refused) == {7, 13, 50, 60}
    assert all(refused.values())
    assert "player" not in refused[7]  # no statement, no values
    assert len(database.rows("wins", "n")) == 96


def test_a_key_makes_a_repetition_harmless_and_the_last_row_wins(database: Database) -> None:
    """Without it a batch that is sent again doubles its rows, or an older one comes back."""
    database.does("CREATE TABLE wins (n BIGINT PRIMARY KEY, name VARCHAR(20))")
    rows = [{"n": n % 10, "name": f"at {n}"} for n in range(40)]

    for _ in range(2):
        assert rows_by_kind(database.inserts(rows, NAMED, key=("n",), rows_per_statement=7)) == {"sent": 40}

    assert database.rows("wins", "n", "name") == [(n, f"at {30 + n}") for n in range(10)]
    only = pa.schema([("n", pa.int64())])
    assert rows_by_kind(database.inserts([{"n": 1}, {"n": 77}], only, key=("n",))) == {"sent": 2}
    assert len(database.rows("wins", "n")) == 11


def test_rows_go_to_the_table_they_name_within_bounds(database: Database) -> None:
    """Without it data opens tables without end, or rows for one that is not there stop all others."""
    database.does("CREATE TABLE wins_a (n BIGINT, name VARCHAR(9))", 'CREATE TABLE "wins_B c" (n BIGINT, name TEXT)')
    rows = [{"n": n, "name": "x"} for n in range(6)]
    tables = ["wins_a", "wins_a", "wins_B c", "wins_none", None, "wins_z"]

    reports = database.inserts(rows, NAMED, tables, at_most=3)

    assert rows_by_kind(reports) == {"sent": 3, "refused": 3}
    texts = [report["text"] for report in reports if report["kind"] == "refused"]
    assert texts == [
        "there is no table wins_none",
        "its table cannot be evaluated",
        "table wins_z: the sink may have 3 tables in a batch and has them",
    ]
    assert len(database.rows("wins_B c", "n")) == 1


def test_a_table_that_is_dropped_makes_the_sink_wait(database: Database) -> None:
    """Without it whoever renames a table makes dead letters of all rows until it is back."""
    reports = database.inserts([{"n": 1, "name": "x"}], NAMED, fixed=True)

    assert [(one["kind"], one["text"]) for one in reports] == [("wrong", "there is no table wins")]


@NEEDS_SERVER
def test_a_server_that_is_away_is_no_fault_of_a_row(server: postgres.Postgres) -> None:
    """Without it an outage makes dead letters of good rows."""
    database = Database(server.url)
    database.does("DROP TABLE IF EXISTS wins", "CREATE TABLE wins (n BIGINT, name TEXT)")
    server.stop()
    try:
        reports = database.inserts([{"n": 1, "name": "x"}], NAMED)
        with pytest.raises(ConnectionError) as away:
            check_database(InsertJob(server.url, None, ("n",), (), **SMALL), "wins")
    finally:
        server.start()

    assert rows_by_kind(reports) == {"away": 0}
    assert "secret-word" not in f"{reports} {away.value}"
    assert rows_by_kind(database.inserts([{"n": 1, "name": "x"}], NAMED)) == {"sent": 1}


@NEEDS_SERVER
def test_a_server_that_restarts_is_reported_without_a_traceback(
    server: postgres.Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a task logs pages of SQLAlchemy for each restart, and the reason stands in none of the first lines."""
    database = Database(server.url)
    database.does("DROP TABLE IF EXISTS wins", "CREATE TABLE wins (n BIGINT, name TEXT)")
    job = InsertJob(server.url, None, tuple(NAMED.names), (), **SMALL)
    batch = database.batch([{"n": 1, "name": "x"}], NAMED, "wins")

    def restarted_between() -> Iterator[pa.RecordBatch]:
        yield batch
        server.stop()
        server.start()
        yield batch

    reports = [row for found in insert_task(job)(restarted_between()) for row in found.to_pylist()]

    assert rows_by_kind(reports) == {"sent": 1, "away": 0}
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@NEEDS_SERVER
def test_what_somebody_must_change_is_told_before_anything_is_sent(server: postgres.Postgres) -> None:
    """Without it a missing index, or a login without rights, makes dead letters of all rows."""
    database = Database(server.url)
    database.does("DROP TABLE IF EXISTS wins", "CREATE TABLE wins (n BIGINT, name TEXT)")

    reports = database.inserts([{"n": 1, "name": "x"}], NAMED, key=("n",))

    assert [(one["kind"], "constraint" in one["text"]) for one in reports] == [("wrong", True)]
    for table, columns, url, told in (
        ("losses", ("n",), server.url, "no table losses"),
        ("wins", ("m",), server.url, "no column m"),
        ("wins", ("n",), server.url.replace("postgres:", "nobody:"), "nobody"),
        ("wins", ("n",), "postgresql+psycopg://x:secret-word@127.0.0.1/x", "driver"),
    ):
        with pytest.raises(StartError) as error:
            check_database(InsertJob(url, None, columns, (), **SMALL), table)
        assert told in str(error.value)
        assert "secret-word" not in str(error.value)


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        pytest.param('{url: "127.0.0.1", table: wins}', "begins with a dialect", id="url"),
        pytest.param('{url: "sqlite://", table: "{event.game}"}', "begins with fixed text", id="table"),
        pytest.param('{url: "sqlite://", table: "wins_{event.game"}', "no partner", id="braces"),
        pytest.param('{url: "sqlite://", tabel: wins}', "did you mean `table`", id="option"),
        pytest.param('{url: "sqlite://"}', "table", id="no table"),
    ],
)
def test_a_mistake_is_told_with_its_line(sink: str, told: str) -> None:
    """Without it a wrong option shows when the first row comes."""
    assert_mistake_has_a_line(f"{{sql: {sink}}}", told)


def test_a_missing_extra_is_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a task fails with the name of a module."""
    told = missing_extra(monkeypatch, '{sql: {url: "sqlite://", table: wins}}', "sqlalchemy")

    assert told == (
        "the sink sql needs the module sqlalchemy; pip install 'spark-event-router[sql]', here and on every node"
    )


def test_the_database_is_asked_by_doctor_and_its_password_is_in_no_text() -> None:
    """Without it somebody reads the password in a log."""
    options = {"url": "postgresql+pg8000://me:secret-word@db.example/x", "table": "wins"}
    sink = load_registry().resolve(Sink, {"sql": options})

    assert [(one.kind, one.address) for one in sink.talks_to(Path())] == [("database", "db.example:5432")]
    assert "secret-word" not in repr(sink)


def test_a_password_that_is_a_common_word_cuts_no_words() -> None:
    """Without it a message about games_wins reads ***_wins, which gives the password away."""
    session = Session(InsertJob("postgresql+pg8000://me:games@db.example/x", None, ("n",), (), **SMALL))

    text = session._error_text(RuntimeError("no relation games_wins, and games is no password"))

    assert text == "no relation games_wins, and *** is no password"
