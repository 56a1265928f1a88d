"""The ledger: one row per batch, source partition, route and sink, saying what became of every record.

Observers are told the same of a batch: its report.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from router.delta.commit import StagedFile, TableCommit, to_delta
from router.delta.file_statistics import statistics
from router.delta.lake import native_files
from router.engine.balance import BRONZE, KEYED, keyed, total
from router.engine.checkpoint_store import lake_and_checkpoint
from router.parts import BatchReport
from router.sinks import Applied

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.balance import Partition
    from router.engine.checkpoint_store import Manifest
    from router.engine.commit.committers import Committers
    from router.engine.label.layout import Layout
    from router.sinks import Resent

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
        ("read", pa.int64()),
        ("decoded", pa.int64()),
        ("failed", pa.int64()),
        ("bare", pa.int64()),
        ("unmatched", pa.int64()),
        ("matched", pa.int64()),
        ("landed", pa.int64()),
        ("refused", pa.int64()),
        ("dropped", pa.int64()),
        ("applied", pa.int64()),
        ("dead", pa.int64()),
        ("backlog", pa.int64()),
        ("frozen", pa.int64()),
        ("quarantined", pa.int64()),
        ("released", pa.int64()),
        ("lost", pa.int64()),
        ("parked", pa.int64()),
        ("in_doubt", pa.int64()),
        ("unknown", pa.int64()),
        ("unknown_fields", pa.map_(pa.string(), pa.int64())),
        ("violated", pa.map_(pa.string(), pa.int64())),
        ("configuration", pa.string()),
        ("finished", pa.timestamp("us", "UTC")),
    ]
)
"""Rows without a route count the source: read = decoded + failed + bare; `lost` ones were deleted in Kafka before they
were read, and stand in a batch of their own, in which nothing was read; `unknown` events have fields that the schema
lacks, of which `unknown_fields` has as many as NAMED, each with its events; `dropped` ones have no value and are
nowhere, `violated` has its expectations. Rows with a route and sink count what matched: matched = landed + refused +
dropped + quarantined; for a sink with an outbox landed = applied + dead + parked + backlog. `backlog` rows stay in the
outbox, less those of earlier batches that were applied now: their table cannot be written, or a detached sink has yet
to send them (its batches stand here with its own run). `frozen` rows landed without the columns that their table
lacks; `released` ones left the quarantine, up to the batch of the row here; `parked` ones the sink keeps to send them
later. `in_doubt` counts applied rows that may have been sent twice, because of a crash. `violated` has the
expectations that did not hold, each with its events: of the route, so that all sinks of it have the same.
`configuration` is the fingerprint of that under which the batch was decided.

A replay has a row without a batch, of what it changed: more rows are `applied`, and as many fewer are `parked` or
`dead`. So the sums over all rows are the state of today, and the rows of batches that of their time.
"""


VIOLATED = "violated "
"""What the name of an expectation comes after in a report's counts of a route."""
LATER = {"unknown", "unknown_fields", "violated", "configuration"}
"""Columns that the next append adds to a ledger which was made before they were."""
READ = ("read", "decoded", "failed", "bare", "unmatched")
SOURCE = (*READ, "lost", "unknown")
SUMMED = (
    *("matched", "landed", "refused", "dropped", "applied", "dead", "backlog", "frozen", "quarantined", "released"),
    *("parked", "in_doubt"),
)


