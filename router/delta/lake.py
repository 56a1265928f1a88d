"""Where tables live: names to addresses, and the file system beneath them. Which names may be tables: table_names.

`layer.table` lies at ROOT/layer/table, or where a `location` puts it. What has a place of its own is noted in the lake,
so that who reads it without the configuration finds it as well, and a place that changes is noticed at the start.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from router import storage
from router.addresses import SCHEMES, is_local, normalized
from router.delta.located_files import NOTES, LocatedFiles, note, note_path, noted
from router.errors import StartError
from router.locations import Location
from router.table_names import usable

DAMAGED_LOG = "its log is"
"""What stands in the error of a table of whose log a file is damaged."""
LOOKED_AT = 20
"""The newest files of a table's log that must not be empty when it is opened: as many as there are between two
checkpoints of a table made here. Both Delta libraries take an empty commit for one that changed nothing."""


@dataclass(frozen=True)
class Lake:
    """A folder or URI of tables: the table `layer.name` lives at `root/layer/name`, or where a location puts it.

    `options` are the storage's, as delta-rs and obstore both take them: a table and its files are always reached with
    the same rights. They may hold secrets and stay out of `repr`. Paths below the root are those of the lake's layout,
    for all tables: `files` and `store` go to where a table's are.
    """

    root: str
    options: dict[str, str] = field(default_factory=dict, repr=False)
    locations: tuple[Location, ...] = ()

    @classmethod
    def at(cls, place: str, options: dict[str, str] | None = None, locations: tuple[Location, ...] = ()) -> Lake:
        """Return the lake at a path (made absolute) or URI; a location without options shares those of its kind."""
        root = normalized(place)
        shared = (_complete(one, root, options or {}) for one in locations)
        return cls(root, options or {}, tuple(shared))

    @property
    def local(self) -> bool:
        """Say whether the lake is on a mounted file system; single tables may lie elsewhere."""
        return is_local(self.root)

    def on_disk(self, table: str) -> bool:
        """Say whether a table is on a mounted file system."""
        return is_local(self.address(table))

    def located(self, table: str) -> tuple[str, dict[str, str]] | None:
        """Return place and options of a table that is not in the lake's layout. Raises ValueError: it can have none."""
        if not self.locations or not usable(table) or table != table.lower():
            return None
        found = ((one.of(table), one.options) for one in self.locations)
        return next(((place, options) for place, options in found if place), None)

    def _place(self, path: str) -> tuple[str, dict[str, str]]:
        """Return the address of a path of the lake's layout, and the options that reach it."""
        layer, _, rest = path.partition("/")
        name, _, rest = rest.partition("/")
        if name and (found := self.located(f"{layer}.{name}")):
            return f"{found[0]}/{rest}" if rest else found[0], found[1]
        return f"{self.root}/{path}", self.options

    def address(self, table: str) -> str:
        """Return the path or URI of `layer.name`. The name must have passed the naming rule."""
        return self._place(table.replace(".", "/"))[0]

    def for_spark(self, path: str = "") -> str:
        """Return the address by which Spark knows the root, or a path below it."""
        return storage.for_spark(*(self._place(path) if path else (self.root, self.options)))

    def spark_address(self, table: str) -> str:
        """Return the address by which Spark knows `layer.name`."""
        return self.for_spark(table.replace(".", "/"))

    @cached_property
    def store(self) -> storage.Storage:
        """Return the files below the root. Works on driver and executors."""
        home = storage.files_at(self.root, self.options)
        return LocatedFiles(home, self.located) if self.locations else home

    def delta_options(self, table: str) -> dict[str, str] | None:
        """Return the options for a table as delta-rs takes them; they hold secrets."""
        return storage.for_delta(*self._place(table.replace(".", "/")))

    def note_location(self, table: str) -> None:
        """Note where a table lies that is not in the lake's layout, before its first file. Raises OSError.

        A place that would not keep a table's commits apart is refused, once: when it is not noted yet.
        """
        if not self.locations or table in self._noted:
            return
        try:
            found = self.located(table)
            if found and self.read(note_path(table)) is None:
                storage.probe(*found)
                self.create(note_path(table), note(found[0]))
        except (StartError, ValueError) as error:
            raise OSError(str(error)) from None
        self._noted.add(table)

    @cached_property
    def _noted(self) -> set[str]:
        return set()

    def noted_locations(self) -> dict[str, str]:
        """Return the places of tables that were noted, by table."""
        selector = fs.FileSelector(NOTES, allow_not_found=True, recursive=True)
        paths = [info.path for info in self.files.get_file_info(selector) if info.is_file and not info.extension]
        with ThreadPoolExecutor(storage.THREADS) as pool:
            found = zip(paths, pool.map(self.read, paths), strict=True)
            return {path.removeprefix(f"{NOTES}/").replace("/", "."): noted(text) for path, text in found if text}

    def as_noted(self) -> Lake:
        """Return the lake with the locations that were noted: for who reads it without the configuration."""
        return Lake.at(self.root, self.options, tuple(Location(*pair) for pair in self.noted_locations().items()))

    @property
    def files(self) -> fs.FileSystem:
        """Return the same files as Arrow's file system."""
        return self.store.arrow

    def open(self, table: str) -> DeltaTable | None:
        """Return the Delta table of that name, or None where there is none.

        Raises DeltaError where its log cannot be read, and where one of the newest files is empty: delta-rs takes that
        for a commit that changed nothing, and what it had committed would be lost, or come twice.
        """
        try:
            found = DeltaTable(self.address(table), storage_options=self.delta_options(table))
        except TableNotFoundError:
            return None
        if self.on_disk(table) and (empty := self.empty_commits(table, found.version())):
            raise DeltaError(f"{DAMAGED_LOG} damaged: {', '.join(empty)} is empty")
        return found

    def empty_commits(self, table: str, version: int, since: int = 0) -> list[str]:
        """Return those of the newest files of a table's log that are empty, between two versions."""
        newest = range(max(since, version + 1 - LOOKED_AT), version + 1)
        paths = [f"{table.replace('.', '/')}/_delta_log/{number:020}.json" for number in newest]
        return [info.base_name for info in self.files.get_file_info(paths) if info.is_file and info.size == 0]

    def tables(self, layer: str) -> list[str]:
        """Return the names of the Delta tables of a layer, sorted."""
        found = self.files.get_file_info(fs.FileSelector(layer, allow_not_found=True))
        names = [entry.base_name for entry in found if entry.type is not fs.FileType.File]
        logs = self.files.get_file_info([f"{layer}/{name}/_delta_log" for name in names])
        return sorted(
            f"{layer}.{name}" for name, log in zip(names, logs, strict=True) if log.type is fs.FileType.Directory
        )

    def every_table(self) -> list[str]:
        """Return the names of the Delta tables of all layers, sorted."""
        return [table for layer in self.layers() for table in self.tables(layer)]

    def layers(self) -> list[str]:
        """Return the names of the folders that may hold tables, sorted."""
        found = self.files.get_file_info(fs.FileSelector("", allow_not_found=True))
        names = [entry.base_name for entry in found if entry.type is fs.FileType.Directory]
        return sorted(name for name in names if not name.startswith(("_", ".")))

    def read(self, path: str) -> bytes | None:
        """Return the content of a file below the root, or None where there is none."""
        return self.store.read(path)

    def write(self, path: str, content: bytes) -> None:
        """Write a file below the root so that a crash leaves either all of it or what was there; make its folder."""
        self.store.write(path, content)

    def create(self, path: str, content: bytes) -> bool:
        """Write a file below the root unless there is one; say whether it was written."""
        return self.store.create(path, content) is not None

    def stamp(self, path: str) -> str | None:
        """Return what changes whenever a file below the root is written, or None where there is none."""
        return self.store.stamp(path)

    def sync(self, path: str) -> None:
        """Return when a closed file below the root, and its name, survive a power cut."""
        self.store.sync(path)

    def delete(self, *paths: str) -> None:
        """Delete files below the root, those that are there."""
        self.store.delete(paths)

    def __getstate__(self) -> dict[str, object]:
        return {
            "root": self.root,
            "options": self.options,
            "locations": self.locations,
        }  # a live file system does not travel to executors

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)


def native_files(table: DeltaTable) -> fs.FileSystem | None:
    """Return the files of a table on a disk as Arrow opens them itself, to read its rows; None for one elsewhere.

    delta-rs's own are Python objects: a thread of Arrow that lets go of one while Python ends takes the process down,
    after everything was said (`terminate called without an active exception`, exit code 134; seen in 3 of 100 calls).
    """
    scheme, _, place = table.table_uri.rpartition("://")
    return fs.SubTreeFileSystem(unquote(place), fs.LocalFileSystem()) if scheme in ("", "file") else None


def _complete(location: Location, root: str, options: dict[str, str]) -> Location:
    """Return a location with its path made absolute, and the options of a lake that is in the same kind of storage."""
    place = normalized(location.place)
    kinds = [None if is_local(at) else SCHEMES[at.partition("://")[0]] for at in (root, place)]
    return replace(location, place=place, options=location.options or (options if kinds[0] == kinds[1] else {}))
