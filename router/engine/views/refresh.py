"""Refresh a view: one Spark job computes and stages the rows of all its tables, one commit each replaces what is there.

| killed | the next refresh |
|---|---|
| while rows are staged | computes them again; no table has changed |
| between commits | finds tables that are not as noted, and computes everything anew |
| before the note | the same |

The note says which versions of its sources a view was made of, and which versions of its tables that was; it is written
last. A table that is as noted may be kept in parts; one that somebody else has changed is not trusted. Readers see the
former rows of a table or the new ones. Tables whose rows came out the same get no commit.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router.columns import quoted
from router.delta.commit import StagedFile, TableCommit, to_delta
from router.delta.history import log_commits
from router.delta.parquet_writer import Staging, attempt
from router.delta.replace import create_with_files, replace_content
from router.delta.replace_by_spark import replace_by_spark, staged_rows
from router.delta.schema_diff import delta_schema
from router.delta.table_cache import THREADS, SparkTable
from router.delta.transaction_id import TransactionId
from router.engine.land.task import GATHERED, gathered
from router.engine.lookup.let import define
from router.engine.spark.executors import Executors
from router.engine.views.note import Note, ViewTarget, note_path
from router.engine.views.relation import TABLE, Relations, TablePart, are_few
from router.engine.views.row_hash import row_hash
from router.engine.views.shape import (
    QueryShape,
    Way,
    shape_of,
    special_time_literal,
    unstable_part,
    used_columns,
)
from router.engine.views.sources import Changes, Snapshot, changes, origin, replaced_by, together
from router.errors import TableError, ViewError, first_line
from router.spark_internals import analysed, to_arrow_columns
from router.table_names import folded, pieces_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

    from router.config.models import View
    from router.engine.checkpoint_store import CheckpointStore
    from router.engine.views.sources import ViewSources, ViewTables

log = logging.getLogger("router")
TARGET, HASH, VIOLATED = "_target", "_hash", "_violated"
REMOVED = {"merge": "keys", "keys": "keys", "rows": "tables", "tables": "tables", "full": "full"}
"""The way to follow rows that went, by the way to follow rows that came."""
CHANGES = "delta.enableChangeDataFeed"
FORMAT = 3
"""Of what notes say of a view: under another number it is computed in full once."""
VERSIONS_SHOWN = 50
"""Tables whose versions stand in each commit; those of more stand in the note only."""


class Shaped(NamedTuple):
    """What a view's query is over the columns of its sources: its shape, and its columns, also as text."""

    shape: QueryShape
    columns: str
    schema: StructType


class RefreshedView(NamedTuple):
    """What a refresh did: `way` is empty where nothing had changed. `commits` are the tables that got one.

    `note` is what is noted of the view now; None if it reads nothing yet.
    """

    view: str
    way: str
    why: str
    commits: tuple[str, ...] = ()
    tables: int = 0
    rows: int = 0
    seconds: float = 0.0
    note: Note | None = None


@dataclass(frozen=True)
class RefreshPlan:
    """How a refresh goes: the tables that changed, each with what came and went; `touched` are the targets concerned.

    None as changes: unknown ones. None as touched: any.
    """

    way: Way
    why: str
    shape: QueryShape
    changed: dict[str, Changes | None] = field(default_factory=dict)
    touched: frozenset[str] | None = None


