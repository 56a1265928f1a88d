"""Write and read the ledger: one row per batch, source partition, route and sink, with what became of every record.

Observers get the same counts of a batch as its report.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from router.api.parts import BatchReport
from router.api.sinks import Applied
from router.counts import COUNTS, count_names, outcome_names
from router.delta.commit import TableCommit, to_delta
from router.delta.dataset import dataset_of
from router.delta.file_statistics import statistics_json
from router.delta.staged_files import StagedFile
from router.delta.transaction_id import TransactionId
from router.engine.balance import COUNTS_BY_KEY, SUMS, sum_by_key, sum_counts
from router.engine.checkpoint_store import lake_and_checkpoint
from router.own_names import BRONZE

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from router.api.sinks import Resent
    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.balance import Partition
    from router.engine.checkpoint_store import Manifest
    from router.engine.commit.committers import Committers
    from router.engine.label.layout import Layout, RouteLabels

SCHEMA = pa.schema(
    [
        ("query", pa.string()),
        ("run", pa.string()),
        ("batch_id", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("from_offset", pa.int64()),
        ("to_offset", pa.int64()),
        ("route", pa.string()),
        ("sink", pa.string()),
        *((name, pa.int64()) for name in count_names("source", "route", "sink")),
        ("unknown_fields", pa.map_(pa.string(), pa.int64())),
        ("violated", pa.map_(pa.string(), pa.int64())),
        ("configuration", pa.string()),
        ("topic_id", pa.string()),
        ("finished", pa.timestamp("us", "UTC")),
    ]
)
"""Rows without a route count a source partition, the others a route and sink; `router.counts` has the counts.

`unknown_fields` has as many fields that the schema lacks as NAMED, each with its events. `violated` has the
expectations that did not hold, each with its events: of the route, so that all sinks of it have the same; without a
route those of bronze. The `backlog` of a table that cannot be written, or of a detached sink, stays in the outbox; the
batches of a detached sink stand here with its own run. `configuration` is the fingerprint of that under which the batch
was decided. `topic_id` is Kafka's id of the topic, in rows without a route: a topic that is deleted and created again
has another one.

A replay has a row without a batch, of what it changed: more rows are `applied`, and as many fewer are `parked` or
`dead`. So the sums over all rows are the state of today, and the rows of batches that of their time.
"""


VIOLATED = "violated "
"""The prefix of the names of expectations among a report's counts of a route."""
OPTIONAL_COLUMNS = {
    *(count.name for count in COUNTS if count.optional),
    *("unknown_fields", "violated", "configuration", "topic_id"),
}
"""Columns that the ledger of an older version may lack: the next append adds them. Without any other one the start is
refused."""
COUNTED = (*SUMS, "decoded")
"""The counts of the source that a batch has."""


def rows_of_batch(
    query: str,
    run: str,
    batch: int,
    targets: Iterable[str],
    counted: tuple[Partition, ...],
    applied: dict[str, Applied],
) -> list[dict[str, Any]]:
    """Return the ledger rows of a batch.

    `targets` are the keys (`route/sink`) of its sinks; `applied` has the counts of each applying one by key. What a
    sink applied is known for the batch, not per source partition: it gets a row of its own, without one.
    """
    ledger_rows: list[dict[str, Any]] = []
    batch_columns = {"query": query, "run": run, "batch_id": batch}
    for part in counted:
        source = {
            **batch_columns,
            "topic": part.topic,
            "partition": part.partition,
            "from_offset": part.first,
            "to_offset": part.last,
        }
        ledger_rows.append({**source, **_counts_of_source(part)})
        sums = {kind: sum_by_key([part], kind) for kind in COUNTS_BY_KEY}
        for key in targets:
            ledger_rows.append({**source, **_counts_of_target(part, sums, key)})
    if not counted:
        ledger_rows.append({**batch_columns, **dict.fromkeys(COUNTED, 0)})
    for key, counts in applied.items():
        landed = sum(part.landed.get(key, 0) for part in counted)
        ledger_rows.append({**batch_columns, **of_sink(key, counts, landed)})
    return ledger_rows


def _counts_of_source(part: Partition) -> dict[str, Any]:
    """Return the counts of a source partition before its records are routed."""
    return {
        **{name: getattr(part, name) for name in COUNTED},
        "unknown_fields": sorted(part.unknown_fields.items()) or None,
        "dropped": part.dropped.get(BRONZE),
        "violated": _of_route(part.violated, BRONZE),
    }


