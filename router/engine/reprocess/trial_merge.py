"""Merge the rows of a trial into copies of what their tables have of the same keys, to count what a merge would do.

The copies are tables of the staging lake, and the merge is that of a batch. A table is taken as it was before the first
of the records: its commits note the offsets that they contain.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake.exceptions import DeltaError

from router.api.sinks import MergingSink
from router.api.table_options import NewTable
from router.delta.commit import stored_bytes, to_arrow
from router.delta.history import REPAIRED, log_commits, log_versions
from router.delta.keyed.row_versions import deletions_table, rows_of_keys
from router.delta.keyed.upsert import LARGE
from router.delta.replace import copy_constraints, create_table, write_rows
from router.delta.replace_by_spark import staged_rows
from router.delta.transaction_id import deletions_id
from router.engine.checkpoint_store import CheckpointStore
from router.engine.commit.committers import Committers
from router.engine.merge.coordinator import MergeCoordinator, OutboxRows
from router.engine.reprocess.records import open_until
from router.errors import TableError, first_line
from router.own_names import DELETIONS

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from router.api.sinks import KeyedTable
    from router.delta.history import LogCommit
    from router.delta.lake import Lake
    from router.engine.balance import Partition
    from router.engine.reprocess.preview import Trial

_DELETIONS_IDS = f".*{deletions_id('')}"
"""A pattern of the ids under which batches remember deletions of a table."""


@dataclass(frozen=True)
class TrialMerge:
    """What a merge would do with its rows, by count, or why it cannot be said (`unknown`).

    `held_against` is the version of the table that it was tried on; -1: an empty one, since there was none before the
    first record, or since the log does not reach back so far (`is_lost`).
    """

    counts: dict[str, int]
    unknown: str = ""
    held_against: int = -1
    is_lost: bool = False


def merge_trial(trial: Trial) -> dict[tuple[str, str], TrialMerge]:
    """Return the outcomes of a trial's merges, by target and table."""
    config, spark, lake = trial.context.config, trial.context.spark, trial.staging_lake
    sinks = {f"{route}/{name}": sink for route, name, sink in config.all_sinks() if isinstance(sink, MergingSink)}
    keys: dict[str, list[pa.Table]] = defaultdict(list)
    keyed_by: dict[str, KeyedTable] = {}
    for commit, table, rows in trial.staged_rows():
        if commit.target in sinks:
            keyed_by[table] = sinks[commit.target].keyed()
            keys[table].append(rows.select(keyed_by[table].keys))
    # Of all sinks of a table at once, since their merges follow one another.
    copied = {}
    for table, parts in keys.items():
        try:
            copied[table] = _copy_rows(
                trial, table, pa.concat_tables(parts, promote_options="permissive"), keyed_by[table]
            )
        except (TableError, DeltaError, OSError, ValueError, KeyError, SyntaxError) as error:
            copied[table] = TrialMerge({}, unknown=first_line(error))

    merger = MergeCoordinator(
        query=f"{config.name}:preview",
        lake=lake,
        spark=spark,
        store=CheckpointStore(lake, "preview"),
        committers=Committers.of(config, spark, lake),
        options=config.landing,
        dead_letters=config.dead_letters,
        ledger=config.ledger,
        executors=trial.context.executors,
    )
    targets = {target.key: target for target in trial.decision.plan.layout.targets}
    merges: dict[tuple[str, str], TrialMerge] = {}
    for work in trial.decision.commits:
        if work.target not in sinks:
            continue
        events = OutboxRows(targets[work.target], work, staged_rows(spark, lake, work), trial.decision.partitions, {})
        outcomes = merger.merge_tables(sinks[work.target], events, {})
        for table in outcomes.by_table.keys() | outcomes.failed.keys():
            unknown = copied[table].unknown or outcomes.failed.get(table, "")
            counts = {} if unknown else outcomes.by_table[table]
            merges[work.target, table] = replace(copied[table], counts=counts, unknown=unknown)
    return merges


def _copy_rows(trial: Trial, table: str, keys: pa.Table, keyed: KeyedTable) -> TrialMerge:
    """Copy the rows of some keys, and the deletions that are remembered of them; return what they are copied from."""
    lake = trial.context.lake
    before = lake.open(table)
    if before is None:
        return TrialMerge({})
    if stored_bytes(before) > LARGE:
        return TrialMerge({}, unknown=f"it has more than {LARGE >> 30} GiB")
    first = _first_commit(lake, table, trial.decision.partitions)
    if first is not None and first.version == 0:
        return TrialMerge({})
    deletions = deletions_table(lake, table)
    try:
        if first is not None:
            before.load_as_version(first.version - 1)
        if first is not None and deletions is not None:
            # A batch remembers its deletions under its number.
            deletions = open_until(lake, f"{table}.{DELETIONS}", _DELETIONS_IDS, int(first.notes["router.batch"]) - 1)
        rows = rows_of_keys(before, keys, keyed, to_arrow(before).names)
        gone = deletions and rows_of_keys(deletions, keys, keyed, to_arrow(deletions).names)
    except (DeltaError, OSError):
        if first is None:
            raise
        return TrialMerge({}, is_lost=True)  # its log or its files do not reach back so far
    _write(trial.staging_lake, table, rows, before)
    if deletions is not None:
        _write(trial.staging_lake, f"{table}.{DELETIONS}", gone, deletions)
    return TrialMerge({}, held_against=before.version())


def _first_commit(lake: Lake, table: str, partitions: tuple[Partition, ...]) -> LogCommit | None:
    """Return the first commit of a table that contains one of the records, or later ones; None if none does.

    The newest commits are read first, up to one that is older: a table gets its rows in the order of offsets. Raises
    TableError if the table was rebuilt since, for that contains all of them.
    """
    first_by_source = {f"{partition.topic}/{partition.partition}": partition.first for partition in partitions}
    first = None
    for commit in log_commits(lake, table, reversed(log_versions(lake, table))):
        if REPAIRED in commit.notes:
            raise TableError(table, "it was rebuilt, perhaps from these records")
        spans = ast.literal_eval(str(commit.notes.get("router.offsets") or "{}"))
        is_later = [last >= first_by_source[place] for place, (_, last) in spans.items() if place in first_by_source]
        if any(is_later):
            first = commit
        elif is_later:
            break
    return first


def _write(lake: Lake, name: str, rows: pa.Table, like: DeltaTable) -> None:
    """Make a table of some rows, with the properties of another one that matter to a merge."""
    metadata = like.metadata()
    own = {key: value for key, value in metadata.configuration.items() if not key.startswith("delta.")}
    options = NewTable(partition_by=tuple(metadata.partition_columns))
    copy = create_table(lake, name, rows.schema, options=options, properties=own, name=metadata.name or "")
    write_rows(copy, rows)
    copy_constraints(like, copy)