@dataclass
class Refresher:
    """The refreshes of a configuration's views, one at a time. `folder`: where a lake that only Spark writes stages."""

    tables: ViewTables
    spark: SparkSession
    store: CheckpointStore
    executors: Executors = field(default_factory=Executors)
    folder: str | None = None
    shapes: dict[str, Shaped] = field(default_factory=dict)
    sessions: dict[str, SparkSession] = field(default_factory=dict)
    warned: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def note(self, view: View) -> Note:
        """Return what is noted of a view."""
        return Note.of(self.store.load(note_path(view.name)))

    def refresh(self, view: View, *, full: bool = False) -> RefreshedView:
        """Bring a view to its sources' newest versions. Raises ViewError; its tables are then as they were, or anew."""
        began = time.monotonic()
        try:
            return self._refreshed(view, full, began)
        except (TableError, DeltaError, OSError, PySparkException) as error:
            raise ViewError(view.name, first_line(error)) from error

    def plan(self, view: View) -> RefreshPlan:
        """Return how the view would follow its sources, by what its query is. Raises ViewError."""
        sources = self.tables.sources(view, self.note(view).accepted).tables
        if not sources:
            return RefreshPlan("full", "none of its tables is there yet", QueryShape("full", ""))
        joined = self.tables.opened(view, view.joined)
        if missing := sorted(view.joined - joined.keys()):
            return RefreshPlan("full", f"{', '.join(missing)} is not there yet", QueryShape("full", ""))
        shape = self.work(view, sources, joined).shape().shape
        if view.refresh == "full":
            return RefreshPlan("full", "`refresh: full`", shape)
        return RefreshPlan(shape.way, shape.why, shape)

    def full_by_definition(self, view: View) -> str:
        """Return why the next refresh computes all of a view, as far as its note tells; empty if it does not tell."""
        note = self.note(view)
        if view.refresh != "full" and note.definition == definition_of(view):
            return ""
        return _why_full(view, note, full=False, trusted=False)

    def _refreshed(self, view: View, full: bool, began: float) -> RefreshedView:
        note = self.note(view)
        view_sources = self.tables.sources(view, note.accepted)
        sources = view_sources.tables
        if not sources and not note.sources:
            return RefreshedView(view.name, "", "none of its tables is there yet")
        joined = self.tables.opened(view, view.joined)
        self._refuse_lost_sources(view, note, view_sources, joined)
        note = _with_left(view, note, view_sources)
        if not sources and note.left:  # its tables keep the rows of those until there are others
            return RefreshedView(view.name, "", f"none of the tables that {note.origin} writes is there yet")
        self._warn_of_left(view, note)
        if missing := sorted(view.joined - joined.keys()):
            return RefreshedView(view.name, "", f"{', '.join(missing)} is not there yet")
        targets = self.tables.opened(view, note.targets)
        seen = {name: (table.version, table.id) for name, table in {**joined, **sources}.items()}
        as_left = self._as_left(note, targets)
        trusted = note.definition == definition_of(view) and as_left == note.targets.keys()
        if trusted and not full and not note.timed and seen == note.sources:
            return _unchanged(view, note)
        work = self.work(view, sources, joined)
        shape, output, _ = work.shape()
        plan = RefreshPlan("full", shape.why, shape)
        if full or not trusted or view.refresh == "full" or output != note.output:
            plan = RefreshPlan("full", _why_full(view, note, full=full, trusted=trusted), shape)
        else:
            plan = self._plan(view, note, work, shape)
            if plan.way != "full" and not plan.changed:  # files were only joined
                accepted = self._still_unreadable(note)
                self._write(view, replace(note, sources=work.versions(), accepted=accepted))
                return _unchanged(view, note)
        return self._carried_out(view, work, plan, (note, targets, as_left, output), began)

    def _refuse_lost_sources(
        self, view: View, note: Note, view_sources: ViewSources, joined: Mapping[str, Snapshot]
    ) -> None:
        """Raise ViewError if tables that the view was made of are gone: their rows would vanish from its tables.

        Also if one was deleted and made again, with the rows that came since. A table that the view no longer reads
        by its configuration is not gone, nor is one that is still there, and that its route does not write. A repair
        that made a table again has brought its rows back.
        """
        readable = {**view_sources.tables, **view_sources.others}
        is_source = self.tables.is_source(view)
        gone = list[str]()
        again = list[str]()
        for name, (_, identity) in note.sources.items():
            if name in view.joined and name not in joined:
                what = f"{name}, which it joins, is gone; bring it back, or take it out of the view"
                raise ViewError(view.name, what)
            if name in note.accepted or not is_source(name):
                continue
            if name not in readable:
                gone.append(name)
            elif readable[name].id != identity and not self.tables.is_repaired(readable[name]):
                again.append(name)
        if not gone and not again:
            return
        parts = list[str]()
        if gone:
            parts.append(f"{', '.join(sorted(gone))}: gone")
        if again:
            parts.append(f"{', '.join(sorted(again))}: deleted and made again")
        options = " ".join(f"--accept {name}" for name in sorted(gone + again))
        what = f"its sources have changed: {'; '.join(parts)}. Bring them back, or run `router views FILE {options}`"
        raise ViewError(view.name, what)

    def _warn_of_left(self, view: View, note: Note) -> None:
        """Name the tables that have left a view, once in a process until there are others."""
        if self.warned.get(view.name, ()) == note.left:
            return
        self.warned[view.name] = note.left
        if note.left:
            names = ", ".join(note.left)
            options = " ".join(f"--accept {name}" for name in note.left)
            what = f"{note.origin} does not write {names} (any more), so the view has no rows of it"
            log.warning("view %s: %s. `router views FILE %s` ends this warning", view.name, what, options)

    def _still_unreadable(self, note: Note) -> tuple[str, ...]:
        """Return the accepted sources that still cannot be read; for the others acceptance has been used up."""
        readable = self.tables.cache.readable(note.accepted)
        return tuple(name for name in note.accepted if isinstance(readable[name], TableError))

    def work(self, view: View, sources: Mapping[str, Snapshot], joined: Mapping[str, Snapshot]) -> ViewWork:
        """Return the frames of a view over tables."""
        if view.name not in self.sessions:  # of its own: nobody else sees the names of its tables
            self.sessions[view.name] = self.spark.newSession()
        session = self.sessions[view.name]
        relations = Relations(session, self.tables.lake, self.executors)
        return ViewWork(view, session, relations, {**sources}, {**joined}, self.shapes)

    def _as_left(self, note: Note, targets: Mapping[str, Snapshot]) -> set[str]:
        """Return the view's tables that have the rows which it left in them."""
        found = set()
        for name, table in targets.items():
            left = note.targets[name]
            if table.id == left.id and left.version >= 0:
                same = table.version == left.version or changes(self.tables.lake, table, left.version) == Changes()
                found |= {name} if same else set()
        return found

    def _plan(self, view: View, note: Note, work: ViewWork, shape: QueryShape) -> RefreshPlan:
        """Return how the view follows what has changed since it was noted."""
        changed = self._changed(view, note, work)
        joined = {name: (table.version, table.id) for name, table in work.joined.items()}
        if shape.way == "full" or any(note.sources.get(name) != pair for name, pair in joined.items()):
            return RefreshPlan("full", shape.why, shape, changed)
        way: Way = shape.way
        if any(found is None for found in changed.values()):
            way = "tables"
        elif any(found.removed for found in changed.values() if found):
            way = REMOVED[way]  # type: ignore[assignment]
        if way == "tables" and not shape.table:
            return RefreshPlan("full", "rows went, and no column of it says which table a row is from", shape, changed)
        if way == "keys" and not shape.keys:
            return RefreshPlan("full", "rows went, and it has no groups", shape, changed)
        if way == "keys":  # what is computed anew and what has changed have to be of one version
            for name in changed if shape.table else work.sources:
                work.sources[name].pin()
            changed = self._changed(view, note, work)
            if any(found is None for found in changed.values()):  # it was made again in this moment
                return RefreshPlan("full", "a table was made again", shape, changed)
        return RefreshPlan(way, shape.why, shape, changed, _touched(view, shape, changed))

    def _changed(self, view: View, note: Note, work: ViewWork) -> dict[str, Changes | None]:
        """Return the sources that have changed since they were noted, and what came and went; None: unknown."""

        def of(table: Snapshot) -> Changes | None:
            version, identity = note.sources.get(table.name, (None, None))
            if version is None:
                return Changes(added=tuple(table.files())) if table.plain else None
            if identity != table.id:
                return None
            return Changes() if version == table.version else changes(self.tables.lake, table, version)

        with ThreadPoolExecutor(THREADS) as pool:
            found = dict(zip(work.sources, pool.map(of, work.sources.values()), strict=True))
        gone = note.sources.keys() - work.sources.keys() - view.joined
        return {name: one for name, one in found.items() if one is None or one} | dict.fromkeys(gone)

    def _carried_out(
        self,
        view: View,
        work: ViewWork,
        plan: RefreshPlan,
        known: tuple[Note, dict[str, Snapshot], set[str], str],
        began: float,
    ) -> RefreshedView:
        note, targets, as_left, output = known
        rows, touched = work.rows(plan, targets)
        number = note.number + 1
        staged = self._staged(view, rows, number, spread=not work.few)
        concerned = (set(note.targets) if touched is None else set(touched) & set(note.targets)) | staged.keys()
        if "{" not in view.into:
            concerned.add(view.into.lower())
        schema = delta_schema(to_arrow_columns(rows.schema))
        alike = {
            name
            for name in concerned & as_left
            if output == note.output and _alike(note.targets[name], staged.get(name, _Staged()))
        }
        self._refuse_violated(view, staged)
        for name in alike & staged.keys():
            self.tables.lake.delete(*(file.path for file in staged[name].files))
        unnamed = staged.pop("", _Staged()).rows
        due = sorted(concerned - alike - {""})
        notes = {"router.view": view.name, "router.query": self.tables.config.name, "router.refresh": str(number)}
        notes |= _versions(work.versions())
        commits = _Commits(self.tables, self.spark, view, schema, number, notes)
        made = commits.make({name: staged.get(name, _Staged()) for name in due}, targets)
        left = {name: found for name, found in note.targets.items() if name not in made}
        left |= {name: left[name]._replace(**staged[name].checked) for name in alike & staged.keys()}
        seconds = round(time.monotonic() - began, 3)
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        after = Note(
            number=number,
            definition=definition_of(view),
            output=output,
            sources=work.versions(),
            targets={**left, **made},
            timed=plan.shape.timed,
            at=at,
            way=plan.way,
            why=plan.why,
            seconds=seconds,
            commits=len(made),
            unnamed=unnamed,
            trend=note.trend,
            accepted=self._still_unreadable(note),
            origin=note.origin,
            left=note.left,
        )
        after = after.counted() if view.expect else after
        self._write(view, after)
        if unnamed:
            log.warning("view %s: %d rows name no table, and are nowhere", view.name, unnamed)
        return RefreshedView(
            view.name,
            plan.way,
            plan.why,
            commits=tuple(sorted(made)),
            tables=len(after.targets),
            rows=after.rows,
            seconds=seconds,
            note=after,
        )

    def _refuse_violated(self, view: View, staged: Mapping[str, _Staged]) -> None:
        """Raise ViewError where an expectation that says `fail` does not hold; delete what was staged."""
        violated = Counter[str]()
        for one in staged.values():
            violated.update(one.violated)
        failing = [one.name for one in view.expect if one.otherwise == "fail" and violated[one.name]]
        if failing:
            self.tables.lake.delete(*(file.path for one in staged.values() for file in one.files))
            counts = ", ".join(f"{name} on {violated[name]} rows" for name in failing)
            raise ViewError(view.name, f"expectations do not hold: {counts}; no table was changed")

    def _staged(self, view: View, rows: DataFrame, number: int, *, spread: bool) -> dict[str, _Staged]:
        """Stage rows in one job, by table; under "" those that name none. `spread`: over tasks."""
        options = self.tables.config.landing
        token = uuid.uuid4().hex[:8]
        staging = Staging(self.tables.lake, options.file_bytes, options.buffer_bytes, self.folder, token=token)
        names = rows.columns
        frame = rows.withColumns({TARGET: target_name(view.into), HASH: row_hash(rows), **violations(view)})
        if spread and "{" in view.into:
            frame = frame.repartition(self.spark.sparkContext.defaultParallelism, TARGET)
        task = self.executors.guarded(
            _stage(staging, names, f"view/{view.name}", number, _Checks.of(view)), reports=True
        )
        reports = frame.mapInArrow(task, "report string").collect()
        found = dict[str, _Staged]()
        for report in self.executors.without_looks(json.loads(row["report"]) for row in reports):
            one = found.setdefault(report["table"], _Staged())
            if "path" in report:
                one.files.append(StagedFile.of(report))
            else:
                one.rows += report["rows"]
                one.violated.update(report["violated"])
                one.dropped += report["dropped"]
                one.hash = None if report["hash"] is None else ((one.hash or 0) + report["hash"]) % 2**64
        return found

    def _write(self, view: View, note: Note) -> None:
        self.store.write(note_path(view.name), note.dump())


