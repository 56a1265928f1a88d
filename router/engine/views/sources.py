"""The tables that views read and write: which there are, and what has changed in one since a version.

What has changed are the files whose rows came, and those whose rows went, as the commits since say. A file that came
and went in between, or that maintenance only joined with others, is in neither. Runs on the driver.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from router.config.models import names_of
from router.delta.commit import to_arrow
from router.delta.history import log_commits
from router.delta.schema_diff import common_type, delta_schema
from router.delta.table_cache import THREADS, SparkTable
from router.engine.views.writers import REPAIR, read_on, read_writers, sink_writer, view_writer
from router.errors import StartError, TableError, ViewError
from router.locations import makes
from router.sinks import MergingSink, TableSink
from router.table_names import template_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from router.config.models import Config, View
    from router.delta.lake import Lake
    from router.engine.views.writers import LogWriters

READ_BY_NAME = {"timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"}
"""Reader features of tables whose files say all about their rows: Spark reads them by the columns' names."""


class File(NamedTuple):
    """A data file: its path as the table's log has it, encoded as in a URL, and its rows where a commit says them."""

    path: str
    rows: int | None = None

    @property
    def name(self) -> str:
        """Return its name in the table's folder."""
        return unquote(self.path)

    @property
    def simple(self) -> bool:
        """Say whether Spark reads it by its path: it lies in the table's folder, and is no pattern of names."""
        return re.fullmatch(r"[\w.=+-]+", self.name, re.ASCII) is not None


@dataclass(frozen=True)
class Snapshot:
    """A version of a table. `id` is that of the table: one that was dropped and made again has another."""

    name: str
    table: Any

    @cached_property
    def _pinned(self) -> Any:
        """Return delta-rs's own table, at the version that counts from now on."""
        return self.table if isinstance(self.table, SparkTable) else self.table.newest()

    def pin(self) -> None:
        """Let what delta-rs has at this moment be the version; it takes milliseconds, and may be newer than before."""
        _ = self._pinned

    @property
    def version(self) -> int:
        """Return the version: as it was seen at first, or as it was pinned."""
        return int((self._pinned if "_pinned" in vars(self) else self.table).version())

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
    def plain(self) -> bool:
        """Say whether the table's files, read by the columns' names, are all of it."""
        if isinstance(self.table, SparkTable):
            return False
        about = self.table.metadata()
        mapped = about.configuration.get("delta.columnMapping.mode", "none") != "none"
        features = {*(self.table.protocol().reader_features or ())}
        return not mapped and not about.partition_columns and features <= READ_BY_NAME

    @property
    def short(self) -> str:
        """Return the name without its layer."""
        return self.name.partition(".")[2]

    def files(self) -> list[File]:
        """Return the data files of a plain table, at the version that is pinned by it."""
        actions: Any = pa.table(self._pinned.get_add_actions())
        return [File(path) for path in actions.column("path").to_pylist()]


@dataclass(frozen=True)
class PastSnapshot(Snapshot):
    """A version of a table that was opened at just this version, which may not be the newest."""

    @cached_property
    def _pinned(self) -> Any:
        return self.table


