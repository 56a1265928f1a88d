"""Refresh a view: one Spark job computes and stages the rows of all its tables, then each gets them in one commit.

| killed | the next refresh |
|---|---|
| while rows are staged | computes them again; no table has changed |
| between commits | finds tables that are not as noted, and computes everything again |
| before the note | the same |

The note contains which versions of its sources a view was made of, and which versions of its tables that was; it is
written last. If a table is as noted, unchanged parts of it may be kept; a table that another writer has changed is
computed in full. Readers see the former rows of a table or the new ones. Tables whose rows are the same get no commit.

`shape` decides how a view can follow changes, `frames` has the rows, `stage` writes them; here are the order of these
steps, the commits and the note.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException

from router.api.table_options import NewTable
from router.delta.change_feed import FEED, taken_by_feed
from router.delta.commit import TableCommit, to_delta
from router.delta.history import log_commits
from router.delta.parquet_writer import Staging
from router.delta.replace import create_with_files, replace_content
from router.delta.replace_by_spark import replace_by_spark, staged_rows
from router.delta.schema_diff import delta_schema
from router.delta.table_cache import THREADS, SparkTable
from router.delta.transaction_id import TransactionId
from router.engine.spark.executors import Executors
from router.engine.views.frames import RefreshPlan, ViewFrames, definition_of
from router.engine.views.note import Note, ViewTarget, view_note_path
from router.engine.views.relation import Relations
from router.engine.views.shape import QueryShape
from router.engine.views.sources import (
    Changes,
    PlannedTable,
    Snapshot,
    accept_lost,
    changes_since,
    source_origin,
    versions_of,
)
from router.engine.views.stage import StagedTable, stage_rows
from router.errors import TableError, ViewError, first_line
from router.spark_internals import to_arrow_columns
from router.templates import template_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import View
    from router.engine.checkpoint_store import CheckpointStore
    from router.engine.views.frames import Shaped
    from router.engine.views.sources import ViewSources, ViewTables
    from router.states import RefreshWay, ViewWay

log = logging.getLogger("router")
WAY_IF_REMOVED: dict[ViewWay, ViewWay] = {
    "merge": "keys",
    "keys": "keys",
    "rows": "tables",
    "tables": "tables",
    "full": "full",
}
"""The way to follow removed rows, by the way to follow added ones."""
NOT_THERE = "is not there yet"
"""How the reason ends why a view cannot be made now: a table that it reads is missing."""
VERSIONS_SHOWN = 50
"""If a view has more sources, its commits do not contain their versions; the note does."""


class RefreshedView(NamedTuple):
    """What a refresh did: `way` is empty if nothing had changed. `commits` are the tables that got one.

    `note` is what is noted of the view now; None if it reads nothing yet.
    """

    view: str
    way: RefreshWay
    why: str
    commits: tuple[str, ...] = ()
    tables: int = 0
    rows: int = 0
    seconds: float = 0.0
    note: Note | None = None


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

    def read_note(self, view: View) -> Note:
        """Return the note of a view."""
        return Note.from_json(self.store.load(view_note_path(view.name)))

    def refresh_view(self, view: View, *, full: bool = False) -> RefreshedView:
        """Bring a view to its sources' newest versions.

        Raises ViewError; each of its tables is then as it was, or has all of its new rows.
        """
        began = time.monotonic()
        try:
            note = self.read_note(view)
            refreshed = self._refresh_from_note(view, note, full, began)
            # A refresh that finds nothing new writes no note, but it ends a failure.
            if note.failed and not refreshed.way:
                self._write_note(view, self.read_note(view))
            return refreshed
        except (TableError, DeltaError, OSError, PySparkException) as error:
            raise ViewError(view.name, first_line(error)) from error

    def plan_view(self, view: View) -> RefreshPlan:
        """Return how the view would follow its sources, by what its query is. Raises ViewError.

        Views that are planned after it see its tables with the columns that it gives.
        """
        own = PlannedTable(view.into, writer=f"view {view.name}")
        self.tables.plan_table(own)
        sources = self.tables.sources_as_planned(
            view, self.tables.open_sources(view, self.read_note(view).accepted).tables
        )
        joined = self.tables.joined_as_planned(view, self.tables.open_existing(view, view.joined_tables))
        missing = sorted(view.joined_tables - joined.keys())
        if not sources:
            missing += view.source.tables or [f"a table of {source_origin(view)}"]
        if missing:
            return RefreshPlan("full", f"{', '.join(missing)} {NOT_THERE}", QueryShape("full", ""))
        for table in (*sources.values(), *joined.values()):
            if isinstance(table, PlannedTable) and table.planned is None:
                return RefreshPlan("full", f"the columns of {table.name} are not known yet", QueryShape("full", ""))
        shaped = self.view_frames(view, sources, joined).query_shape()
        self.tables.plan_table(replace(own, planned=to_arrow_columns(shaped.schema)))
        shape = shaped.shape
        if view.refresh == "full":
            return RefreshPlan("full", "`refresh: full`", shape)
        return RefreshPlan(shape.way, shape.why, shape)

    def full_by_definition(self, view: View) -> str:
        """Return why the next refresh computes all of a view, if its note shows that; else an empty text."""
        note = self.read_note(view)
        if view.refresh != "full" and note.definition == definition_of(view):
            return ""
        return _why_full(view, note, full=False, trusted=False)

    def view_frames(self, view: View, sources: Mapping[str, Snapshot], joined: Mapping[str, Snapshot]) -> ViewFrames:
        """Return the frames of a view over tables."""
        # Each view has a session: its temporary views are named like tables of other views.
        if view.name not in self.sessions:
            self.sessions[view.name] = self.spark.newSession()
        session = self.sessions[view.name]
        relations = Relations(session, self.tables.lake, self.executors)
        return ViewFrames(view, session, relations, {**sources}, {**joined}, self.shapes)

    def _refresh_from_note(self, view: View, note: Note, full: bool, began: float) -> RefreshedView:
        view_sources = self.tables.open_sources(view, note.accepted)
        sources = view_sources.tables
        if not sources and not note.sources:
            return RefreshedView(view.name, "", "none of its tables is there yet")
        joined = self.tables.open_existing(view, view.joined_tables)
        self._refuse_lost_sources(view, note, view_sources, joined)
        note = _with_left(view, note, view_sources)
        # The tables of the view keep the rows of sources that have left, until there are others.
        if not sources and note.left:
            return RefreshedView(view.name, "", f"none of the tables that {note.origin} writes is there yet")
        self._warn_of_left(view, note)
        if missing := sorted(view.joined_tables - joined.keys()):
            return RefreshedView(view.name, "", f"{', '.join(missing)} {NOT_THERE}")

        targets = self.tables.open_existing(view, note.targets)
        untouched = self._untouched_tables(note, targets)
        trusted = note.definition == definition_of(view) and untouched == note.targets.keys()
        if trusted and not full and not note.timed and versions_of({**joined, **sources}) == note.sources:
            return _unchanged_view(view, note)

        frames = self.view_frames(view, sources, joined)
        shaped = frames.query_shape()
        if full or not trusted or view.refresh == "full" or shaped.columns != note.output:
            plan = RefreshPlan("full", _why_full(view, note, full=full, trusted=trusted), shaped.shape)
        else:
            plan = self._plan_changes(view, note, frames, shaped.shape)
        # A compaction has made new versions of the sources, without other rows.
        if plan.way != "full" and not plan.changed:
            accepted = self._still_unreadable(note)
            self._write_note(view, replace(note, sources=frames.source_versions(), accepted=accepted))
            return _unchanged_view(view, note)
        return self._carry_out(view, frames, plan, note=note, targets=targets, untouched=untouched, began=began)

    def _refuse_lost_sources(
        self, view: View, note: Note, view_sources: ViewSources, joined: Mapping[str, Snapshot]
    ) -> None:
        """Raise ViewError if tables that the view was made of are gone: their rows would vanish from its tables.

        So it does if one was deleted and created again, since that contains newer rows only; unless a repair created
        it, which restores its rows. A table that the view no longer reads by its configuration is not gone, nor is one
        that exists and that its route does not write.
        """
        readable = {**view_sources.tables, **view_sources.others}
        is_source = self.tables.is_source(view)
        gone: list[str] = []
        recreated: list[str] = []
        for name, (_, identity) in note.sources.items():
            if name in view.joined_tables and name not in joined:
                problem = f"{name}, which it joins, is gone; bring it back, or take it out of the view"
                raise ViewError(view.name, problem)
            if name in note.accepted or not is_source(name):
                continue
            if name not in readable:
                gone.append(name)
            elif readable[name].id != identity and not self.tables.is_repaired(readable[name]):
                recreated.append(name)
        if not gone and not recreated:
            return
        parts: list[str] = []
        if gone:
            parts.append(f"{', '.join(sorted(gone))}: gone")
        if recreated:
            parts.append(f"{', '.join(sorted(recreated))}: deleted and made again")
        problem = f"its sources have changed: {'; '.join(parts)}. Bring them back, or run `{accept_lost(view.name)}`"
        raise ViewError(view.name, problem)

    def _warn_of_left(self, view: View, note: Note) -> None:
        """Log the tables that have left a view, once in a process until there are others."""
        if self.warned.get(view.name, ()) == note.left:
            return
        self.warned[view.name] = note.left
        if note.left:
            names = ", ".join(note.left)
            problem = f"{note.origin} does not write {names} (any more), so the view has no rows of it"
            log.warning("view %s: %s. `%s` ends this warning", view.name, problem, accept_lost(view.name))

    def _still_unreadable(self, note: Note) -> tuple[str, ...]:
        """Return the accepted sources that still cannot be read; for the others acceptance has been used up."""
        readable = self.tables.cache.open_readable_tables(note.accepted)
        return tuple(name for name in note.accepted if isinstance(readable[name], TableError))

    def _untouched_tables(self, note: Note, targets: Mapping[str, Snapshot]) -> set[str]:
        """Return the tables of a view that still have the rows which the last refresh left in them."""
        untouched = set()
        for name, table in targets.items():
            target = note.targets[name]
            if table.id != target.id or target.version < 0:
                continue
            # A compaction makes a new version with the same rows.
            if table.version == target.version or changes_since(self.tables.lake, table, target.version) == Changes():
                untouched.add(name)
        return untouched

    def _plan_changes(self, view: View, note: Note, frames: ViewFrames, shape: QueryShape) -> RefreshPlan:
        """Return how the view follows what has changed since it was noted."""
        changed = self._changed_sources(view, note, frames)
        joined = versions_of(frames.joined)
        if shape.way == "full" or any(note.sources.get(name) != version for name, version in joined.items()):
            return RefreshPlan("full", shape.why, shape, changed)

        way: ViewWay = shape.way
        if None in changed.values():
            way = "tables"
        elif any(changes and changes.removed for changes in changed.values()):
            way = WAY_IF_REMOVED[way]
        if way == "tables" and not shape.table:
            why = "rows were removed, and no column of it has the table of a row"
            return RefreshPlan("full", why, shape, changed)
        if way == "keys" and not shape.keys:
            return RefreshPlan("full", "rows were removed, and it has no groups", shape, changed)
        if way == "keys":
            # Groups are computed again of all rows, by the keys of changed rows: both must be of one version.
            for name in changed if shape.table else frames.sources:
                frames.sources[name].pin_version()
            changed = self._changed_sources(view, note, frames)
            # The table was created again at this moment.
            if None in changed.values():
                return RefreshPlan("full", "a table was created again", shape, changed)
        return RefreshPlan(way, shape.why, shape, changed, _touched_tables(view, shape, changed))

    def _changed_sources(self, view: View, note: Note, frames: ViewFrames) -> dict[str, Changes | None]:
        """Return the sources that have changed since they were noted, with their changes; None: unknown."""
        changed: dict[str, Changes | None] = {}
        with ThreadPoolExecutor(THREADS) as pool:
            all_changes = pool.map(lambda table: self._changes_since_note(note, table), frames.sources.values())
            for name, changes in zip(frames.sources, all_changes, strict=True):
                if changes != Changes():
                    changed[name] = changes
        gone = note.sources.keys() - frames.sources.keys() - view.joined_tables
        return changed | dict.fromkeys(gone)

    def _changes_since_note(self, note: Note, table: Snapshot) -> Changes | None:
        if table.name not in note.sources:
            return Changes(added=tuple(table.files())) if table.is_plain else None
        version, identity = note.sources[table.name]
        if identity != table.id:
            return None
        return Changes() if version == table.version else changes_since(self.tables.lake, table, version)

    def _carry_out(
        self,
        view: View,
        frames: ViewFrames,
        plan: RefreshPlan,
        *,
        note: Note,
        targets: dict[str, Snapshot],
        untouched: set[str],
        began: float,
    ) -> RefreshedView:
        """Stage the rows, commit the tables whose rows are others, and write the note."""
        number = note.number + 1
        rows = frames.rows_to_write(plan, targets)
        staged = self._stage_rows(view, rows, number, spread=not frames.few)
        self._refuse_violations(view, staged)
        unnamed = staged.pop("", StagedTable()).rows

        # Tables that have lost all their rows were not staged, and are emptied.
        concerned = set(note.targets)
        if plan.touched is not None:
            concerned &= plan.touched
        if "{" not in view.into:
            concerned.add(view.into.lower())
        for name in concerned:
            staged.setdefault(name, StagedTable())

        output = frames.query_shape().columns
        same = set()
        if output == note.output:
            same = {name for name in untouched & staged.keys() if _has_same_rows(note.targets[name], staged[name])}
        for name in same:
            self.tables.lake.delete(*(file.path for file in staged[name].files))
        commits = _Commits(
            tables=self.tables,
            spark=self.spark,
            view=view,
            schema=delta_schema(to_arrow_columns(rows.schema)),
            number=number,
            notes={
                "router.view": view.name,
                "router.query": self.tables.config.name,
                "router.refresh": str(number),
                "router.sources": _sources_text(frames.source_versions()),
            },
        )
        made = commits.commit_tables({name: staged[name] for name in sorted(staged.keys() - same)}, targets)

        targets_after = {**note.targets, **made}
        for name in same:
            counts = staged[name]
            targets_after[name] = note.targets[name]._replace(violated=dict(counts.violated), dropped=counts.dropped)
        after = replace(
            note,
            number=number,
            definition=definition_of(view),
            output=output,
            sources=frames.source_versions(),
            targets=targets_after,
            timed=plan.shape.timed,
            at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            way=plan.way,
            why=plan.why,
            seconds=round(time.monotonic() - began, 3),
            commits=len(made),
            unnamed=unnamed,
            accepted=self._still_unreadable(note),
        )
        if view.expect:
            after = after.with_trend()
        self._write_note(view, after)
        if unnamed:
            log.warning("view %s: %d rows have no table name and were dropped", view.name, unnamed)
        return RefreshedView(
            view.name,
            plan.way,
            plan.why,
            commits=tuple(sorted(made)),
            tables=len(after.targets),
            rows=after.rows,
            seconds=after.seconds,
            note=after,
        )

    def _stage_rows(self, view: View, rows: DataFrame, number: int, *, spread: bool) -> dict[str, StagedTable]:
        options = self.tables.config.landing
        token = uuid.uuid4().hex[:8]
        staging = Staging(self.tables.lake, options.file_bytes, options.buffer_bytes, self.folder, token=token)
        return stage_rows(view, rows, number, staging, self.executors, spread=spread)

    def _refuse_violations(self, view: View, staged: Mapping[str, StagedTable]) -> None:
        """Raise ViewError if an expectation with `otherwise: fail` is violated, or readers would refuse a value.

        The staged files are deleted then. A row is not left out: the tables would not be what the query gives.
        """
        violated: Counter[str] = Counter()
        for name, table in staged.items():
            violated.update(table.violated)
            if table.refused:
                _delete_staged_files(self.tables, staged)
                raise ViewError(view.name, f"readers would refuse {name}: {table.refused}; no table was changed")
        counts = []
        for expectation in view.expect:
            if expectation.otherwise == "fail" and violated[expectation.name]:
                counts.append(f"{expectation.name} on {violated[expectation.name]} rows")
        if not counts:
            return
        _delete_staged_files(self.tables, staged)
        raise ViewError(view.name, f"expectations do not hold: {', '.join(counts)}; no table was changed")

    def _write_note(self, view: View, note: Note) -> None:
        """Write the note of a refresh that has succeeded."""
        self.store.write(view_note_path(view.name), replace(note, failed="", failed_since="").to_json())


@dataclass(frozen=True)
class _Commits:
    """The commits of one refresh: each replaces the rows of one table."""

    tables: ViewTables
    spark: SparkSession
    view: View
    schema: pa.Schema
    number: int
    notes: dict[str, str]

    def commit_tables(
        self, staged: Mapping[str, StagedTable], targets: Mapping[str, Snapshot]
    ) -> dict[str, ViewTarget]:
        """Commit every table; return how each was left. Raises the ViewError of the first that failed."""
        taken = [*taken_by_feed(self.schema, feed=self.view.changes).values()]
        if taken:
            _delete_staged_files(self.tables, staged)
            raise ViewError(self.view.name, taken[0])
        existing = self.tables.open_existing(self.view, staged.keys() - targets.keys())
        for name, snapshot in existing.items():
            if snapshot.table.transaction_version(str(self._transaction_id(name))) is None:
                _delete_staged_files(self.tables, staged)
                problem = f"{name} is there, and this view has not made it; drop it, or give `into` another name"
                raise ViewError(self.view.name, problem)
        existing.update(targets)
        with ThreadPoolExecutor(THREADS) as pool:
            futures = {}
            for name, table in staged.items():
                futures[name] = pool.submit(self._commit_table, name, table, existing.get(name))
        # All commits have ended by now, also if one of them failed.
        return {name: future.result() for name, future in futures.items()}

    def _transaction_id(self, name: str) -> TransactionId:
        return TransactionId("view", name=self.tables.config.name, view=self.view.name, table=name)

    def _commit_table(self, name: str, staged: StagedTable, existing: Snapshot | None) -> ViewTarget:
        schema = to_delta(self.schema)
        ids = {str(self._transaction_id(name)): self.number}
        if self.tables.config.commit == "spark" or (existing and isinstance(existing.table, SparkTable)):
            self._commit_by_spark(name, staged, schema)
        elif existing is None:
            create_with_files(
                self.tables.lake,
                name,
                schema,
                staged.files,
                ids=ids,
                notes=self.notes,
                options=NewTable(properties={FEED: "true"} if self.view.changes else {}, comment=self.view.comment),
            )
        else:
            replace_content(existing.table.newest_table(), staged.files, ids=ids, notes=self.notes, schema=schema)
        version_before = -1 if existing is None else existing.version
        return self._view_target(name, staged, version_before)

    def _commit_by_spark(self, name: str, staged: StagedTable, schema: str) -> None:
        lake = self.tables.lake
        transaction = self._transaction_id(name).to_transaction(self.number)
        commit = TableCommit("", name, transaction.app_id, transaction.version, tuple(staged.files), schema)
        rows = staged_rows(self.spark.newSession(), lake, commit)
        replace_by_spark(rows, lake.spark_address(name), transaction, self.notes, new_schema=True)
        # Spark has written the rows into files of its own.
        lake.delete(*(file.path for file in staged.files))

    def _view_target(self, name: str, staged: StagedTable, version_before: int) -> ViewTarget:
        """Return how a table was left; version -1 if another writer has changed its rows at the same time."""
        table = self.tables.open_existing(self.view, [name])[name]
        version = table.version
        if version != version_before + 1 and not isinstance(table.table, SparkTable):
            app_id = str(self._transaction_id(name))
            commits = list(log_commits(self.tables.lake, name, range(version_before + 1, version + 1)))
            version = next(commit.version for commit in commits if commit.transactions.get(app_id) == self.number)
            if any(commit.changes_rows for commit in commits if commit.version != version):
                version = -1
        return ViewTarget(
            version=version,
            id=table.id,
            hash=staged.hash,
            rows=staged.rows,
            violated=dict(staged.violated),
            dropped=staged.dropped,
        )


def _delete_staged_files(tables: ViewTables, staged: Mapping[str, StagedTable]) -> None:
    """Delete all staged files."""
    paths: list[str] = []
    for table in staged.values():
        paths += [file.path for file in table.files]
    tables.lake.delete(*paths)


def _has_same_rows(target: ViewTarget, staged: StagedTable) -> bool:
    """Return whether the rows that were staged for a table are those that it was left with."""
    return target.hash is not None and (target.hash, target.rows) == (staged.hash, staged.rows)


def _unchanged_view(view: View, note: Note) -> RefreshedView:
    return RefreshedView(view.name, "", "nothing has changed", tables=len(note.targets), rows=note.rows, note=note)


def _why_full(view: View, note: Note, *, full: bool, trusted: bool) -> str:
    """Return why everything is computed, whatever has changed in the sources."""
    if full:
        return "it was requested"
    if view.refresh == "full":
        return "`refresh: full`"
    if not note.number:
        return "it is new"
    if note.definition != definition_of(view) or trusted:
        return "the view, or its sources' columns, have changed"
    return "its tables are not as it left them"


def _touched_tables(view: View, shape: QueryShape, changed: Iterable[str]) -> frozenset[str] | None:
    """Return the tables of a view that rows of some sources can be in; None if only the rows tell that."""
    # The table of the view must be named by the source table, and by nothing else.
    if not shape.table or {*template_fields(view.into)} != {shape.table}:
        return None
    touched = set()
    for table in changed:
        short_name = table.partition(".")[2]
        touched.add(view.into.replace(f"{{{shape.table}}}", short_name).lower())
    return frozenset(touched)


def _with_left(view: View, note: Note, view_sources: ViewSources) -> Note:
    """Return a note with the tables that have left a view: its route, or the view it reads, does not write them.

    If the view reads another route now, these are the tables that this one could have written by their names: it may be
    the same with a new name. A table that `except` names now, or that was accepted as lost, is not among them.
    """
    reads = source_origin(view)
    left = note.sources.keys() - view.joined_tables - set(note.accepted)
    if reads and reads == note.origin:
        left |= set(note.left)
    else:
        left &= view_sources.others.keys()
    left -= view_sources.tables.keys()
    excepted = {name for name in left if any(fnmatchcase(name, glob) for glob in view.source.without)}
    return replace(note, origin=reads, left=tuple(sorted(left - excepted)))


def _sources_text(versions: Mapping[str, tuple[int, str]]) -> str:
    """Return the versions that a table was made of, as text for its commit."""
    if len(versions) > VERSIONS_SHOWN:
        return f"{len(versions)} tables"
    return json.dumps({name: version for name, (version, _) in versions.items()})