@dataclass
class _Staged:
    files: list[StagedFile] = field(default_factory=list)
    rows: int = 0
    hash: int | None = 0
    violated: Counter[str] = field(default_factory=Counter)
    dropped: int = 0

    @property
    def checked(self) -> dict[str, Any]:
        """Return what expectations said, as a note has it."""
        return {"violated": dict(self.violated), "dropped": self.dropped}


@dataclass(frozen=True)
class _Checks:
    """The expectations of a view in a task: by the column that says where each does not hold, and what drops rows."""

    columns: dict[str, str]
    drops: tuple[str, ...]

    @classmethod
    def of(cls, view: View) -> _Checks:
        drops = tuple(f"{VIOLATED}{at}" for at, one in enumerate(view.expect) if one.otherwise == "drop")
        return cls({f"{VIOLATED}{at}": one.name for at, one in enumerate(view.expect)}, drops)


@dataclass
class ViewWork:
    """The frames of one refresh. `few`: of so few rows that one task takes them all."""

    view: View
    session: SparkSession
    relations: Relations
    sources: dict[str, Snapshot]
    joined: dict[str, Snapshot]
    shapes: dict[str, Shaped]
    few: bool = False

    def __post_init__(self) -> None:
        found = together(self.sources.values())
        self.conflicts = dict(found.conflicts)
        self.columns = pa.schema([one for one in found.columns if one.name.lower() != TABLE])

    def versions(self) -> dict[str, tuple[int, str]]:
        """Return the versions that the view is made of, with the ids of the tables."""
        return {name: (table.version, table.id) for name, table in {**self.joined, **self.sources}.items()}

    def shape(self) -> Shaped:
        """Return the shape of the query, and its columns as text. Raises ViewError."""
        key = f"{definition_of(self.view)} {self.columns} {self.conflicts}"
        if key not in self.shapes:
            self._refuse_conflicts()
            query = self._query(self.relations.empty(self.columns))
            if any(one.name.startswith((TARGET, HASH, VIOLATED)) for one in query.schema) or len(
                set(query.columns)
            ) < len(query.columns):
                raise ViewError(self.view.name, "each of its columns needs a name of its own")
            for name, _ in pieces_of(self.view.into):
                if name and name not in query.columns:
                    raise ViewError(self.view.name, f"`into` asks for {name}, which is no column of its SQL")
            text = to_delta(delta_schema(to_arrow_columns(query.schema)))
            shape = shape_of(query)
            if reason := self._unstable_expectation(query) or self._special_time_literal():
                shape = QueryShape("full", reason, timed=True)
            self.shapes[key] = Shaped(self._of_expectations(shape), text, query.schema)
        return self.shapes[key]

    def _unstable_expectation(self, query: DataFrame) -> str:
        """Return why an expectation may hold for other rows though no source has changed. Raises ViewError."""
        reason = ""
        for number, expectation in enumerate(self.view.expect):
            try:
                plan = analysed(query.select(violations(self.view)[f"{VIOLATED}{number}"]))
            except (AnalysisException, ParseException) as error:
                raise ViewError(self.view.name, f"its expectation {expectation.name}: {first_line(error)}") from error
            reason = reason or unstable_part(plan)
        return reason

    def _special_time_literal(self) -> str:
        """Return why the SQL of the view, of its expectations or its `let` is other SQL each day."""
        texts = [self.view.sql or ""]
        texts += [expectation.sql for expectation in self.view.expect]
        # A query of `let` has those that it reads inside.
        queries = [*self.view.let]
        while queries:
            query = queries.pop()
            texts.append(query.sql)
            queries += query.let
        for text in texts:
            if reason := special_time_literal(text):
                return reason
        return ""

    def _of_expectations(self, shape: QueryShape) -> QueryShape:
        """Return the shape without merging where groups are dropped: what they were would be lost."""
        if shape.way != "merge" or not any(one.otherwise == "drop" for one in self.view.expect):
            return shape
        return replace(shape, way="keys" if shape.keys else "full", why="an expectation drops groups")

    def _refuse_conflicts(self) -> None:
        """Raise ViewError where the query uses a column that has types in its tables which no type holds together."""
        if not self.conflicts:
            return
        everything = self.columns
        for name in self.conflicts:
            everything = everything.append(pa.field(name, pa.string()))
        try:
            used = used_columns(self._query(self.relations.empty(everything)))
        except ViewError:
            text = self.view.sql or _source(self.view.query)
            used = {name for name in self.conflicts if name.lower() in text.lower()}
        if wrong := [text for name, text in self.conflicts.items() if name in used]:
            what = f"its SQL uses a column that has different types: {'; '.join(wrong)}"
            raise ViewError(self.view.name, f"{what}; see `except`, or name the columns it needs")

    def rows(self, plan: RefreshPlan, targets: Mapping[str, Snapshot]) -> tuple[DataFrame, frozenset[str] | None]:
        """Return the rows that the touched tables are to have. Lazy."""
        shape, touched = plan.shape, plan.touched
        if plan.way == "full":
            return self.over(self.sources), None
        schema = self.shape().schema
        output = delta_schema(to_arrow_columns(schema))
        left = [table for name, table in targets.items() if touched is None or name in touched]
        kept = [TablePart(table, replaced_by(self.relations.lake, table)) for table in left]
        old = self.relations.frame(kept, output, named=False)
        changed = {name: found for name, found in plan.changed.items() if name in self.sources}
        added = [TablePart(self.sources[name], found.added) for name, found in changed.items() if found]
        if plan.way == "tables":
            short = [name.partition(".")[2] for name in plan.changed]
            new = self.over({name: self.sources[name] for name in changed})
            return old.filter(~F.col(quoted(shape.table)).isin(short)).unionByName(new), touched
        self.few = plan.way in ("rows", "merge") and are_few([*kept, *added])
        if plan.way == "rows":
            return self._one_task(old.unionByName(self._frame(added))), touched
        if plan.way == "merge":
            both = self._one_task(old.unionByName(self._frame(added))).groupBy(*map(quoted, shape.keys))
            kinds = {one.name: one.dataType for one in schema}
            merged = both.agg(*(F.expr(how).cast(kinds[name]).alias(name) for name, how in shape.merged.items()))
            return merged.select(*map(quoted, schema.names)), touched
        removed = [TablePart(self.sources[name], found.removed) for name, found in changed.items() if found]
        aside = {name: f"_key{at}" for at, name in enumerate(shape.keys)}
        touching = self._frame([*added, *removed]).select(*(F.col(quoted(n)).alias(k) for n, k in aside.items()))
        touching = touching.distinct()
        current = {name: self.sources[name] for name in changed} if shape.table else self.sources
        new = self.over(current)
        return _joined(old, touching, aside, "leftanti").unionByName(_joined(new, touching, aside, "leftsemi")), touched

    def over(self, tables: Mapping[str, Snapshot]) -> DataFrame:
        """Return the rows of the query over all rows of some tables. Lazy."""
        return self._frame([TablePart(table) for table in tables.values()])

    def _frame(self, parts: Iterable[TablePart]) -> DataFrame:
        return self._query(self._one_task(self.relations.frame(parts, self.columns)))

    def _one_task(self, rows: DataFrame) -> DataFrame:
        """Return rows in one task where they are few: what groups them then needs no exchange."""
        return rows.coalesce(1) if self.few else rows

    def _whole(self, table: str) -> DataFrame:
        return self.relations.frame([TablePart(self.joined[table])], self.joined[table].columns, named=False)

    def _query(self, relation: DataFrame) -> DataFrame:
        """Return the query over a relation. Raises ViewError."""
        relation.createOrReplaceTempView("source")
        try:
            for let in self.view.let:
                define(self.session, let, self._whole)
        except (AnalysisException, ParseException) as error:
            raise ViewError(self.view.name, first_line(error)) from error
        for name, table in self.view.tables.items():
            self._whole(table).createOrReplaceTempView(name)
        if self.view.query is None:
            try:
                return self.session.sql(str(self.view.sql))
            except (AnalysisException, ParseException) as error:
                raise ViewError(self.view.name, f"its SQL: {first_line(error)}") from error
        joined = {name: self.session.table(name) for name in (*self.view.tables, *(one.name for one in self.view.let))}
        try:
            return self.view.query.rows(self.session.table("source"), joined)
        except Exception as error:  # whatever a plugin raises belongs to this view only
            raise ViewError(self.view.name, f"its query {self.view.query.part_name}: {first_line(error)}") from error


