"""The tables that views read and write: which there are, and what has changed in one since a version.

Changes are the files that commits have added and removed since. A file that was added and removed in between is in
neither, nor one that a compaction has written or replaced. Runs on the driver.
"""

from __future__ import annotations

import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from router.api.sinks import LakeSink
from router.config.models import as_template, names_of
from router.delta.commit import to_arrow
from router.delta.history import log_commits
from router.delta.schema_diff import common_type, delta_schema
from router.delta.table_cache import THREADS, SparkTable
from router.engine.views.writers import REPAIR, read_on, read_writers, sink_writer, view_writer
from router.errors import StartError, TableError, ViewError
from router.storage.locations import may_make_name
from router.table_names import template_pattern, templates_meet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from router.config.models import Config, View
    from router.delta.lake import Lake
    from router.engine.views.writers import LogWriters

READ_BY_NAME = {"timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"}
"""Reader features of tables whose files contain all of their rows: Spark reads them by the columns' names."""


class File(NamedTuple):
    """A data file: its path as in the table's log, encoded as in a URL, and its rows if a commit has their number."""

    path: str
    rows: int | None = None

    @property
    def name(self) -> str:
        """Return its name in the table's folder."""
        return unquote(self.path)

    @property
    def is_read_by_path(self) -> bool:
        """Return whether Spark reads it by its path: it is in the table's folder, and is no pattern of names."""
        return re.fullmatch(r"[\w.=+-]+", self.name, re.ASCII) is not None


@dataclass(frozen=True)
class Snapshot:
    """A version of a table. `id` is that of the table: one that was dropped and created again has another."""

    name: str
    table: Any

    @cached_property
    def _pinned_table(self) -> Any:
        """Return delta-rs's own table, at the version that counts from now on."""
        return self.table if isinstance(self.table, SparkTable) else self.table.newest_table()

    def pin_version(self) -> None:
        """Fix the version to the newest that delta-rs has now; that takes milliseconds."""
        _ = self._pinned_table

    @property
    def version(self) -> int:
        """Return the version that it had when it was opened, or that it is pinned to."""
        # A cached property is among the attributes once it was read.
        table = self._pinned_table if "_pinned" in vars(self) else self.table
        return int(table.version())

    @property
    def id(self) -> str:
        """Return the table's id."""
        if isinstance(self.table, SparkTable):
            return str(self.table.snapshot.metadata().id())
        return str(self.table.metadata().id)

    @cached_property
    def columns(self) -> pa.Schema:
        """Return the columns in Arrow types, as the router compares them."""
        return delta_schema(to_arrow(self.table))

    @cached_property
    def is_plain(self) -> bool:
        """Return whether the table's files, read by the columns' names, are all of it."""
        if isinstance(self.table, SparkTable):
            return False
        metadata = self.table.metadata()
        if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
            return False
        features = set(self.table.protocol().reader_features or ())
        return not metadata.partition_columns and features <= READ_BY_NAME

    @property
    def short_name(self) -> str:
        """Return the name without its layer."""
        return self.name.partition(".")[2]

    def files(self) -> list[File]:
        """Return the data files of a plain table, at the version that is pinned by it."""
        actions: Any = pa.table(self._pinned_table.get_add_actions())
        return [File(path) for path in actions.column("path").to_pylist()]


@dataclass(frozen=True)
class PastSnapshot(Snapshot):
    """A version of a table that was opened at just this version, which may not be the newest."""

    @cached_property
    def _pinned_table(self) -> Any:
        return self.table


@dataclass(frozen=True)
class PlannedTable(Snapshot):
    """A table without a row, as a route or a view will make it; its name may be a template.

    `writer` is the route or view as `source_origin` calls it; an empty text for the router's own tables. `planned` are
    the columns, None if they are not known.
    """

    table: Any = None
    writer: str = ""
    planned: pa.Schema | None = None

    @cached_property
    def columns(self) -> pa.Schema:
        """Return the columns that it will have."""
        return delta_schema(self.planned)

    @cached_property
    def is_plain(self) -> bool:
        """Return that its files are all of it: it has none."""
        return True

    def files(self) -> list[File]:
        """Return no file."""
        return []

    def instead_of(self, table: Snapshot) -> PlannedTable:
        """Return a table that is there, as it will be: a view replaces its columns, a sink adds to them."""
        if self.planned is None or self.writer.startswith("view "):
            return replace(self, name=table.name)
        present = {name.lower() for name in table.columns.names}
        added = [column for column in self.columns if column.name.lower() not in present]
        return replace(self, name=table.name, planned=pa.schema([*table.columns, *added]))


