"""Where tables live: names to addresses, and the file system beneath them. Which names may be tables: table_names."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from router import storage
from router.addresses import is_local, normalized

DAMAGED_LOG = "its log is"
"""What stands in the error of a table of whose log a file is damaged."""
LOOKED_AT = 20
"""The newest files of a table's log that must not be empty when it is opened: as many as there are between two
checkpoints of a table made here. Both Delta libraries take an empty commit for one that changed nothing."""


@dataclass(frozen=True)
class Lake:
    """A folder or URI of tables: the table `layer.name` lives at `root/layer/name`.

    `options` are the storage's, as delta-rs and obstore both take them: a table and its files are always reached with
    the same rights. They may hold secrets and stay out of `repr`.
    """

    root: str
    options: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def at(cls, place: str, options: dict[str, str] | None = None) -> Lake:
        """Return the lake at a path (made absolute) or URI."""
        return cls(normalized(place), options or {})

    @property
    def local(self) -> bool:
        """Say whether the lake is on a mounted file system."""
        return is_local(self.root)

    def address(self, table: str) -> str:
        """Return the path or URI of `layer.name`. The name must have passed the naming rule."""
        return f"{self.root}/{table.replace('.', '/')}"

    def for_spark(self, path: str = "") -> str:
        """Return the address by which Spark knows the root, or a path below it."""
        return storage.for_spark(f"{self.root}/{path}" if path else self.root, self.options)

    def spark_address(self, table: str) -> str:
        """Return the address by which Spark knows `layer.name`."""
        return self.for_spark(table.replace(".", "/"))

    @cached_property
    def store(self) -> storage.Storage:
        """Return the files below the root. Works on driver and executors."""
        return storage.files_at(self.root, self.options)

    @property
    def delta_options(self) -> dict[str, str] | None:
        """Return the options as delta-rs takes them; they hold secrets."""
        return storage.for_delta(self.root, self.options)

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
            found = DeltaTable(self.address(table), storage_options=self.delta_options)
        except TableNotFoundError:
            return None
        if self.local and (empty := self.empty_commits(table, found.version())):
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
        return {"root": self.root, "options": self.options}  # a live file system does not travel to executors

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