def rows(
    query: str,
    run: str,
    batch: int,
    targets: Iterable[str],
    counted: tuple[Partition, ...],
    applied: dict[str, Applied],
) -> list[dict[str, Any]]:
    """Return the ledger rows of a batch.

    `targets` are the keys (`route/sink`) of its sinks; `applied` has the counts of each applying one by key.

    What a sink applied is known for the batch, not per source partition: it stands in a row of its own, without one.
    """
    found: list[dict[str, Any]] = []
    base = {"query": query, "run": run, "batch_id": batch}
    for part in counted:
        where = {
            **base,
            "topic": part.topic,
            "partition": part.partition,
            "from_offset": part.first,
            "to_offset": part.last,
        }
        source = {name: getattr(part, name) for name in READ}
        beyond = {"unknown": part.unknown, "unknown_fields": sorted(part.unknown_fields.items()) or None}
        raw = {"dropped": part.dropped.get(BRONZE), "violated": _of_route(part.violated, BRONZE)}
        found.append({**where, **source, **beyond, **raw})
        for key in targets:
            route, sink = key.split("/", 1)
            quarantine = f"{key}/quarantine"
            rejected = part.rejected.get(key, 0) + part.rejected.get(quarantine, 0)
            found.append({
                **where, "route": route, "sink": sink, "matched": part.matched.get(route, 0),
                "landed": part.landed.get(key, 0), "refused": part.refused.get(route, 0) + rejected,
                "dropped": part.dropped.get(route, 0), "frozen": part.frozen.get(key, 0),
                "quarantined": part.landed.get(quarantine, 0), "violated": _of_route(part.violated, route),
            })  # fmt: skip
    if not counted:
        found.append({**base, **dict.fromkeys(READ, 0)})
    for key, counts in applied.items():
        landed = sum(part.landed.get(key, 0) for part in counted)
        found.append({**base, **of_sink(key, counts, landed)})
    return found


def _of_route(violated: Mapping[str, int], route: str) -> list[tuple[str, int]] | None:
    """Return the expectations of a route that did not hold, each with its events; None where all did."""
    named = ((key.rpartition("/"), count) for key, count in sorted(violated.items()))
    return [(name, count) for (of, _, name), count in named if of == route and count] or None


def of_moved(query: str, run: str, manifest: Manifest) -> list[dict[str, Any]]:
    """Return the rows that move landed rows of a batch into the quarantine: their table could not be written."""
    found = []
    for key, count in manifest.moved.items():
        route, sink = key.split("/", 1)
        base = {"query": query, "run": run, "batch_id": manifest.batch, "route": route, "sink": sink}
        found.append({**base, "landed": -count, "quarantined": count})
    return found


def of_sink(key: str, counts: Applied, landed: int = 0) -> dict[str, Any]:
    """Return what a ledger row says of what a sink applied of `landed` rows, and of an earlier backlog."""
    route, sink = key.split("/", 1)
    return {"route": route, "sink": sink, **counts._asdict(), "backlog": landed - counts.done}


def of_replay(key: str, resent: Resent) -> dict[str, Any]:
    """Return what a ledger row says of rows that a sink sent again."""
    route, sink = key.split("/", 1)
    moved = {status: resent.are(status) - resent.were(status) for status in ("dead", "parked")}
    counts = {"applied": resent.are("delivered"), **moved, "in_doubt": resent.in_doubt, "backlog": 0}
    return {"route": route, "sink": sink, **counts}


def report(
    query: str, layout: Layout, manifest: Manifest, seconds: Mapping[str, float], applied: Mapping[str, Applied]
) -> BatchReport:
    """Return the report of a finished batch, for observers.

    `seconds` are those of its steps, `applied` is what sinks did with their outboxes.
    """
    counted, commits = manifest.partitions, manifest.commits
    by = {kind: keyed(counted, kind) for kind in KEYED}
    routes = {
        route.shown or route.name: {
            "matched": by["matched"][route.name],
            "landed": sum(by["landed"][target.key] - manifest.moved[target.key] for target in route.targets),
            "refused": by["refused"][route.name] + sum(by["rejected"][k] for t in route.targets for k in t.keys),
            "dropped": by["dropped"][route.name],
            "frozen": sum(by["frozen"][target.key] for target in route.targets),
            "quarantined": sum(by["landed"][key] for target in route.targets for key in target.keys[1:])
            + sum(manifest.moved[target.key] for target in route.targets),
            **{f"{VIOLATED}{name}": by["violated"][f"{route.name}/{name}"] for name in route.violated},
        }
        for route in layout.routes
    }
    read, failed = total(counted, "read"), total(counted, "failed")
    refused = sum(counts.dead for counts in applied.values())
    return BatchReport(
        query=query,
        batch=manifest.batch,
        read=read,
        decoded=read - failed - total(counted, "bare"),
        failed=failed,
        unmatched=total(counted, "unmatched"),
        dead_letters=sum(work.rows for work in commits if work.target == "/dead_letters") + refused,
        tables=len({work.table for work in commits}),
        files=sum(len(work.files) for work in commits),
        seconds={name: round(took, 4) for name, took in seconds.items()},
        routes=routes,
        unknown=total(counted, "unknown"),
        violated={name: by["violated"][f"{BRONZE}/{name}"] for name in layout.bronze_violated},
    )