def versions_of(tables: Mapping[str, Snapshot]) -> dict[str, tuple[int, str]]:
    """Return the version and the id of each table."""
    return {name: (table.version, table.id) for name, table in tables.items()}


@dataclass(frozen=True)
class Changes:
    """The files whose rows were added to a table, and those whose rows were removed from it, since a version."""

    added: tuple[File, ...] = ()
    removed: tuple[File, ...] = ()


def changes_since(lake: Lake, table: Snapshot, version: int) -> Changes | None:
    """Return the changes of a table since a version; None if commits or files are gone, or the table is not plain."""
    if not table.is_plain or version > table.version:
        return None
    added: dict[str, File] = {}
    removed: set[str] = set()
    try:
        for commit in log_commits(lake, table.name, range(version + 1, table.version + 1)):
            # The table was rewritten with other types.
            if commit.schema_changed and commit.removed:
                return None
            for file in commit.removed:
                if file.changes and added.pop(file.path, None) is None:
                    removed.add(file.path)
            for file in commit.added:
                if not file.changes:
                    continue
                if file.path in removed:
                    removed.discard(file.path)
                else:
                    added[file.path] = File(file.path, file.rows)
    except TableError:
        return None  # expired; a log that is damaged cannot be opened
    changes = Changes(tuple(sorted(added.values())), tuple(File(path) for path in sorted(removed)))
    files = (*changes.added, *changes.removed)
    if not all(file.is_read_by_path for file in files) or not _all_exist(lake, table.name, files):
        return None
    return changes


def replaced_by(lake: Lake, table: Snapshot) -> tuple[File, ...] | None:
    """Return all files of a table if its newest commit has replaced its rows, as a refresh does; else None.

    delta-rs finds the same files in milliseconds: for hundreds of tables that takes longer than reading them.
    """
    if not table.is_plain:
        return None
    (commit,) = log_commits(lake, table.name, [table.version])
    mode = commit.notes.get("operationParameters", {}).get("mode")
    is_overwrite = commit.operation == "WRITE" and mode == "Overwrite"
    # The first commit of a table has all of its files, whatever it was.
    if not is_overwrite and table.version > 0:
        return None
    return tuple(File(file.path, file.rows) for file in commit.added)


def _all_exist(lake: Lake, table: str, files: Iterable[File]) -> bool:
    """Return whether files still exist: a VACUUM deletes those that no version refers to."""
    folder = table.replace(".", "/")
    entries = lake.files.get_file_info([f"{folder}/{file.name}" for file in files])
    return all(entry.type is fs.FileType.File for entry in entries)


class Relation(NamedTuple):
    """The columns that tables have together, and why others of theirs cannot be one column."""

    columns: pa.Schema
    conflicts: dict[str, str]


def common_relation(tables: Iterable[Snapshot]) -> Relation:
    """Return the columns of tables by name, whatever its case, each in the type that holds all its values.

    A column that some lack is null in these. One whose types no type holds together is in the conflicts.
    """
    columns: dict[str, pa.Field] = {}
    first_tables: dict[str, str] = {}
    conflicts: dict[str, str] = {}
    # Most tables of a view have the same columns: each schema is looked at once.
    schemas: set[str] = set()
    for table in tables:
        text = str(table.columns)
        if text in schemas:
            continue
        schemas.add(text)
        for column in table.columns:
            key = column.name.lower()
            present = columns.setdefault(key, pa.field(column.name, column.type))
            first_table = first_tables.setdefault(key, table.name)
            kind = common_type(present.type, column.type)
            if kind is None:
                conflict = f"{present.name} is {present.type} in {first_table}, and {column.type} in {table.name}"
                conflicts.setdefault(present.name, conflict)
            else:
                columns[key] = pa.field(present.name, kind)
    return Relation(pa.schema([column for column in columns.values() if column.name not in conflicts]), conflicts)