@dataclass(frozen=True)
class Changes:
    """What has come to a table, and gone from it, since a version."""

    added: tuple[File, ...] = ()
    removed: tuple[File, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def changes(lake: Lake, table: Snapshot, since: int) -> Changes | None:
    """Return what has changed since a version; None where that cannot be told: commits or files are gone, or not plain.

    Raises TableError where the log is damaged.
    """
    if not table.plain or since > table.version:
        return None
    came, gone, rows = set[str](), set[str](), dict[str, int | None]()
    try:
        for commit in log_commits(lake, table.name, range(since + 1, table.version + 1)):
            if commit.schema_changed and commit.removed:  # rewritten with other types
                return None
            for file in (one for one in commit.removed if one.changes):
                (came.discard if file.path in came else gone.add)(file.path)
            for file in (one for one in commit.added if one.changes):
                (gone.discard if file.path in gone else came.add)(file.path)
                rows[file.path] = file.rows
    except TableError:
        return None  # expired; a log that is damaged cannot be opened
    found = Changes(tuple(File(path, rows[path]) for path in sorted(came)), tuple(map(File, sorted(gone))))
    every = (*found.added, *found.removed)
    return found if all(file.simple for file in every) and _there(lake, table.name, every) else None


def replaced_by(lake: Lake, table: Snapshot) -> tuple[File, ...] | None:
    """Return all files of a table whose newest commit has replaced its rows, as a refresh does; None for another one.

    delta-rs says the same after milliseconds: for hundreds of tables that is longer than they are read.
    """
    if not table.plain:
        return None
    (commit,) = log_commits(lake, table.name, [table.version])
    whole = commit.operation == "WRITE" and commit.notes.get("operationParameters", {}).get("mode") == "Overwrite"
    whole = whole or table.version == 0
    return tuple(File(file.path, file.rows) for file in commit.added) if whole else None


def _there(lake: Lake, table: str, files: Iterable[File]) -> bool:
    """Say whether files are there still: a VACUUM takes those that no version refers to."""
    inside = [f"{table.replace('.', '/')}/{file.name}" for file in files]
    return all(info.type is fs.FileType.File for info in lake.files.get_file_info(inside))


class Relation(NamedTuple):
    """The columns that tables have together, and why others of theirs cannot be one column."""

    columns: pa.Schema
    conflicts: dict[str, str]


def together(tables: Iterable[Snapshot]) -> Relation:
    """Return the columns of tables by name, whatever its case, each in the type that holds all its values.

    A column that some lack is null in these. One whose types no type holds together is in the conflicts.
    """
    found, first, conflicts = dict[str, pa.Field](), dict[str, str](), dict[str, str]()
    known = dict[str, pa.Schema]()
    for table in tables:
        if (text := str(table.columns)) in known:
            continue
        known[text] = table.columns
        for column in table.columns:
            key = column.name.lower()
            have = found.setdefault(key, pa.field(column.name, column.type))
            first.setdefault(key, table.name)
            kind = common_type(have.type, column.type)
            if kind is None:
                what = f"{have.name} is {have.type} in {first[key]}, and {column.type} in {table.name}"
                conflicts.setdefault(have.name, what)
            else:
                found[key] = pa.field(have.name, kind)
    return Relation(pa.schema([one for one in found.values() if one.name not in conflicts]), conflicts)


class ViewSources(NamedTuple):
    """The tables that a view reads, and those whose names it could read by, which its route, or view, does not write.

    Both by name.
    """

    tables: dict[str, Snapshot]
    others: dict[str, Snapshot]


@dataclass
class ViewTables:
    """The tables of a configuration's views. `cache` opens tables, and keeps them open.

    `writers` has who wrote a table, by table and by what the view reads: a log is read to the first writer of that.
    """

    config: Config
    lake: Lake
    cache: Any
    listed: dict[str, list[str]] = field(default_factory=dict)
    writers: dict[tuple[str, str], LogWriters] = field(default_factory=dict)

    def sources(self, view: View, accepted: Iterable[str] = ()) -> ViewSources:
        """Return the tables that a view reads; without those of `accepted` that cannot be read.

        Raises ViewError if another one cannot be read, or if two are alike; TableError if a log is damaged.
        """
        candidates = self.opened(view, self.names(view), accepted)
        with ThreadPoolExecutor(THREADS) as pool:
            are_written = [*pool.map(lambda table: self._is_written(view, table), candidates.values())]
        tables = dict[str, Snapshot]()
        others = dict[str, Snapshot]()
        for (name, table), is_written in zip(candidates.items(), are_written, strict=True):
            if is_written:
                tables[name] = table
            else:
                others[name] = table
        short = dict[str, str]()
        for name in tables:
            if (other := short.setdefault(name.partition(".")[2], name)) != name:
                raise ViewError(view.name, f"{other} and {name} would both be `{name.partition('.')[2]}`; see `except`")
        return ViewSources(tables, others)

    def _is_written(self, view: View, table: Snapshot) -> bool:
        """Return whether the route, or the view, that a view reads writes a table. Raises TableError.

        A table that is named as a whole is its table. One whose name only fits a template may be another's, or one that
        a sink wrote until its configuration changed: its log tells.
        """
        source = view.source
        if source.tables or table.name in self._named(view):
            return True
        wanted = self._wanted_writers(view, table.name)
        place = (table.name, origin(view))
        writers = self.writers.get(place)
        query = self.config.name
        if writers is None or writers.id != table.id:
            writers = read_writers(self.lake, query, table.name, table.table, wanted)
        elif writers.version < table.version and not writers.has(wanted):
            try:
                writers = read_on(self.lake, query, table.name, writers, table.version)
            except TableError:  # its commits were deleted meanwhile
                writers = read_writers(self.lake, query, table.name, table.table, wanted)
        self.writers[place] = writers
        return writers.has(wanted)

    def is_repaired(self, table: Snapshot) -> bool:
        """Return whether a repair, or a refresh, of the router has made the rows of a table. Raises TableError."""
        return REPAIR in read_writers(self.lake, self.config.name, table.name, table.table).writers

    def _wanted_writers(self, view: View, table: str) -> frozenset[str]:
        """Return the view, or the sinks of the route as they are configured today, that could write a table."""
        if view.source.view:
            return frozenset({view_writer(view.source.view)})
        writers = set[str]()
        for route, name, sink in self.config.all_sinks():
            if route != view.source.route or not isinstance(sink, (TableSink, MergingSink)):
                continue
            if makes(names_of(sink), table):
                writers.add(sink_writer(route, name))
        return frozenset(writers)

    def opened(self, view: View, names: Iterable[str], accepted: Iterable[str] = ()) -> dict[str, Snapshot]:
        """Return tables by name, those that are there; without those of `accepted` that cannot be read.

        Raises ViewError if another one cannot be read.
        """
        found = dict[str, Snapshot]()
        for name, table in self.cache.readable(names).items():
            if isinstance(table, TableError):
                if name in accepted:
                    continue
                what = f"it needs {table}"
                # A table that it joins, or one of its own, cannot be left out.
                if self.is_source(view)(name):
                    what += f"; `router views FILE --accept {name}` continues without its rows"
                raise ViewError(view.name, what) from table
            if table is not None:
                found[name] = Snapshot(name, table)
        return found

    def names(self, view: View) -> list[str]:
        """Return the names of the tables that a view reads, as far as they are there, sorted."""
        is_source = self.is_source(view)
        wanted = (*self._named(view), *view.source.tables)
        names = []
        for layer in self.lake.layers():
            # Listing a layer takes long where it has many tables.
            if any(_of_layer(layer, pattern) for pattern in wanted):
                names += [table for table in self.lake.tables(layer) if is_source(table)]
        return sorted(names)

    def is_source(self, view: View) -> Callable[[str], bool]:
        """Return what tells by its name whether a table may be one that a view reads. Looks at no file."""
        source = view.source
        named = self._named(view)
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

    def _named(self, view: View) -> list[str]:
        """Return the templates of the tables that a view's route, or the view it reads, writes."""
        if view.source.view:
            return [other.into for other in self.config.views if other.name == view.source.view]
        if view.source.route:
            return list(_templates(self.config, view.source.route))
        return []


def origin(view: View) -> str:
    """Return the route or the view that a view reads; nothing if it reads tables by their names."""
    if view.source.route:
        return f"route {view.source.route}"
    return f"view {view.source.view}" if view.source.view else ""


def _templates(config: Config, route: str) -> Iterator[str]:
    sinks = [sink for candidate in config.routes if candidate.name == route for sink in candidate.sinks]
    for sink in sinks:
        if isinstance(sink, (TableSink, MergingSink)):
            names = names_of(sink)
            if not names:
                what = f"the tables of route {route} are named by its rows only; name them by `tables`"
                raise StartError(f"views: {what}")
            yield names


def _of_layer(layer: str, names: str) -> bool:
    return fnmatchcase(layer, names.partition(".")[0]) if "{" not in names.partition(".")[0] else True