class LedgerEntry(NamedTuple):
    """One append to the ledger: its table, and the transaction id and version that let it happen once."""

    table: str
    app_id: str
    version: int


def append(committers: Committers, entry: LedgerEntry, found: list[dict[str, Any]], *, tables: Any = None) -> None:
    """Append rows to the ledger, once for each entry. `tables` opens tables; None opens this one anew."""
    lake, folder = committers.lake, entry.table.replace(".", "/")
    now = int(time.time() * 1_000_000)
    content = pa.Table.from_pylist([{**row, "finished": now} for row in found], SCHEMA)
    path = f"{folder}/part-{entry.version:010d}-{time.time_ns()}.parquet"
    lake.files.create_dir(folder, recursive=True)
    footers: list[pq.FileMetaData] = []
    with lake.files.open_output_stream(path) as stream:
        pq.write_table(content, stream, store_schema=False, metadata_collector=footers)
        size = stream.tell()
    file = StagedFile("/ledger", entry.table, path, size, len(found), tuple(SCHEMA.names), statistics(footers[0]))
    opened = tables.open([entry.table]) if tables else {entry.table: lake.open(entry.table)}
    have = {field.name for field in table.schema().fields} if (table := opened[entry.table]) else {*SCHEMA.names}
    added = [column for column in SCHEMA if column.name not in have]
    about = "/ledger", entry.table, entry.app_id, entry.version, (file,), to_delta(SCHEMA)
    work = TableCommit(*about, added=to_delta(pa.schema(added)) if added else None)
    if not committers.commit((work,), opened, {}):
        lake.files.delete_file(path)


def sent(lake: Lake, config: Config, key: str) -> int:
    """Return the rows of an outbox that its sink has dealt with, by the ledger."""
    table, (route, sink) = lake.open(config.ledger), key.split("/", 1)
    if table is None:
        return 0
    blank = dict.fromkeys(Applied._fields)  # a ledger of an older version has fewer columns
    where = [("query", "=", config.name), ("route", "=", route), ("sink", "=", sink)]
    rows = table.to_pyarrow_table(filters=where, filesystem=native_files(table)).to_pylist()
    counts = (Applied(*({**blank, **row}[name] or 0 for name in Applied._fields)) for row in rows)
    return sum(count.done for count in counts)


def last(config: Config, batches: int) -> list[dict[str, Any]]:
    """Return the ledger rows of a query's last batches, oldest first, events of a sink summed over partitions.

    A detached sink has batches of its own: as many of these are there, too. Memory holds the rows of those batches, and
    five columns of a part of the others: a ledger has millions of rows after some months.
    """
    lake, _ = lake_and_checkpoint(config)
    table = lake.open(config.ledger)
    if table is None:
        return []
    found = table.to_pyarrow_dataset(filesystem=native_files(table))
    mine = pc.field("query") == config.name
    wanted = _last_batches(_endings(found, mine, batches), batches)
    numbers = {batch for _, batch in wanted}
    these = pc.field("batch_id").isin(pa.array(numbers - {None}, pa.int64()))
    these = these | pc.field("batch_id").is_null() if None in numbers else these
    blank = dict.fromkeys(SCHEMA.names)  # a ledger of an older version has fewer columns
    chosen = [{**blank, **row} for row in found.to_table(filter=mine & these).to_pylist()]
    return sorted(
        _summed([row for row in chosen if (row["run"], row["batch_id"]) in wanted]),
        key=lambda row: (row["finished"], row["route"] or "", row["topic"] or "", row["partition"] or 0),
    )