def _joined(rows: DataFrame, keys: DataFrame, names: Mapping[str, str], how: str) -> DataFrame:
    """Return the rows whose key is one of these, or is not; null is a value like any other."""
    conditions = [rows[quoted(name)].eqNullSafe(keys[key]) for name, key in names.items()]
    condition = conditions[0]
    for one in conditions[1:]:
        condition &= one
    return rows.join(keys, condition, how)


@dataclass(frozen=True)
class _Commits:
    """The commits of one refresh: each replaces the rows of one table."""

    tables: ViewTables
    spark: SparkSession
    view: View
    schema: pa.Schema
    number: int
    notes: dict[str, str]

    def make(self, staged: Mapping[str, _Staged], targets: Mapping[str, Snapshot]) -> dict[str, ViewTarget]:
        """Commit every table; return how each was left. Raises the ViewError of the first that failed."""
        new = [name for name in staged if name not in targets]
        there = {**targets, **self.tables.opened(self.view, new)}
        for name in (name for name in new if name in there):
            if there[name].table.transaction_version(str(self._id(name))) is None:
                self.tables.lake.delete(*(file.path for one in staged.values() for file in one.files))
                what = f"{name} is there, and this view has not made it; drop it, or give `into` another name"
                raise ViewError(self.view.name, what)
        with ThreadPoolExecutor(THREADS) as pool:
            made = {name: pool.submit(self._commit, name, files, there.get(name)) for name, files in staged.items()}
        return {name: future.result() for name, future in made.items()}

    def _id(self, name: str) -> TransactionId:
        return TransactionId("view", name=self.tables.config.name, view=self.view.name, table=name)

    def _commit(self, name: str, staged: _Staged, known: Snapshot | None) -> ViewTarget:
        lake, schema = self.tables.lake, to_delta(self.schema)
        ids = {str(self._id(name)): self.number}
        if self.tables.config.commit == "spark" or (known and isinstance(known.table, SparkTable)):
            self._by_spark(name, staged, schema)
        elif known is None:
            changes = {CHANGES: "true"} if self.view.changes else {}
            create_with_files(
                lake,
                name,
                schema,
                staged.files,
                ids=ids,
                notes=self.notes,
                properties=changes,
                comment=self.view.comment,
            )
        else:
            replace_content(known.table.newest(), staged.files, ids=ids, notes=self.notes, schema=schema)
        return self._left(name, staged, -1 if known is None else known.version)

    def _by_spark(self, name: str, staged: _Staged, schema: str) -> None:
        lake, session = self.tables.lake, self.spark.newSession()
        once = self._id(name).transaction(self.number)
        work = TableCommit("", name, once.app_id, once.version, tuple(staged.files), schema)
        rows = staged_rows(session, lake, work)
        replace_by_spark(rows, lake.spark_address(name), once, self.notes, new_schema=True)
        lake.delete(*(file.path for file in staged.files))

    def _left(self, name: str, staged: _Staged, before: int) -> ViewTarget:
        """Return how a table was left; version -1 where somebody else has changed its rows at the same time."""
        now = self.tables.opened(self.view, [name])[name]
        mine = now.version
        if mine != before + 1 and not isinstance(now.table, SparkTable):
            between = log_commits(self.tables.lake, name, range(before + 1, mine + 1))
            found = {one.version: one for one in between}
            mine = next(n for n, one in found.items() if one.transactions.get(str(self._id(name))) == self.number)
            if any(one.changes for number, one in found.items() if number != mine):
                mine = -1
        return ViewTarget(mine, now.id, staged.hash, staged.rows, **staged.checked)