def _counts_of_target(part: Partition, sums: Mapping[str, Counter[str]], key: str) -> dict[str, Any]:
    """Return the counts of a source partition, whose keyed sums are given, for one route and sink."""
    route, sink = key.split("/", 1)
    counts = {name: sums[name][route] for name in outcome_names("route")}
    _add_sink(counts, sums, (key, f"{key}/quarantine"))
    return {"route": route, "sink": sink, **counts, "violated": _of_route(part.violated, route)}


def _add_sink(counts: dict[str, int], sums: Mapping[str, Counter[str]], keys: Iterable[str]) -> None:
    """Add the counts of a sink to those of its route: a task counts by route or by sink, never both.

    The first key is that of the sink, the others are those of its quarantine.
    """
    sink_key, *quarantine_keys = keys
    for name in counts:
        counts[name] += sums[name][sink_key]
    for key in quarantine_keys:
        counts["quarantined"] += sums["landed"][key]
    # A row may also be refused on its way into the quarantine: it is a dead letter of the sink then.
    for key in (sink_key, *quarantine_keys):
        counts["refused"] += sums["rejected"][key]


def _of_route(violated: Mapping[str, int], route: str) -> list[tuple[str, int]] | None:
    """Return the expectations of a route that did not hold, each with its events; None if all did."""
    of_route = []
    for key, count in sorted(violated.items()):
        key_route, _, name = key.rpartition("/")
        if key_route == route and count:
            of_route.append((name, count))
    return of_route or None


def of_moved(query: str, run: str, manifest: Manifest) -> list[dict[str, Any]]:
    """Return the rows that move landed rows of a batch into the quarantine: their table could not be written."""
    ledger_rows = []
    for key, count in manifest.moved_rows.items():
        route, sink = key.split("/", 1)
        ledger_rows.append(
            {
                "query": query,
                "run": run,
                "batch_id": manifest.batch,
                "route": route,
                "sink": sink,
                "landed": -count,
                "quarantined": count,
            }
        )
    return ledger_rows


def of_sink(key: str, counts: Applied, landed: int = 0) -> dict[str, Any]:
    """Return the columns of a ledger row about a sink that applied some of `landed` rows, and of an earlier backlog."""
    route, sink = key.split("/", 1)
    return {"route": route, "sink": sink, **counts._asdict(), "backlog": landed - counts.finished_rows}


def of_replay(key: str, resent: Resent) -> dict[str, Any]:
    """Return the columns of a ledger row about rows that a sink sent again."""
    route, sink = key.split("/", 1)
    moved = {status: resent.count_now(status) - resent.count_before(status) for status in ("dead", "parked")}
    counts = {"applied": resent.count_now("delivered"), **moved, "in_doubt": resent.in_doubt, "backlog": 0}
    return {"route": route, "sink": sink, **counts}


def make_report(
    query: str, layout: Layout, manifest: Manifest, seconds: Mapping[str, float], applied: Mapping[str, Applied]
) -> BatchReport:
    """Return the report of a finished batch, for observers.

    `seconds` are those of its steps, `applied` is what sinks did with their outboxes.
    """
    counted = manifest.partitions
    commits = manifest.commits
    sums = {kind: sum_by_key(counted, kind) for kind in COUNTS_BY_KEY}
    routes = {}
    for route in layout.routes:
        routes[route.shown or route.name] = _counts_of_route(route, sums, manifest.moved_rows)
    refused_by_sinks = sum(counts.dead for counts in applied.values())
    return BatchReport(
        query=query,
        batch=manifest.batch,
        **{name: sum_counts(counted, name) for name in outcome_names("source")},
        dead_letters=sum(commit.rows for commit in commits if commit.target == "/dead_letters") + refused_by_sinks,
        tables=len({commit.table for commit in commits}),
        files=sum(len(commit.files) for commit in commits),
        seconds={name: round(took, 4) for name, took in seconds.items()},
        routes=routes,
        unknown=sum_counts(counted, "unknown"),
        violated={name: sums["violated"][f"{BRONZE}/{name}"] for name in layout.bronze_violated},
    )