def totals(config: Config) -> dict[tuple[str | None, str | None], dict[str, int]]:
    """Return the sums of all counts of a query, by route and sink; (None, None) are those of the source."""
    table = lake_and_checkpoint(config)[0].open(config.ledger)
    if table is None:
        return {}
    counts = [name for name in (*SOURCE, *SUMMED) if name in {field.name for field in table.schema().fields}]
    found: dict[tuple[str | None, str | None], dict[str, int]] = {}
    reading = table.to_pyarrow_dataset(filesystem=native_files(table)).scanner(
        ["route", "sink", *counts], ds.field("query") == config.name
    )
    for part in reading.to_batches():
        sums = pa.table(part).group_by(["route", "sink"]).aggregate([(name, "sum") for name in counts])
        for row in sums.to_pylist():
            have = found.setdefault((row["route"], row["sink"]), dict.fromkeys(counts, 0))
            have |= {name: have[name] + (row[f"{name}_sum"] or 0) for name in counts}
    return found


BATCH = ("run", "route", "sink", "batch_id")


def _endings(ledger: ds.Dataset, mine: pc.Expression, batches: int) -> list[dict[str, Any]]:
    """Return when the last batches of each run, route and sink ended, read part by part."""
    found: pa.Table | None = None
    reading = ledger.to_batches(columns=[*BATCH, "finished"], filter=mine, batch_readahead=2, fragment_readahead=1)
    for part in reading:
        rows = pa.Table.from_batches([part])
        found = _latest(pa.concat_tables([found, rows]) if found else rows, batches)
    return found.to_pylist() if found else []


def _latest(ended: pa.Table, batches: int) -> pa.Table:
    """Keep the last batches of each run, route and sink. A batch may be there several times, from several parts."""
    ended = ended.group_by(BATCH).aggregate([("finished", "max")]).rename_columns([*BATCH, "finished"])
    ended = ended.sort_by([*((name, "ascending") for name in BATCH[:3]), ("finished", "descending")])
    whose = [column.combine_chunks().dictionary_encode(null_encoding="encode") for column in ended.columns[:3]]
    changed = np.zeros(len(ended), bool)
    changed[:1] = True
    for column in whose:
        codes = column.indices.to_numpy()
        changed[1:] |= codes[1:] != codes[:-1]
    first = np.maximum.accumulate(np.where(changed, np.arange(len(ended)), 0))
    return ended.filter(pa.array(np.arange(len(ended)) - first < batches))


def _last_batches(ended: list[dict[str, Any]], batches: int) -> set[tuple[str, int | None]]:
    """Return run and number of the last batches: of all runs of the source together, and of each detached sink."""
    sources = {row["run"] for row in ended if row["route"] is None}
    by: dict[tuple[str | None, str | None], dict[tuple[str, int | None], datetime]] = {}
    for row in ended:
        whose = (None, None) if row["run"] in sources else (row["route"], row["sink"])
        batch = row["run"], row["batch_id"]
        known = by.setdefault(whose, {})
        known[batch] = max(row["finished"], known.get(batch, row["finished"]))
    return {batch for known in by.values() for batch in sorted(known, key=known.__getitem__)[-batches:]}


def _summed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add up the rows of each batch, route and sink; rows of the source stay as they are."""
    sources = [row for row in rows if row["route"] is None]
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in (row for row in rows if row["route"] is not None):
        key = (row["run"], row["batch_id"], row["route"], row["sink"])
        have = sums.setdefault(key, {**row, **dict.fromkeys(SUMMED)})
        have |= {name: (have[name] or 0) + row[name] for name in SUMMED if row[name] is not None}
    return [*sources, *sums.values()]