def _stage(staging: Staging, columns: list[str], target: str, number: int, checks: _Checks) -> Any:
    """Return the function of one task, for mapInArrow: it stages rows by table, and reports files and rows."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer, counts = staging.writer(number, attempt()), dict[str, tuple[int, int | None]]()
        violated, dropped = dict[str, Counter[str]](), Counter[str]()
        try:
            for batch in gathered(batches, min(GATHERED, staging.buffer_bytes // 2)):
                for name, part in _checked(batch, checks):
                    violated.setdefault(name, Counter()).update(part)
                kept, gone = _kept(batch, checks)
                dropped.update({folded(table) or "": count for table, count in _counted(gone.column(TARGET))})
                for name, rows, code in _by_table(kept, columns):
                    known = counts.get(name, (0, 0))
                    summed = None if code is None or known[1] is None else (known[1] + code) % 2**64
                    counts[name] = known[0] + rows.num_rows, summed
                    if name:
                        writer.hold(target, name, rows)
                writer.flush()
            reports = [json.dumps(asdict(file)) for file in writer.close()]
        except BaseException:
            writer.abandon()
            raise
        every = {name: counts.get(name, (0, 0)) for name in {*counts, *violated, *dropped}}
        told: Iterator[dict[str, Any]] = (
            {"table": name, "rows": rows, "hash": code, "violated": violated.get(name, {}), "dropped": dropped[name]}
            for name, (rows, code) in every.items()
        )
        reports += map(json.dumps, told)
        yield pa.RecordBatch.from_arrays([pa.array(reports, pa.string())], names=["report"])

    return stage


def _checked(batch: pa.RecordBatch, checks: _Checks) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield each table with how many of its rows each expectation does not hold for."""
    for column, name in checks.columns.items():
        for table, count in _counted(batch.filter(batch.column(column)).column(TARGET)):
            yield folded(table) or "", {name: count}


