"""Decide how staged files go into their tables: which columns a table gains, and which rows must land otherwise.

The tables are opened once: the decision is committed with the same handles. If a table's schema, or the number of
tables, demands other rows, the demands contain that, and the batch is landed again. That is rare, since demands are
kept for the batches that follow.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from router.api.table_options import PLAIN_TABLE
from router.delta.casting import type_within
from router.delta.change_feed import has_feed, taken_by_feed
from router.delta.commit import ACCEPT_LOST, TableCommit, to_arrow, to_arrow_schema, to_delta
from router.delta.constraints import columns_filled_by_delta, row_constraints
from router.delta.nesting import too_deep
from router.delta.schema_diff import SchemaDiff, compare_schemas, delta_schema, delta_type, limited_to
from router.delta.transaction_id import batch_id
from router.delta.widening import choose_widening_way
from router.engine.commit.lost_tables import CommittedBatches
from router.engine.commit.violations import Conditions, violated_by
from router.engine.expressions.evaluator import Untranslatable, translate_columns
from router.engine.expressions.tree import columns_of
from router.engine.label.layout import BRONZE_SCHEMA, DEAD_SCHEMA, Demands, Layout
from router.engine.retryable_errors import never_passes
from router.errors import StartError, TableError
from router.spark_internals import to_spark_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from router.api.sinks import Evolution, Widening
    from router.api.table_options import NewTable
    from router.delta.lake import Lake
    from router.delta.staged_files import StagedFile
    from router.engine.expressions.evaluator import Node

V = TypeVar("V")
Named = dict[str, set[str]]


@dataclass(frozen=True)
class Decision:
    """The commits to make, the open tables, and the demands that the files should have met.

    `refused` has a sentence for each table that must not change and would have to.
    """

    commits: tuple[TableCommit, ...]
    handles: dict[str, Any]
    demands: Demands
    refused: tuple[str, ...] = ()


@dataclass
class SchemaEvolution:
    """The decisions of one query, with a cache of the names of tables, and of constraints as Arrow evaluates them.

    `staging_lake` has the staged files, if the tables' lake does not.
    """

    lake: Lake
    tables: Any
    query: str
    spark: SparkSession
    options: Mapping[str, NewTable] = field(default_factory=dict)
    committed_batches: CommittedBatches = field(default_factory=CommittedBatches)
    conditions: dict[tuple[str, str], Node | None] = field(default_factory=dict)
    known: dict[str, set[str]] = field(default_factory=dict)
    staging_lake: Lake | None = None

    def decide_commits(
        self,
        layout: Layout,
        files: Iterable[StagedFile],
        demands: Demands,
        batch: int,
        quarantined: Iterable[str] = (),
        named: Named | None = None,
    ) -> Decision:
        """Return the commits for staged files, and what the tables demand.

        `quarantined` are the places (ROUTE/SINK/TABLE) with rows in the quarantine: they may have no file, and may have
        changed. `named` has the tables that the rows of an outbox are for, by target.
        """
        handles, blocked, by_table = self._open_tables(layout, _group_by_table(files, quarantined), demands.blocked)
        collected = _TableDemands.of(layout, self.options, demands)
        columns: dict[str, pa.Schema] = {}
        commits: list[TableCommit] = []
        needed = {target.key: target.needed for target in layout.targets if target.needed}
        for table, targets in sorted(by_table.items()):
            handle = handles[table]
            have = None if handle is None else delta_schema(to_arrow(handle))
            for target, landed in sorted(targets.items()):
                come, difference = collected.compare_columns((target, table), handle, have, landed)
                if not landed:
                    continue
                # Rows may come without what their merge needs, for a conflict of types: that is null then.
                if lacking := needed.get(target, frozenset()) - {*come.names}:
                    come = pa.schema([*come, *(field for field in have or () if field.name in lacking)])
                work = self._make_commit(handle, (target, table), tuple(landed), come, difference, batch)
                commits.append(replace(work, widening=collected.widening_of(target)))
                # The next target of the table is compared with the columns that this commit gives it.
                columns_after = come
                if have is not None:
                    columns_after = pa.unify_schemas([have, come], promote_options="permissive")
                have = columns_after
            columns[table] = have

        targets_by_table = {table: set(targets) for table, targets in by_table.items()}
        allowed = self._allowed_names(layout, targets_by_table, named or {})
        in_tasks, by_spark = self._collect_constraints(layout, by_table, handles, columns)
        violated = self._find_violated(commits, handles, by_spark)
        new_demands = Demands(
            casts=_without_empty(collected.casts),
            conflicts=_without_empty(collected.conflicts),
            allowed={**demands.allowed, **allowed},
            frozen=_without_empty(collected.frozen),
            constraints=_without_empty({**demands.constraints, **in_tasks}),
            blocked={**demands.blocked, **blocked, **violated},
        )
        return Decision(tuple(commits), handles, new_demands, tuple(collected.refused))

    def _open_tables(
        self, layout: Layout, by_table: Grouped, before: dict[str, str]
    ) -> tuple[dict[str, Any], dict[str, str], Grouped]:
        """Return the open tables, by place why others cannot be written, and the files of the open ones.

        A table that lacks batches which this process has committed counts as one that cannot be written: a person
        decides. The stream waits for a table of the router's own, and for that of a sink without a quarantine. Their
        errors that can never pass are left to the commit, which counts its tries. `before` are the places that are
        blocked already.
        """
        opened = dict(self.tables.open_readable_tables(by_table))
        readable = {name: table for name, table in opened.items() if not isinstance(table, TableError)}
        lost = self.committed_batches.find_lost_tables(readable)
        for name, lost_table in lost.items():
            opened[name] = TableError(name, lost_table.blocks)

        handles: dict[str, Any] = {}
        blocked: dict[str, str] = {}
        have_quarantine = {target.key for target in layout.targets if target.quarantine}
        for table, handle in opened.items():
            if not isinstance(handle, TableError):
                handles[table] = handle
                continue
            places = [f"{target}/{table}" for target in by_table[table]]
            if set(by_table[table]) <= have_quarantine:
                blocked.update(dict.fromkeys(places, handle.what))
            elif never_passes(handle) or any(place in before for place in places):
                handles[table] = None
            elif table in lost:
                raise StartError(f"{lost[table]}. Restore it; or {ACCEPT_LOST} continues with it as it is")
            else:
                raise handle
        return handles, blocked, {table: targets for table, targets in by_table.items() if table in handles}

    def note_committed(self, works: Iterable[TableCommit]) -> None:
        """Remember that tables exist, and which batches they have."""
        for work in works:
            self._note_created(work.table)
            self.committed_batches.add_batch(work.table, work.app_id, work.version)

    def _note_created(self, table: str) -> None:
        layer = table.split(".", maxsplit=1)[0]
        if layer in self.known:
            self.known[layer].add(table)

    def _make_commit(
        self,
        handle: Any,
        where: tuple[str, str],
        files: tuple[StagedFile, ...],
        come: pa.Schema,
        difference: SchemaDiff,
        batch: int,
    ) -> TableCommit:
        """Return the commit of staged files whose rows have the columns `come`."""
        target, table = where
        comments = self.options.get(target, PLAIN_TABLE).comments
        added = None
        if difference.added:
            added = to_delta(_with_comments(pa.schema(list(difference.added)), comments))
        widened = None
        if difference.widened:
            widened = to_delta(pa.schema(list(difference.widened)))
        return TableCommit(
            target=target,
            table=table,
            app_id=str(batch_id(self.query, target, table)),
            version=batch,
            files=files,
            columns=to_delta(_with_comments(come, comments)),
            added=added,
            widened=widened,
            decided=-1 if handle is None else handle.version(),
        )

    def _collect_constraints(
        self,
        layout: Layout,
        by_table: Grouped,
        handles: Mapping[str, Any],
        columns: Mapping[str, pa.Schema],
    ) -> tuple[dict[str, dict[str, Node]], dict[str, Conditions]]:
        """Return by place the constraints of tables: those that tasks evaluate, and those that only Spark can.

        The rows of outboxes are checked by the merge.
        """
        keys = {target.key for target in layout.targets if not target.outbox}
        in_tasks: dict[str, dict[str, Node]] = {}
        by_spark: dict[str, Conditions] = {}
        for table, targets in by_table.items():
            landing = keys & targets.keys()
            if not landing:
                continue
            handle = handles[table]
            schema = ""
            conditions: dict[str, str] = {}
            if handle is not None:
                schema = handle.schema().to_json()
                conditions = row_constraints(schema, handle.metadata().configuration)
            for target in landing:
                place = f"{target}/{table}"
                in_tasks[place] = {}
                by_spark[place] = {}
                for name, sql in conditions.items():
                    node = self._translate_once(columns[table], sql)
                    # Staged rows lack the columns that Delta computes: only Spark can evaluate conditions on those.
                    if node is None or set(dict(columns_of(node))) & columns_filled_by_delta(schema):
                        by_spark[place][name] = sql
                    else:
                        in_tasks[place][name] = node
        return in_tasks, by_spark

    def _find_violated(
        self, commits: Iterable[TableCommit], handles: Mapping[str, Any], by_spark: Mapping[str, Conditions]
    ) -> dict[str, str]:
        """Return by place which constraints staged rows violate, of those that only Spark can evaluate."""
        staged = []
        for work in commits:
            conditions = by_spark.get(work.note_key)
            if conditions:
                staged.append((work, handles[work.table].schema().to_json(), conditions))
        if not staged:
            return {}
        return violated_by(self.spark.newSession(), self.staging_lake or self.lake, staged)

    def _translate_once(self, columns: pa.Schema, sql: str) -> Node | None:
        """Return a condition for Arrow, None if only Spark can evaluate it. Each is translated once."""
        cache_key = (to_delta(columns), sql)
        if cache_key not in self.conditions:
            self.conditions[cache_key] = self._translate_condition(*cache_key)
        return self.conditions[cache_key]

    def _translate_condition(self, columns: str, sql: str) -> Node | None:
        frame = self.spark.createDataFrame([], to_spark_columns(to_arrow_schema(columns), ntz=True))
        try:
            return translate_columns(frame, [F.expr(sql)])[0]
        except (Untranslatable, PySparkException):  # an unknown function, for example
            return None

    def _allowed_names(
        self, layout: Layout, by_table: dict[str, set[str]], outboxes: Named
    ) -> dict[str, frozenset[str]]:
        """Return the allowed names of the targets that named more tables than they may have."""
        allowed = {}
        for target in layout.targets:
            named = outboxes.get(target.key, set())
            if target.table is None:
                named = {table for table, targets in by_table.items() if target.key in targets}
            if not named:
                continue
            existing = self._existing_tables(layout, named)
            new = sorted(named - existing)
            if len(existing) + len(new) > target.at_most:
                room = max(0, target.at_most - len(existing))
                allowed[target.key] = frozenset(existing | set(new[:room]))
            # The tables of an outbox are created by the merge, not by a commit of this batch.
            if target.names_in_outbox:
                for table in allowed.get(target.key, named) & named:
                    self._note_created(table)
        return allowed

    def _existing_tables(self, layout: Layout, named: set[str]) -> set[str]:
        """Return the tables in the layers of some names, but for those that no data names."""
        existing: set[str] = set()
        for layer in {name.split(".")[0] for name in named}:
            existing |= self._tables_of_layer(layer)
        existing -= {target.table for target in layout.targets if target.table is not None}
        existing.discard(layout.dead_letters)
        if layout.bronze:
            existing = {table for table in existing if table not in layout.bronze}
        return existing

    def _tables_of_layer(self, layer: str) -> set[str]:
        if layer not in self.known:
            self.known[layer] = set(self.lake.table_names(layer))
        return self.known[layer]


@dataclass(frozen=True)
class _TableDemands:
    """The demands of tables on rows before they land, collected table by table.

    By target: `schemas` are the columns of its rows, `modes` its evolution, `widenings` how its tables become wider.
    """

    options: Mapping[str, NewTable]
    before: Demands
    schemas: Mapping[str, pa.Schema]
    modes: Mapping[str, Evolution]
    widenings: Mapping[str, Widening]
    casts: dict[str, dict[str, pa.DataType]]
    conflicts: dict[str, dict[str, str]]
    frozen: dict[str, dict[str, pa.DataType | None]]
    refused: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, layout: Layout, options: Mapping[str, NewTable], before: Demands) -> _TableDemands:
        schemas = {target.key: target.schema for target in layout.all_targets}
        schemas |= {"/bronze": BRONZE_SCHEMA, "/dead_letters": DEAD_SCHEMA}
        return cls(
            options=options,
            before=before,
            schemas=schemas,
            modes={target.key: target.evolution for target in layout.targets},
            widenings={target.key: target.widening for target in layout.all_targets if not target.outbox},
            casts=dict(before.casts),
            conflicts=dict(before.conflicts),
            frozen=dict(before.frozen),
        )

    def widening_of(self, target: str) -> Widening:
        """Return how tables of a target become wider."""
        return self.widenings.get(target, "feature")  # only the router reads an outbox

    def compare_columns(
        self, where: tuple[str, str], handle: Any, have: pa.Schema | None, landed: Sequence[StagedFile]
    ) -> tuple[pa.Schema, SchemaDiff]:
        """Return the columns of staged rows as they are written into a table, and what is new in them."""
        target, table = where
        place = f"{target}/{table}"
        come = self._present_columns(target, place, have, landed)
        difference = SchemaDiff()
        if have is not None:
            come = self._limit_to_table(where, handle, have, come)
            difference = compare_schemas(have, come)
        # A column that no table can have must not reach the manifest: its commit would fail for ever. The rows that
        # have it become dead letters.
        new = come if have is None else difference.added
        faults = {
            **too_deep(come),
            **too_deep(difference.widened, widened=True),
            **taken_by_feed(new, feed=has_feed(handle, self.options.get(target, PLAIN_TABLE))),
        }
        if faults:
            come = pa.schema([column for column in come if column.name not in faults])
            if have is not None:
                difference = compare_schemas(have, come)
            difference = replace(difference, conflicts={**difference.conflicts, **faults})
        if landed:
            self.casts[place] = difference.cast
            self.conflicts[place] = difference.conflicts
            come = _written_columns(come, difference)
        return come, difference

    def _present_columns(
        self, target: str, place: str, have: pa.Schema | None, landed: Sequence[StagedFile]
    ) -> pa.Schema:
        """Return the columns that rows have a value for, with those that earlier demands left out of the files."""
        present: set[str] = set()
        for file in landed:
            present.update(file.columns)
        present.update(self.before.conflicts.get(place, {}))
        present.update(self.before.frozen.get(place, {}))
        # A new table needs the columns that it is partitioned or clustered by from the beginning.
        if have is None and landed:
            options = self.options.get(target, PLAIN_TABLE)
            present.update(options.partition_by)
            present.update(options.cluster_by)
        return pa.schema([column for column in self.schemas[target] if column.name in present])

    def _limit_to_table(self, where: tuple[str, str], handle: Any, have: pa.Schema, come: pa.Schema) -> pa.Schema:
        """Return the columns as far as the table may change; note those that go into it otherwise, or not."""
        target, table = where
        mode = self.modes.get(target, "evolve")
        difference = compare_schemas(have, come)
        if mode == "fail":
            new = [column.name for column in (*difference.added, *difference.widened)]
            if new:
                self.refused.append(_no_new_columns_message(table, new))
            return come

        narrow: dict[str, pa.DataType | None] = {}
        if mode != "evolve":
            narrow = _frozen_types(have, come, difference)
        elif difference.widened and choose_widening_way(handle, table, self.widening_of(target)) is None:
            narrow = _narrow_types(have, come, difference)
        self.frozen[f"{target}/{table}"] = narrow
        return _with_frozen_types(come, narrow)


Grouped = dict[str, dict[str, list["StagedFile"]]]
"""Table -> target -> staged files."""


def _group_by_table(files: Iterable[StagedFile], quarantined: Iterable[str]) -> Grouped:
    by_table: Grouped = defaultdict(lambda: defaultdict(list))
    for file in files:
        by_table[file.table][file.target].append(file)
    for place in quarantined:
        target, table = place.rsplit("/", 1)
        by_table[table].setdefault(target, [])
    return by_table


def _no_new_columns_message(table: str, columns: list[str]) -> str:
    named = ", ".join(columns)
    return (
        f"table {table}: it cannot store the columns {named} of the events, and its sink has `evolution: fail`; "
        "`evolve` adds them, `freeze` leaves them out, `quarantine` lets the rows wait"
    )


def _frozen_types(have: pa.Schema, come: pa.Schema, difference: SchemaDiff) -> dict[str, pa.DataType | None]:
    """Return the types in which values go into a table that may not change; None if it lacks the column."""
    kinds = {column.name: column.type for column in have}
    types: dict[str, pa.DataType | None] = {}
    for column in (*difference.added, *difference.widened):
        types[column.name] = None
        if column.name in kinds:
            types[column.name] = type_within(kinds[column.name], delta_type(come.field(column.name).type))
    return types


def _narrow_types(have: pa.Schema, come: pa.Schema, difference: SchemaDiff) -> dict[str, pa.DataType | None]:
    """Return the types of columns that do not become wider; nested fields may be added."""
    types: dict[str, pa.DataType | None] = {}
    for column in difference.widened:
        table_type = have.field(column.name).type
        row_type = come.field(column.name).type
        types[column.name] = type_within(table_type, delta_type(row_type), new_fields=True)
    return types


def _with_frozen_types(come: pa.Schema, frozen: dict[str, pa.DataType | None]) -> pa.Schema:
    """Return columns in the types of frozen ones, without those that have none."""
    columns = []
    for column in come:
        kind = frozen.get(column.name, column.type)
        if kind is not None:
            columns.append(pa.field(column.name, kind))
    return pa.schema(columns)


def _written_columns(come: pa.Schema, difference: SchemaDiff) -> pa.Schema:
    """Return the columns in the types that are written: without conflicts, and with casts."""
    columns = []
    for column in come:
        if column.name not in difference.conflicts:
            kind = difference.cast.get(column.name, column.type)
            columns.append(pa.field(column.name, limited_to(kind, column.type)))
    return pa.schema(columns)


def _with_comments(columns: pa.Schema, comments: Mapping[str, str]) -> pa.Schema:
    commented = []
    for column in columns:
        if column.name in comments:
            commented.append(column.with_metadata({"comment": comments[column.name]}))
        else:
            commented.append(column)
    return pa.schema(commented)


def _without_empty(demands: dict[str, dict[str, V]]) -> dict[str, dict[str, V]]:
    return {place: of_place for place, of_place in demands.items() if of_place}