def accept_lost(view: str) -> str:
    """Return the command that lets a view be made without the sources that it misses."""
    return f"router views FILE {shlex.quote(view)} --accept lost-sources"


class ViewSources(NamedTuple):
    """The tables that a view reads, by name, and others: their names fit, but its route or view does not write them."""

    tables: dict[str, Snapshot]
    others: dict[str, Snapshot]


@dataclass
class ViewTables:
    """The tables of a configuration's views. `cache` opens tables, and keeps them open.

    `writers`: (table, what the view reads) -> the writers of the table. A log is read to the first one that is wanted.
    `planned`: (writer, name) -> tables as they will be; of those that are there, other columns (`Refresher.plan_view`).
    """

    config: Config
    lake: Lake
    cache: Any
    writers: dict[tuple[str, str], LogWriters] = field(default_factory=dict)
    planned: dict[tuple[str, str], PlannedTable] = field(default_factory=dict)

    def plan_table(self, table: PlannedTable) -> None:
        """Let a table count as it will be, for the plans of views."""
        self.planned[table.writer, table.name] = table

    def sources_as_planned(self, view: View, tables: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
        """Return the tables that a view will read, with those that are there as they will be."""
        reads = source_origin(view)
        sources = {**tables}
        for planned in self.planned.values():
            if reads:
                is_source = planned.writer == reads
            else:
                is_source = any(templates_meet(as_template(glob), planned.name) for glob in view.source.tables)
            if not is_source or any(fnmatchcase(planned.name, glob) for glob in view.source.without):
                continue
            pattern = template_pattern(planned.name)
            present = [name for name in tables if pattern.fullmatch(name)]
            sources.update({name: planned.instead_of(sources[name]) for name in present})
            if not present:
                sources[planned.name] = planned
        return sources

    def joined_as_planned(self, view: View, tables: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
        """Return the tables that a view will join, with those that are there as they will be."""
        joined = {**tables}
        for name in view.joined_tables:
            for planned in self.planned.values():
                if templates_meet(name, planned.name):
                    joined[name] = planned.instead_of(joined[name]) if name in joined else replace(planned, name=name)
        return joined

    def open_sources(self, view: View, accepted: Iterable[str] = ()) -> ViewSources:
        """Return the tables that a view reads; without those of `accepted` that cannot be read.

        Raises ViewError if another one cannot be read, or if two are alike; TableError if a log is damaged.
        """
        candidates = self.open_existing(view, self.table_names(view), accepted)
        with ThreadPoolExecutor(THREADS) as pool:
            are_written = [*pool.map(lambda table: self._is_written(view, table), candidates.values())]
        tables: dict[str, Snapshot] = {}
        others: dict[str, Snapshot] = {}
        for (name, table), is_written in zip(candidates.items(), are_written, strict=True):
            if is_written:
                tables[name] = table
            else:
                others[name] = table
        by_short_name: dict[str, str] = {}
        for name, table in tables.items():
            other = by_short_name.setdefault(table.short_name, name)
            if other != name:
                raise ViewError(view.name, f"{other} and {name} would both be `{table.short_name}`; see `except`")
        return ViewSources(tables, others)

    def _is_written(self, view: View, table: Snapshot) -> bool:
        """Return whether a table is written by the route or view that a view reads. Raises TableError.

        A table with a fixed name is its table. One whose name only fits a template may be another's, or one that a sink
        wrote until its configuration changed: its log contains its writers.
        """
        source = view.source
        if source.tables or table.name in self._table_templates(view):
            return True
        wanted = self._wanted_writers(view, table.name)
        place = (table.name, source_origin(view))
        writers = self.writers.get(place)
        query = self.config.name
        if writers is None or writers.id != table.id:
            writers = read_writers(self.lake, query, table.name, table.table, wanted)
        elif writers.version < table.version and not writers.has_writer(wanted):
            try:
                writers = read_on(self.lake, query, table.name, writers, table.version)
            except TableError:
                # Its commits were deleted meanwhile.
                writers = read_writers(self.lake, query, table.name, table.table, wanted)
        self.writers[place] = writers
        return writers.has_writer(wanted)

    def is_repaired(self, table: Snapshot) -> bool:
        """Return whether a repair of the router has written the rows of a table. Raises TableError."""
        return REPAIR in read_writers(self.lake, self.config.name, table.name, table.table).writers

    def _wanted_writers(self, view: View, table: str) -> frozenset[str]:
        """Return the view, or the sinks of the route as they are configured today, that could write a table."""
        if view.source.view:
            return frozenset({view_writer(view.source.view)})
        writers: set[str] = set()
        for route, name, sink in self.config.all_sinks():
            if route != view.source.route or not isinstance(sink, LakeSink):
                continue
            if may_make_name(names_of(sink), table):
                writers.add(sink_writer(route, name))
        return frozenset(writers)

    def open_existing(self, view: View, names: Iterable[str], accepted: Iterable[str] = ()) -> dict[str, Snapshot]:
        """Return the tables that exist, by name; without those of `accepted` that cannot be read.

        Raises ViewError if another one cannot be read.
        """
        snapshots: dict[str, Snapshot] = {}
        for name, table in self.cache.open_readable_tables(names).items():
            if isinstance(table, TableError):
                if name in accepted:
                    continue
                problem = f"it needs {table}"
                # A table that it joins, or one of its own, cannot be left out.
                if self.is_source(view)(name):
                    problem += f"; `{accept_lost(view.name)}` continues without its rows"
                raise ViewError(view.name, problem) from table
            if table is not None:
                snapshots[name] = Snapshot(name, table)
        return snapshots

    def table_names(self, view: View) -> list[str]:
        """Return the names of the existing tables that a view may read, sorted."""
        is_source = self.is_source(view)
        patterns = [*self._table_templates(view), *view.source.tables]
        names = []
        for layer in self.lake.layer_names():
            # Listing a layer takes long if it has many tables.
            if any(_is_in_layer(layer, pattern) for pattern in patterns):
                names += [table for table in self.lake.table_names(layer) if is_source(table)]
        return sorted(names)

    def is_source(self, view: View) -> Callable[[str], bool]:
        """Return a function that decides by its name whether a view may read a table. Looks at no file."""
        source = view.source
        named = self._table_templates(view)
        patterns = [template_pattern(template) for template in named]
        others = self.config.fixed_tables() - set(named)
        own = template_pattern(view.into)

        def is_source(table: str) -> bool:
            if own.fullmatch(table) or any(fnmatchcase(table, glob) for glob in source.without):
                return False
            if any(fnmatchcase(table, glob) for glob in source.tables):
                return True
            return table not in others and any(pattern.fullmatch(table) for pattern in patterns)

        return is_source

    def _table_templates(self, view: View) -> list[str]:
        """Return the templates of the tables that are written by the route or view that a view reads."""
        if view.source.view:
            return [other.into for other in self.config.views if other.name == view.source.view]
        if view.source.route:
            return list(_route_templates(self.config, view.source.route))
        return []


def source_origin(view: View) -> str:
    """Return the route or the view that a view reads; an empty text if it reads tables by their names."""
    if view.source.route:
        return f"route {view.source.route}"
    return f"view {view.source.view}" if view.source.view else ""


def _route_templates(config: Config, route: str) -> Iterator[str]:
    """Yield the names of the tables of a route. Raises StartError if a sink takes them from its rows only."""
    for candidate in config.routes:
        if candidate.name != route:
            continue
        for sink in candidate.sinks:
            if not isinstance(sink, LakeSink):
                continue
            names = names_of(sink)
            if not names:
                problem = f"the tables of route {route} are named by its rows only; name them by `tables`"
                raise StartError(f"views: {problem}")
            yield names


def _is_in_layer(layer: str, pattern: str) -> bool:
    """Return whether a pattern of table names may have tables in a layer."""
    layer_pattern, _, _ = pattern.partition(".")
    # The layer itself is named by the rows.
    if "{" in layer_pattern:
        return True
    return fnmatchcase(layer, layer_pattern)