def _counted(names: pa.Array) -> Iterator[tuple[str | None, int]]:
    return ((one["values"], one["counts"]) for one in pc.value_counts(names).to_pylist())


def _kept(batch: pa.RecordBatch, checks: _Checks) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the rows that no expectation drops, and the others."""
    drops = pa.repeat(pa.scalar(False), batch.num_rows)
    for column in checks.drops:
        drops = pc.or_(drops, batch.column(column))
    return batch.filter(pc.invert(drops)), batch.filter(drops)


def _by_table(batch: pa.RecordBatch, columns: list[str]) -> Iterator[tuple[str, pa.RecordBatch, int | None]]:
    """Yield each table of a batch with its rows and their hashes' sum; "" for the rows that name none."""
    if not batch.num_rows:
        return
    named = batch.column(TARGET).dictionary_encode()
    known = [folded(name) or "" for name in named.dictionary.to_pylist()]
    codes = named.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
    hashes = batch.column(HASH)
    summed = None if hashes.null_count else hashes.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    rows, order = batch.select(columns), np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(known) + 2))
    for name, begin, end in zip([*known, ""], starts, starts[1:], strict=False):
        if begin < end:
            at = order[begin:end]
            code = None if summed is None else int(summed[at].sum(dtype=np.uint64))
            yield name, rows.take(pa.array(at)), code


