"""Decide how staged files go into their tables: what a table gains, and which rows must land otherwise.

The tables are opened once: what is decided here is committed with the same handles. Where a table's schema or the
number of tables demands other rows, the demands say which, and the batch is landed again. That is rare: they are kept
for the batches that follow.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from router.delta.casting import type_within
from router.delta.commit import StagedFile, TableCommit, to_arrow, to_arrow_schema, to_delta
from router.delta.constraints import computed, constraints
from router.delta.nesting import too_deep
from router.delta.schema_diff import SchemaDiff, compare, delta_schema, delta_type, limited_to
from router.delta.transaction_id import batch_id
from router.delta.widening import way
from router.engine.commit.lost_tables import CommittedBatches
from router.engine.commit.violations import Conditions, violated_by
from router.engine.expressions.evaluator import Untranslatable, translate
from router.engine.expressions.tree import columns_of
from router.engine.label.layout import BRONZE_SCHEMA, DEAD_SCHEMA, Demands, Layout
from router.engine.retryable_errors import never_passes
from router.errors import StartError, TableError
from router.spark_internals import to_spark_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake
    from router.engine.expressions.evaluator import Node
    from router.sinks import Evolution, Widening
    from router.table_options import TableOptions

V = TypeVar("V")
Named = dict[str, set[str]]


@dataclass(frozen=True)
class Decision:
    """The commits to make, the open tables, and the demands that the files should have met.

    `refused` says which tables must not change and would have to.
    """

    commits: tuple[TableCommit, ...]
    handles: dict[str, Any]
    demands: Demands
    refused: tuple[str, ...] = ()


@dataclass
class SchemaEvolution:
    """The decisions of one query; the object keeps the names of tables, and constraints as Arrow evaluates them."""

    lake: Lake
    tables: Any
    query: str
    spark: SparkSession
    options: Mapping[str, TableOptions] = field(default_factory=dict)
    committed_batches: CommittedBatches = field(default_factory=CommittedBatches)
    conditions: dict[tuple[str, str], Node | None] = field(default_factory=dict)
    known: dict[str, set[str]] = field(default_factory=dict)

    def decide(
        self,
        layout: Layout,
        files: Iterable[StagedFile],
        demands: Demands,
        batch: int,
        quarantined: Iterable[str] = (),
        named: Named | None = None,
    ) -> Decision:
        """Return the commits for staged files, and what the tables demand.

        `quarantined` are the tables with rows in the quarantine: they may have no file, and may have changed. `named`
        has the tables that the rows of an outbox are for, by target.
        """
        handles, blocked, by_table = self._opened(layout, _grouped(files, quarantined), demands.blocked)
        asked = _Asked.of(layout, self.options, demands)
        columns: dict[str, pa.Schema] = {}
        commits: list[TableCommit] = []
        for table, targets in sorted(by_table.items()):
            have = _schema(handles[table])
            for target, landed in sorted(targets.items()):
                come, difference = asked.compared((target, table), handles[table], have, landed)
                if landed:
                    work = self._commit(handles[table], (target, table), tuple(landed), come, difference, batch)
                    commits.append(replace(work, widening=asked.widening(target)))
                    have = pa.unify_schemas([have, come], promote_options="permissive") if have is not None else come
            columns[table] = have
        allowed = self._allowed(layout, {table: set(targets) for table, targets in by_table.items()}, named or {})
        checked, by_spark = self._checked(
            {
                f"{target}/{table}": (handles[table], columns[table])
                for table, targets in by_table.items()
                for target in {target.key for target in layout.targets if not target.outbox} & targets.keys()
            }
        )
        found = Demands(
            _filled(asked.casts),
            _filled(asked.conflicts),
            {**demands.allowed, **allowed},
            _filled(asked.frozen),
            _filled({**demands.constraints, **checked}),
            {**demands.blocked, **blocked, **self._violated(commits, handles, by_spark)},
        )
        return Decision(tuple(commits), handles, found, tuple(asked.refused))

    def _opened(
        self, layout: Layout, by_table: Grouped, before: dict[str, str]
    ) -> tuple[dict[str, Any], dict[str, str], Grouped]:
        """Return the open tables, by place why others cannot be written, and the files of the open ones.

        A table that lacks batches which this process has committed is none to go on with: a person decides. The stream
        waits for a table of the router's own, and for that of a sink without a quarantine. What can never pass with
        these is left to the commit, which counts its tries; `before` are the places that are blocked already.
        """
        handles: dict[str, Any] = {}
        blocked: dict[str, str] = {}
        have_quarantine = {target.key for target in layout.targets if target.quarantine}
        opened = self.tables.readable(by_table)
        lost = self.committed_batches.lost({name: it for name, it in opened.items() if not isinstance(it, TableError)})
        for table, handle in {
            **opened,
            **{name: TableError(name, found.blocks) for name, found in lost.items()},
        }.items():
            if not isinstance(handle, TableError):
                handles[table] = handle
            elif set(by_table[table]) <= have_quarantine:
                blocked |= {f"{target}/{table}": handle.what for target in by_table[table]}
            elif never_passes(handle) or any(f"{target}/{table}" in before for target in by_table[table]):
                handles[table] = None
            elif table in lost:
                choice = "Restore it, or start with --accept lost-tables to go on with it as it is"
                raise StartError(f"{lost[table]}. {choice}")
            else:
                raise handle
        return handles, blocked, {table: targets for table, targets in by_table.items() if table in handles}

    def committed(self, works: Iterable[TableCommit]) -> None:
        """Remember which tables exist now, with which batches."""
        for work in works:
            self._made(work.table)
            self.committed_batches.add(work.table, work.app_id, work.version)

    def _made(self, table: str) -> None:
        if (layer := table.split(".", maxsplit=1)[0]) in self.known:
            self.known[layer].add(table)

    def _commit(
        self,
        handle: Any,
        where: tuple[str, str],
        files: tuple[StagedFile, ...],
        come: pa.Schema,
        found: SchemaDiff,
        batch: int,
    ) -> TableCommit:
        target, table = where
        comments = self.options[target].comments if target in self.options else {}
        return TableCommit(
            target=target,
            table=table,
            app_id=str(batch_id(self.query, target, table)),
            version=batch,
            files=files,
            columns=to_delta(_commented(come, comments)),
            added=to_delta(_commented(pa.schema(list(found.added)), comments)) if found.added else None,
            widened=to_delta(pa.schema(list(found.widened))) if found.widened else None,
            decided=-1 if handle is None else handle.version(),
        )

    def _checked(
        self, tables: Mapping[str, tuple[Any, pa.Schema]]
    ) -> tuple[dict[str, dict[str, Node]], dict[str, Conditions]]:
        """Return by place what tables demand of their rows: for tasks to evaluate, and what only Spark can."""
        in_tasks: dict[str, dict[str, Node]] = {}
        by_spark: dict[str, Conditions] = {}
        for place, (table, columns) in tables.items():
            in_tasks[place], by_spark[place] = {}, {}
            schema = table.schema().to_json() if table is not None else ""
            found = constraints(schema, table.metadata().configuration) if schema else {}
            for name, sql in found.items():
                node = self._known(columns, sql)
                if node is None or {*dict(columns_of(node))} & computed(schema):
                    by_spark[place][name] = sql  # no row has a column yet that Delta fills itself
                else:
                    in_tasks[place][name] = node
        return in_tasks, by_spark

    def _violated(
        self, commits: Iterable[TableCommit], handles: Mapping[str, Any], by_spark: Mapping[str, Conditions]
    ) -> dict[str, str]:
        """Return by place what staged rows violate, as far as only Spark can tell: one of them would keep all out."""
        staged = [
            (work, handles[work.table].schema().to_json(), conditions)
            for work in commits
            if (conditions := by_spark.get(work.place))
        ]
        return violated_by(self.spark.newSession(), self.lake, staged) if staged else {}

    def _known(self, columns: pa.Schema, sql: str) -> Node | None:
        known = to_delta(columns), sql
        if known not in self.conditions:
            self.conditions[known] = self._condition(*known)
        return self.conditions[known]

    def _condition(self, columns: str, sql: str) -> Node | None:
        frame = self.spark.createDataFrame([], to_spark_columns(to_arrow_schema(columns), ntz=True))
        try:
            return translate(frame, [F.expr(sql)])[0]
        except (Untranslatable, PySparkException):  # a function that is not known here, ...
            return None

    def _allowed(self, layout: Layout, by_table: dict[str, set[str]], outboxes: Named) -> dict[str, frozenset[str]]:
        """Return the allowed names of the targets that named more tables than they may have."""
        found = {}
        fixed = {target.table for target in layout.targets} | {layout.dead_letters}
        for target in layout.targets:
            named = outboxes.get(target.key, set())
            if target.table is None:
                named = {table for table, targets in by_table.items() if target.key in targets}
            if not named:
                continue
            existing = set().union(*(self._tables(layer) for layer in {name.split(".")[0] for name in named})) - fixed
            existing -= {table for table in existing if layout.bronze and table in layout.bronze}
            new = sorted(named - existing)
            if len(existing) + len(new) > target.at_most:
                room = max(0, target.at_most - len(existing))
                found[target.key] = frozenset(existing | set(new[:room]))
            if target.names_in_outbox:
                for table in found.get(target.key, named) & named:
                    self._made(table)  # by the merge
        return found

    def _tables(self, layer: str) -> set[str]:
        if layer not in self.known:
            self.known[layer] = set(self.lake.tables(layer))
        return self.known[layer]


@dataclass(frozen=True)
class _Asked:
    """What tables ask of rows before they land, collected table by table.

    By target: `schemas` are the columns of its rows, `modes` its evolution, `widenings` how its tables become wider.
    """

    options: Mapping[str, TableOptions]
    before: Demands
    schemas: Mapping[str, pa.Schema]
    modes: Mapping[str, Evolution]
    widenings: Mapping[str, Widening]
    casts: dict[str, dict[str, pa.DataType]]
    conflicts: dict[str, dict[str, str]]
    frozen: dict[str, dict[str, pa.DataType | None]]
    refused: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, layout: Layout, options: Mapping[str, TableOptions], before: Demands) -> _Asked:
        schemas = {target.key: target.schema for target in layout.all_targets}
        schemas |= {"/bronze": BRONZE_SCHEMA, "/dead_letters": DEAD_SCHEMA}
        modes = {target.key: target.evolution for target in layout.targets}
        widenings = {target.key: target.widening for target in layout.all_targets if not target.outbox}
        known = dict(before.casts), dict(before.conflicts), dict(before.frozen)
        return cls(options, before, schemas, modes, widenings, *known)

    def widening(self, target: str) -> Widening:
        """Return how tables of a target become wider."""
        return self.widenings.get(target, "feature")  # nobody else reads an outbox

    def compared(
        self, where: tuple[str, str], handle: Any, have: pa.Schema | None, landed: Sequence[StagedFile]
    ) -> tuple[pa.Schema, SchemaDiff]:
        """Return the columns that staged rows bring into a table as they are written, and what is new in them."""
        target, table = where
        place = f"{target}/{table}"
        come = self._coming(target, place, have, landed)
        difference = SchemaDiff()
        if have is not None:
            come = self._within(where, handle, have, come)
            difference = compare(have, come)
        # A column that no table can have must not reach the manifest: its commit would fail for ever. The rows that
        # have it become dead letters.
        faults = {**too_deep(come), **too_deep(difference.widened, widened=True)}
        if faults:
            come = pa.schema([column for column in come if column.name not in faults])
            difference = compare(have, come) if have is not None else difference
            difference = replace(difference, conflicts={**difference.conflicts, **faults})
        if landed:
            self.casts[place], self.conflicts[place] = difference.cast, difference.conflicts
            come = _written(come, difference)
        return come, difference

    def _coming(self, target: str, place: str, have: pa.Schema | None, landed: Sequence[StagedFile]) -> pa.Schema:
        """Return the columns that the rows have a value for, those included that were left out of the files."""
        present = {name for file in landed for name in file.columns}
        present |= {*self.before.conflicts.get(place, {}), *self.before.frozen.get(place, {})}
        if have is None and landed and (options := self.options.get(target)):
            present |= {*options.partition_by, *options.cluster_by}  # they must be there from the beginning
        return pa.schema([column for column in self.schemas[target] if column.name in present])

    def _within(self, where: tuple[str, str], handle: Any, have: pa.Schema, come: pa.Schema) -> pa.Schema:
        """Return the columns as far as the table may change; note those that go into it otherwise, or not."""
        target, table = where
        mode, difference = self.modes.get(target, "evolve"), compare(have, come)
        if mode == "fail":
            if new := (*difference.added, *difference.widened):
                self.refused.append(_refusal(table, [column.name for column in new]))
            return come
        if mode == "evolve":
            keeps = difference.widened and way(handle, table, self.widening(target)) is None
            narrow = _narrow(have, come, difference) if keeps else {}
        else:
            narrow = _frozen(have, come, difference)
        self.frozen[f"{target}/{table}"] = narrow
        return _without(come, narrow)


Grouped = dict[str, dict[str, list["StagedFile"]]]
"""Table -> target -> staged files."""


def _grouped(files: Iterable[StagedFile], quarantined: Iterable[str]) -> Grouped:
    found: Grouped = defaultdict(lambda: defaultdict(list))
    for file in files:
        found[file.table][file.target].append(file)
    for place in quarantined:
        target, table = place.rsplit("/", 1)
        found[table].setdefault(target, [])
    return found


def _schema(table: Any) -> pa.Schema | None:
    return None if table is None else delta_schema(to_arrow(table))


def _refusal(table: str, columns: list[str]) -> str:
    named = ", ".join(columns)
    return (
        f"table {table}: the events bring what it has no place for ({named}), and its sink says `evolution: fail`; "
        "`evolve` lets it grow, `freeze` leaves them out, `quarantine` lets the rows wait"
    )


def _frozen(have: pa.Schema, come: pa.Schema, found: SchemaDiff) -> dict[str, pa.DataType | None]:
    """Return the types in which values go into a table that may not change; None where it lacks the column."""
    kinds = {column.name: column.type for column in have}
    changed = [column.name for column in (*found.added, *found.widened)]
    return {
        name: type_within(kinds[name], delta_type(come.field(name).type)) if name in kinds else None for name in changed
    }


def _narrow(have: pa.Schema, come: pa.Schema, found: SchemaDiff) -> dict[str, pa.DataType | None]:
    """Return the types of columns that do not become wider; nested fields may come."""
    kinds = {column.name: (have.field(column.name).type, come.field(column.name).type) for column in found.widened}
    return {name: type_within(old, delta_type(new), new_fields=True) for name, (old, new) in kinds.items()}


def _without(come: pa.Schema, frozen: dict[str, pa.DataType | None]) -> pa.Schema:
    kinds = {column.name: frozen.get(column.name, column.type) for column in come}
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items() if kind is not None])


def _written(come: pa.Schema, difference: SchemaDiff) -> pa.Schema:
    kept = [column for column in come if column.name not in difference.conflicts]
    return pa.schema([pa.field(c.name, limited_to(difference.cast.get(c.name, c.type), c.type)) for c in kept])


def _commented(columns: pa.Schema, comments: Mapping[str, str]) -> pa.Schema:
    found = (c.with_metadata({"comment": comments[c.name]}) if c.name in comments else c for c in columns)
    return pa.schema(list(found))


def _filled(demands: dict[str, dict[str, V]]) -> dict[str, dict[str, V]]:
    return {table: found for table, found in demands.items() if found}
