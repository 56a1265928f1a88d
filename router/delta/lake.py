"""Find tables by name: their addresses, their logs and the files below them. `table_names` has the rule for names.

`layer.table` is stored at ROOT/layer/table, or at the place that a `location` of the configuration gives it. Such a
place is noted in the lake, so that readers without the configuration find the table, and the start notices if the
place has changed.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from router.delta.located_files import NOTES, LocatedFiles, format_location_note, note_path, parse_location_note
from router.errors import StartError
from router.storage import files as storage
from router.storage.addresses import STORAGE_BY_SCHEME, URI_SCHEME, is_local, normalize_address
from router.storage.locations import Location
from router.table_names import is_usable_name
from router.templates import literal_template

DAMAGED_LOG = "its log is"
"""A text in the error of a table whose log has a damaged file."""
_DAMAGED_FILE = re.compile(r"Parquet|FAILED_READ_FILE|Object at location \S+ not found|File \S+ does not exist")
"""Texts in the errors of delta-rs, Arrow and Spark about a data file that is cut off, damaged or gone."""
LOOKED_AT = 20
"""The number of newest commits that are checked for being empty when a table is opened, as both Delta libraries take an
empty file for a commit that changed nothing. A table made here has that many between two checkpoints."""
INTERVALS_ON_DISK = 5
"""The same for tables on a disk, times 20: there an append reads no commits, and a checkpoint names all files that were
removed within an hour. With a merge delta-rs makes one in each interval."""


def is_damaged(cause: str) -> bool:
    """Return whether a table cannot be written for a file of its own, so that a rebuild mends it."""
    return DAMAGED_LOG in cause or _DAMAGED_FILE.search(cause) is not None


@dataclass(frozen=True)
class Lake:
    """A folder or URI of tables: the table `layer.name` is stored at `root/layer/name`, or where a location puts it.

    `options` are the storage's, as delta-rs and obstore both take them: a table and its files are always reached with
    the same rights. They may hold secrets, so `repr` omits them. All paths are relative to the root, as
    `layer/name/file`, even those of a table with a location: `files` and `store` translate them.
    """

    root: str
    options: dict[str, str] = field(default_factory=dict, repr=False)
    locations: tuple[Location, ...] = ()

    @classmethod
    def at(cls, place: str, options: dict[str, str] | None = None, locations: tuple[Location, ...] = ()) -> Lake:
        """Return the lake at a path (made absolute) or URI.

        A location without options of its own gets the lake's, if both are in the same kind of storage.
        """
        root = normalize_address(place)
        options = options or {}
        completed = tuple(_complete_location(location, root, options) for location in locations)
        return cls(root, options, completed)

    @property
    def is_local(self) -> bool:
        """Return whether the lake is on a mounted file system; tables with a location may be elsewhere."""
        return is_local(self.root)

    def on_disk(self, table: str) -> bool:
        """Return whether a table is on a mounted file system."""
        return is_local(self.address(table))

    def table_location(self, table: str) -> tuple[str, dict[str, str]] | None:
        """Return place and options of a table with a location; None if it has none.

        Raises ValueError if a location applies to the table, but makes no valid place of its name.
        """
        if not self.locations or not is_usable_name(table) or table != table.lower():
            return None
        for location in self.locations:
            place = location.place_of(table)
            if place:
                return place, location.options
        return None

    def _resolve_path(self, path: str) -> tuple[str, dict[str, str]]:
        """Return the address of a path of the lake's layout, and the options that reach it."""
        layer, _, rest = path.partition("/")
        name, _, rest = rest.partition("/")
        location = self.table_location(f"{layer}.{name}") if name else None
        if location is None:
            return f"{self.root}/{path}", self.options
        place, options = location
        if rest:
            place = f"{place}/{rest}"
        return place, options

    def address(self, table: str) -> str:
        """Return the path or URI of `layer.name`. The name must have passed the naming rule."""
        return self._resolve_path(table.replace(".", "/"))[0]

    def for_spark(self, path: str = "") -> str:
        """Return the address of the root, or of a path below it, in the form that Spark takes."""
        if not path:
            return storage.for_spark(self.root, self.options)
        place, options = self._resolve_path(path)
        return storage.for_spark(place, options)

    def spark_address(self, table: str) -> str:
        """Return the address of `layer.name` in the form that Spark takes."""
        return self.for_spark(table.replace(".", "/"))

    @cached_property
    def store(self) -> storage.Storage:
        """Return the files below the root. Works on driver and executors."""
        home = storage.files_at(self.root, self.options)
        if not self.locations:
            return home
        return LocatedFiles(home, self.table_location)

    def delta_options(self, table: str) -> dict[str, str] | None:
        """Return the options for a table as delta-rs takes them; they hold secrets."""
        place, options = self._resolve_path(table.replace(".", "/"))
        return storage.for_delta(place, options)

    def note_location(self, table: str) -> None:
        """Note the place of a table with a location in the lake, before its first file is written. Raises OSError.

        Before the first note it checks that the storage can create a file only if it is absent, which commits rely on.
        """
        if not self.locations or table in self._tables_with_note:
            return
        try:
            location = self.table_location(table)
            if location is not None and self.read(note_path(table)) is None:
                place, options = location
                storage.probe_conditional_writes(place, options)
                self.create(note_path(table), format_location_note(place))
        except (StartError, ValueError) as error:
            raise OSError(str(error)) from None
        self._tables_with_note.add(table)

    @cached_property
    def _tables_with_note(self) -> set[str]:
        """Return the tables whose place this process has noted, to be filled by `note_location`."""
        return set()

    def noted_locations(self) -> dict[str, str]:
        """Return table -> place, of all tables whose place was noted."""
        selector = fs.FileSelector(NOTES, allow_not_found=True, recursive=True)
        paths = [info.path for info in self.files.get_file_info(selector) if info.is_file and not info.extension]
        with ThreadPoolExecutor(storage.FILE_THREADS) as pool:
            contents = list(pool.map(self.read, paths))
        places: dict[str, str] = {}
        for path, content in zip(paths, contents, strict=True):
            if content:
                table = path.removeprefix(f"{NOTES}/").replace("/", ".")
                places[table] = parse_location_note(content)
        return places

    def as_noted(self) -> Lake:
        """Return the lake with the noted locations, for readers without the configuration."""
        locations = [Location(table, literal_template(place)) for table, place in self.noted_locations().items()]
        return Lake.at(self.root, self.options, tuple(locations))

    @property
    def files(self) -> fs.FileSystem:
        """Return the same files as Arrow's file system."""
        return self.store.arrow

    def open(self, table: str) -> DeltaTable | None:
        """Return the Delta table of that name, None if there is none.

        Raises DeltaError if its log cannot be read or one of the newest commits is an empty file. delta-rs takes such a
        file for a commit that changed nothing: its rows would be lost, or committed twice.
        """
        try:
            handle = DeltaTable(self.address(table), storage_options=self.delta_options(table))
        except TableNotFoundError:
            return None
        if self.on_disk(table):
            empty = self.empty_commits(table, handle.version())
            if empty:
                raise DeltaError(f"{DAMAGED_LOG} damaged: {', '.join(empty)} is empty")
        return handle

    def open_version(self, table: str, version: int) -> DeltaTable:
        """Return a version of a Delta table. Raises DeltaError if there is none, or if it cannot be read."""
        return DeltaTable(self.address(table), version=version, storage_options=self.delta_options(table))

    def empty_commits(self, table: str, version: int, since: int = 0) -> list[str]:
        """Return the names of empty files among a table's newest commits, from `since` up to `version`."""
        first = max(since, version + 1 - LOOKED_AT * (INTERVALS_ON_DISK if self.on_disk(table) else 1))
        log = f"{table.replace('.', '/')}/_delta_log"
        paths = [f"{log}/{number:020}.json" for number in range(first, version + 1)]
        return [info.base_name for info in self.files.get_file_info(paths) if info.is_file and info.size == 0]

    def table_names(self, layer: str) -> list[str]:
        """Return the names of the Delta tables of a layer, sorted."""
        entries = self.files.get_file_info(fs.FileSelector(layer, allow_not_found=True))
        names = [entry.base_name for entry in entries if entry.type is not fs.FileType.File]
        # A folder is a table if it has a log; all are asked for in one call.
        logs = self.files.get_file_info([f"{layer}/{name}/_delta_log" for name in names])
        tables: list[str] = []
        for name, log in zip(names, logs, strict=True):
            if log.type is fs.FileType.Directory:
                tables.append(f"{layer}.{name}")
        return sorted(tables)

    def every_table(self) -> list[str]:
        """Return the names of the Delta tables of all layers, sorted."""
        tables: list[str] = []
        for layer in self.layer_names():
            tables += self.table_names(layer)
        return tables

    def layer_names(self) -> list[str]:
        """Return the names of the folders that may hold tables, sorted."""
        entries = self.files.get_file_info(fs.FileSelector("", allow_not_found=True))
        names = [entry.base_name for entry in entries if entry.type is fs.FileType.Directory]
        return sorted(name for name in names if not name.startswith(("_", ".")))

    def read(self, path: str) -> bytes | None:
        """Return the content of a file below the root, None if there is none."""
        return self.store.read(path)

    def write(self, path: str, content: bytes) -> None:
        """Write a file below the root, and its folder. A crash leaves either all of the new content or the old one."""
        self.store.write(path, content)

    def create(self, path: str, content: bytes) -> bool:
        """Write a file below the root unless there is one; return whether it was written."""
        return self.store.create_if_absent(path, content) is not None

    def stamp(self, path: str) -> str | None:
        """Return a text that changes whenever a file below the root is written, None if there is no file."""
        return self.store.read_stamp(path)

    def sync(self, path: str) -> None:
        """Flush a closed file below the root to the disk; it and its name then survive a power cut."""
        self.store.sync_file(path)

    def delete(self, *paths: str) -> None:
        """Delete files below the root; those that do not exist are skipped."""
        self.store.delete(paths)

    def __getstate__(self) -> dict[str, object]:
        # A live file system cannot be pickled: each executor opens its own.
        return {"root": self.root, "options": self.options, "locations": self.locations}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)


def _complete_location(location: Location, root: str, options: dict[str, str]) -> Location:
    """Return a location with an absolute path and with options: its own, or the lake's in the same kind of storage."""
    place = location.place
    if URI_SCHEME.match(place) is None:
        # Executors may run in other folders. Braces of this one are no fields.
        place = str(Path(literal_template(str(Path.cwd())), place))
    if location.options:
        return replace(location, place=place)
    same_kind = _storage_kind(root) == _storage_kind(location.place_with_holes)
    return replace(location, place=place, options=options if same_kind else {})


def _storage_kind(place: str) -> str | None:
    """Return the kind of storage of a URI, None for a path on a disk."""
    if is_local(place):
        return None
    return STORAGE_BY_SCHEME[place.partition("://")[0]]