def target_name(into: str) -> Column:
    """Return the name of the table that a row belongs to, as the row has it."""
    parts = (F.col(quoted(name)).cast("string") if name else F.lit(text) for name, text in pieces_of(into))
    return F.concat(*parts)


def violations(view: View) -> dict[str, Column]:
    """Return a column for each expectation, true where it does not hold; what cannot be evaluated does not."""
    return {
        f"{VIOLATED}{at}": ~F.coalesce(F.expr(one.sql).cast("boolean"), F.lit(False))
        for at, one in enumerate(view.expect)
    }


def _alike(left: ViewTarget, staged: _Staged) -> bool:
    """Say whether the rows that were staged for a table are those that it was left with."""
    return left.hash is not None and (left.hash, left.rows) == (staged.hash, staged.rows)


def _unchanged(view: View, note: Note) -> RefreshedView:
    return RefreshedView(view.name, "", "nothing has changed", tables=len(note.targets), rows=note.rows, note=note)


def _why_full(view: View, note: Note, *, full: bool, trusted: bool) -> str:
    """Return why everything is computed anew, before it was looked at what has changed."""
    if full:
        return "it was asked for"
    if view.refresh == "full":
        return "`refresh: full`"
    if not note.number:
        return "it is new"
    if note.definition != definition_of(view) or trusted:
        return "the view, or its sources' columns, have changed"
    return "its tables are not as it left them"