def _counts_of_route(route: RouteLabels, sums: Mapping[str, Counter[str]], moved: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of a route in a report, summed over its sinks."""
    counts = {name: sums[name][route.name] for name in outcome_names("route")}
    for target in route.targets:
        _add_sink(counts, sums, target.keys)
        counts["landed"] -= moved[target.key]
        counts["quarantined"] += moved[target.key]
    for name in route.violated:
        counts[f"{VIOLATED}{name}"] = sums["violated"][f"{route.name}/{name}"]
    return counts


def last_batch(table: Any, query: str, run: str | None) -> int:
    """Return the last batch of a run that the open table of a ledger has; -1 for none, and without a table."""
    version = table.transaction_version(str(TransactionId("ledger", f"{query}:{run}"))) if table else None
    return -1 if version is None else int(version)


class LedgerEntry(NamedTuple):
    """One append to the ledger: its table, and the transaction id and version that let it happen once."""

    table: str
    app_id: str
    version: int


def append(
    committers: Committers, entry: LedgerEntry, ledger_rows: list[dict[str, Any]], *, tables: Any = None
) -> None:
    """Append rows to the ledger, once for each entry. `tables` opens tables; if it is None, the ledger is opened."""
    lake = committers.lake
    file = _stage_rows(lake, entry, ledger_rows)
    table = tables.open_tables([entry.table])[entry.table] if tables else lake.open(entry.table)

    # A ledger of an older version lacks columns: this append adds them.
    added = None
    if table is not None:
        present = {field.name for field in table.schema().fields}
        lacking = [column for column in SCHEMA if column.name not in present]
        if lacking:
            added = to_delta(pa.schema(lacking))
    commit = TableCommit(
        target="/ledger",
        table=entry.table,
        app_id=entry.app_id,
        version=entry.version,
        files=(file,),
        columns=to_delta(SCHEMA),
        added=added,
    )
    if not committers.commit_all((commit,), {entry.table: table}, {}):
        lake.files.delete_file(file.path)


def _stage_rows(lake: Lake, entry: LedgerEntry, ledger_rows: list[dict[str, Any]]) -> StagedFile:
    """Write rows into a Parquet file in the ledger's folder, which no commit refers to yet."""
    folder = entry.table.replace(".", "/")
    finished = int(time.time() * 1_000_000)
    content = pa.Table.from_pylist([{**row, "finished": finished} for row in ledger_rows], SCHEMA)
    path = f"{folder}/part-{entry.version:010d}-{time.time_ns()}.parquet"
    lake.files.create_dir(folder, recursive=True)
    footers: list[pq.FileMetaData] = []
    with lake.files.open_output_stream(path) as stream:
        pq.write_table(content, stream, store_schema=False, metadata_collector=footers)
        size = stream.tell()
    return StagedFile(
        target="/ledger",
        table=entry.table,
        path=path,
        bytes=size,
        rows=len(ledger_rows),
        columns=tuple(SCHEMA.names),
        statistics=statistics_json(footers[0]),
    )


def count_sent_rows(lake: Lake, config: Config, key: str) -> int:
    """Return the number of rows of an outbox that its sink has dealt with, by the ledger."""
    table = lake.open(config.ledger)
    if table is None:
        return 0
    route, sink = key.split("/", 1)
    of_sink = (pc.field("query") == config.name) & (pc.field("route") == route) & (pc.field("sink") == sink)
    done = 0
    for row in dataset_of(table).to_table(filter=of_sink).to_pylist():
        # A ledger of an older version has fewer columns.
        counts = {name: row.get(name) or 0 for name in Applied._fields}
        done += Applied(**counts).finished_rows
    return done


def read_last_batches(config: Config, batches: int) -> list[dict[str, Any]]:
    """Return the ledger rows of a query's last batches, oldest first, events of a sink summed over partitions.

    A detached sink has batches of its own: as many of these are returned. Memory holds the rows of those batches, and
    five columns of a part of the others: a ledger has millions of rows after some months.
    """
    lake, _ = lake_and_checkpoint(config)
    table = lake.open(config.ledger)
    if table is None:
        return []
    dataset = dataset_of(table)
    of_query = pc.field("query") == config.name
    wanted = _last_batches(_read_endings(dataset, of_query, batches), batches)
    numbers = {batch for _, batch in wanted}
    has_number = pc.field("batch_id").isin(pa.array(numbers - {None}, pa.int64()))
    if None in numbers:  # a replay has no batch number
        has_number = has_number | pc.field("batch_id").is_null()

    blank = dict.fromkeys(SCHEMA.names)  # a ledger of an older version has fewer columns
    chosen = []
    for row in dataset.to_table(filter=of_query & has_number).to_pylist():
        # Batches of different runs have the same numbers.
        if (row["run"], row["batch_id"]) in wanted:
            chosen.append({**blank, **row})
    return sorted(
        _add_up_sinks(chosen),
        key=lambda row: (row["finished"], row["route"] or "", row["topic"] or "", row["partition"] or 0),
    )


def queries_of_route(lake: Lake, ledger: str, route: str) -> set[str]:
    """Return the queries whose batches had a route of this name."""
    table = lake.open(ledger)
    if table is None:
        return set()
    names: set[str] = set()
    for part in dataset_of(table).scanner(["query"], filter=pc.field("route") == route).to_batches():
        names |= set(pc.unique(part.column("query")).to_pylist())
    return names


def read_totals(config: Config) -> dict[tuple[str | None, str | None], dict[str, int]]:
    """Return the sums of all counts of a query, by route and sink; (None, None) are those of the source."""
    lake, _ = lake_and_checkpoint(config)
    table = lake.open(config.ledger)
    if table is None:
        return {}
    present = {field.name for field in table.schema().fields}
    names = [count.name for count in COUNTS if count.name in present]
    sums: dict[tuple[str | None, str | None], dict[str, int]] = {}
    scanner = dataset_of(table).scanner(["route", "sink", *names], ds.field("query") == config.name)
    # Part by part: a ledger has millions of rows after some months.
    for part in scanner.to_batches():
        sums_of_part = pa.table(part).group_by(["route", "sink"]).aggregate([(name, "sum") for name in names])
        for row in sums_of_part.to_pylist():
            counts = sums.setdefault((row["route"], row["sink"]), dict.fromkeys(names, 0))
            for name in names:
                counts[name] += row[f"{name}_sum"] or 0
    return sums


def topic_ids(lake: Lake, config: Config) -> dict[str, str]:
    """Return the id that each topic of a query had in its last batch that noted one."""
    table = lake.open(config.ledger)
    if table is None or "topic_id" not in {column.name for column in table.schema().fields}:
        return {}
    has_id = (pc.field("query") == config.name) & pc.field("topic_id").is_valid()
    rows = dataset_of(table).to_table(columns=["topic", "topic_id", "finished"], filter=has_id)
    latest = rows.group_by(["topic", "topic_id"]).aggregate([("finished", "max")]).sort_by("finished_max")
    return {row["topic"]: row["topic_id"] for row in latest.to_pylist()}


_BATCH_KEY = ("run", "route", "sink", "batch_id")


def _read_endings(ledger: ds.Dataset, of_query: pc.Expression, batches: int) -> list[dict[str, Any]]:
    """Return when the last batches of each run, route and sink ended. Reads the ledger part by part."""
    latest: pa.Table | None = None
    parts = ledger.to_batches(
        columns=[*_BATCH_KEY, "finished"], filter=of_query, batch_readahead=2, fragment_readahead=1
    )
    for part in parts:
        rows = pa.Table.from_batches([part])
        if latest is not None:
            rows = pa.concat_tables([latest, rows])
        latest = _keep_latest(rows, batches)
    return latest.to_pylist() if latest is not None else []


def _keep_latest(ended: pa.Table, batches: int) -> pa.Table:
    """Keep the last batches of each run, route and sink. A batch may be there several times, from several parts."""
    ended = ended.group_by(_BATCH_KEY).aggregate([("finished", "max")]).rename_columns([*_BATCH_KEY, "finished"])
    ended = ended.sort_by([*((name, "ascending") for name in _BATCH_KEY[:3]), ("finished", "descending")])
    # The rows of one run, route and sink now follow each other, the newest first: keep those that are less than
    # `batches` behind the first of their group. `null` is a value of its own: the source has no route.
    begins_group = np.zeros(len(ended), bool)
    begins_group[:1] = True
    for column in ended.columns[:3]:
        codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        begins_group[1:] |= codes[1:] != codes[:-1]
    row_numbers = np.arange(len(ended))
    first_of_group = np.maximum.accumulate(np.where(begins_group, row_numbers, 0))
    return ended.filter(pa.array(row_numbers - first_of_group < batches))


def _last_batches(ended: list[dict[str, Any]], batches: int) -> set[tuple[str, int | None]]:
    """Return run and number of the last batches: of all runs of the source together, and of each detached sink."""
    runs_of_source = {row["run"] for row in ended if row["route"] is None}
    endings: dict[tuple[str | None, str | None], dict[tuple[str, int | None], datetime]] = {}
    for row in ended:
        owner = (row["route"], row["sink"])
        if row["run"] in runs_of_source:
            owner = (None, None)
        batch = (row["run"], row["batch_id"])
        ends = endings.setdefault(owner, {})
        ends[batch] = max(row["finished"], ends.get(batch, row["finished"]))

    last_batches: set[tuple[str, int | None]] = set()
    for ends in endings.values():
        last_batches.update(sorted(ends, key=ends.__getitem__)[-batches:])
    return last_batches


def _add_up_sinks(ledger_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add up the rows of each batch, route and sink; rows of the source stay as they are."""
    summed = count_names("route", "sink")
    of_source = []
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in ledger_rows:
        if row["route"] is None:
            of_source.append(row)
            continue
        key = (row["run"], row["batch_id"], row["route"], row["sink"])
        counts = sums.setdefault(key, {**row, **dict.fromkeys(summed)})
        for name in summed:
            if row[name] is not None:
                counts[name] = (counts[name] or 0) + row[name]
    return [*of_source, *sums.values()]