def _touched(view: View, shape: QueryShape, changed: Iterable[str]) -> frozenset[str] | None:
    """Return the tables of a view that rows of some sources can be in; None where only the rows say that."""
    if not shape.table or any(name not in ("", shape.table) for name, _ in pieces_of(view.into)):
        return None
    if "{" not in view.into:
        return None
    found = set()
    for table in changed:
        short = table.partition(".")[2]
        found.add("".join(short if name else text for name, text in pieces_of(view.into)).lower())
    return frozenset(found)


def _with_left(view: View, note: Note, view_sources: ViewSources) -> Note:
    """Return a note with the tables that have left a view: what it reads, a route or a view, does not write them.

    If it reads another one now, these are the tables that this one could have written by their names: it may be the
    same with a new name. A table that `except` names now, or that was accepted as lost, is not among them.
    """
    reads = origin(view)
    left = note.sources.keys() - view.joined - {*note.accepted}
    if reads and reads == note.origin:
        left |= {*note.left}
    else:
        left &= view_sources.others.keys()
    excepted = {name for name in left for glob in view.source.without if fnmatchcase(name, glob)}
    return replace(note, origin=reads, left=tuple(sorted(left - view_sources.tables.keys() - excepted)))


def definition_of(view: View) -> str:
    """Return what tells whether a view is still the same: its query and where its rows go."""
    query = f"{view.query!r} {_source(view.query)}" if view.query else view.sql
    expect = [one.model_dump() for one in view.expect]
    joined = [view.tables, *([one.model_dump() for one in view.let])]
    about = json.dumps([query, view.into, view.source.model_dump(), *joined, expect, FORMAT], sort_keys=True)
    return hashlib.sha256(about.encode()).hexdigest()[:16]


def _source(query: object) -> str:
    """Return the code of a query's class; its name where the code is not to be had, as in a zip."""
    try:
        return inspect.getsource(type(query))
    except (OSError, TypeError):
        return type(query).__qualname__


def _versions(found: Mapping[str, tuple[int, str]]) -> dict[str, str]:
    """Return what a commit says about the versions that its table was made of."""
    if len(found) > VERSIONS_SHOWN:
        return {"router.sources": f"{len(found)} tables"}
    return {"router.sources": json.dumps({name: version for name, (version, _) in found.items()})}
