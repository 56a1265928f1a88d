"""The files of a lake with tables that are stored elsewhere, all under paths `layer/table/...`.

So the code that stages, commits, reads, moves and deletes files uses paths of the lake's layout for every table, and
only this module knows where the files are.
"""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pyarrow import fs

from router.storage.addresses import is_local
from router.storage.files import FILE_THREADS, Storage, files_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

NOTES = "_locations"
"""The folder of a lake with a note for each table that is stored elsewhere."""


class Found(NamedTuple):
    """A path of the lake as its storage knows it: `path` in `storage`.

    Of a table that is stored elsewhere, `outer` is its folder in the lake's layout and `inner` its folder in `storage`;
    both are empty for a table in the lake itself.
    """

    storage: Storage
    path: str
    inner: str = ""
    outer: str = ""

    def with_lake_path(self, info: fs.FileInfo) -> fs.FileInfo:
        """Return a storage's information about a file, with its path in the lake's layout."""
        if not self.outer:
            return info
        path = f"{self.outer}/{info.path.removeprefix(self.inner).strip('/')}".rstrip("/")
        return fs.FileInfo(path, info.type, size=info.size, mtime_ns=info.mtime_ns)


class LocatedFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """The files of a lake: `home` has those below its root, `place_of` gives place and options of tables elsewhere."""

    def __init__(self, home: Storage, place_of: Callable[[str], tuple[str, Mapping[str, str]] | None]) -> None:
        self.home = home
        self.place_of = place_of
        self.opened: dict[tuple[object, ...], Storage] = {}
        """By bucket or folder and options: no client uses the credentials of one table for another in its bucket."""

    @cached_property
    def arrow(self) -> fs.FileSystem:
        return fs.PyFileSystem(self)

    def find_storage(self, path: str) -> Found:
        """Return the storage and path for a path of the lake. Raises OSError if its table has no valid place."""
        layer, _, rest = path.strip("/").partition("/")
        table, _, rest = rest.partition("/")
        try:
            location = self.place_of(f"{layer}.{table}") if table else None
        except ValueError as error:
            raise FileNotFoundError(str(error)) from None
        if location is None:
            return Found(self.home, path)
        place, options = location
        root, inner = _split_place(place)
        key = (root, *sorted(options.items()))
        # `setdefault` is atomic: two threads that open the same storage share the client that came first.
        storage = self.opened.get(key) or self.opened.setdefault(key, files_at(root, options))
        return Found(storage, f"{inner}/{rest}".strip("/"), inner, f"{layer}/{table}")

    # The methods of `Storage`.

    def read(self, path: str) -> bytes | None:
        located = self.find_storage(path)
        return located.storage.read(located.path)

    def write(self, path: str, content: bytes) -> None:
        located = self.find_storage(path)
        located.storage.write(located.path, content)

    def create_if_absent(self, path: str, content: bytes) -> str | None:
        located = self.find_storage(path)
        return located.storage.create_if_absent(located.path, content)

    def replace_if_unchanged(self, path: str, content: bytes, stamp: str) -> str | None:
        located = self.find_storage(path)
        return located.storage.replace_if_unchanged(located.path, content, stamp)

    def read_stamp(self, path: str) -> str | None:
        located = self.find_storage(path)
        return located.storage.read_stamp(located.path)

    def list_stamps(self, folder: str, after: str) -> dict[str, str]:
        located = self.find_storage(folder)
        begin = self.find_storage(after).path.rstrip("/")
        if after.endswith("/"):  # `find_storage` strips the slash of a folder, and names are compared with it
            begin += "/"
        stamps = located.storage.list_stamps(located.path, begin)
        return {folder + path.removeprefix(located.path): stamp for path, stamp in stamps.items()}

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            located = self.find_storage(path)
            located.storage.delete([located.path])

    def sync_file(self, path: str) -> None:
        located = self.find_storage(path)
        located.storage.sync_file(located.path)

    # The methods of Arrow's file systems.

    def get_type_name(self) -> str:
        return "located"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        # One call for each storage, the storages at once; `index` brings the answers back into the order of the paths.
        by_storage: dict[int, list[tuple[int, Found]]] = {}
        for index, path in enumerate(paths):
            located = self.find_storage(path)
            by_storage.setdefault(id(located.storage), []).append((index, located))
        infos: dict[int, fs.FileInfo] = {}
        with ThreadPoolExecutor(FILE_THREADS) as pool:
            for numbered_infos in pool.map(_file_infos, by_storage.values()):
                infos.update(numbered_infos)
        return [infos[index] for index in range(len(paths))]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """List a folder; the root and a layer list tables that are stored elsewhere among their folders."""
        path = selector.base_dir.strip("/")
        located = self.find_storage(path)
        if located.outer or selector.recursive or "/" in path or path.startswith(NOTES):
            inner = fs.FileSelector(located.path, selector.allow_not_found, selector.recursive)
            return [located.with_lake_path(info) for info in located.storage.arrow.get_file_info(inner)]
        # The notes are also in the lake's layout, so the notes of this folder are its tables elsewhere.
        notes = self.home.arrow.get_file_info(fs.FileSelector(f"{NOTES}/{path}".strip("/"), allow_not_found=True))
        inner = fs.FileSelector(path, selector.allow_not_found or bool(notes))
        infos = {info.base_name: info for info in self.home.arrow.get_file_info(inner)}
        for noted_entry in notes:
            name = noted_entry.base_name
            if "." not in name and name not in infos:
                infos[name] = fs.FileInfo(f"{path}/{name}".strip("/"), fs.FileType.Directory)
        return list(infos.values())

    def create_dir(self, path: str, recursive: bool) -> None:
        located = self.find_storage(path)
        located.storage.arrow.create_dir(located.path, recursive=recursive)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        located = self.find_storage(path)
        return located.storage.arrow.open_input_stream(located.path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        located = self.find_storage(path)
        return located.storage.arrow.open_input_file(located.path)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        located = self.find_storage(path)
        return located.storage.arrow.open_output_stream(located.path)

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError("the router appends to no file")

    def delete_file(self, path: str) -> None:
        located = self.find_storage(path)
        located.storage.arrow.delete_file(located.path)

    def move(self, src: str, dest: str) -> None:
        source = self.find_storage(src)
        target = self.find_storage(dest)
        if source.storage is target.storage:
            source.storage.arrow.move(source.path, target.path)
            return
        self.copy_file(src, dest)
        self.delete_file(src)

    def copy_file(self, src: str, dest: str) -> None:
        source = self.find_storage(src)
        target = self.find_storage(dest)
        if source.storage is target.storage:
            source.storage.arrow.copy_file(source.path, target.path)
            return
        with (
            source.storage.arrow.open_input_stream(source.path) as source_stream,
            target.storage.arrow.open_output_stream(target.path) as target_stream,
        ):
            shutil.copyfileobj(source_stream, target_stream, 8 << 20)

    def delete_dir(self, path: str) -> None:
        located = self.find_storage(path)
        located.storage.arrow.delete_dir(located.path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        located = self.find_storage(path)
        located.storage.arrow.delete_dir_contents(located.path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("the router does not empty a lake")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = None  # type: ignore[assignment]


def _file_infos(numbered_paths: list[tuple[int, Found]]) -> list[tuple[int, fs.FileInfo]]:
    """Return the information of one storage about files, each with its number."""
    storage = numbered_paths[0][1].storage
    try:
        infos = storage.arrow.get_file_info([located.path for _, located in numbered_paths])
    except FileNotFoundError:  # there is no such bucket, so no file in it
        infos = [fs.FileInfo(located.path, fs.FileType.NotFound) for _, located in numbered_paths]
    return [(index, located.with_lake_path(info)) for (index, located), info in zip(numbered_paths, infos, strict=True)]


def _split_place(place: str) -> tuple[str, str]:
    """Split a place into its bucket, or the folder above it, and the rest: tables of one bucket share a client."""
    if is_local(place):
        folder, _, name = place.rpartition("/")
        return folder or "/", name
    scheme, _, rest = place.partition("://")
    bucket, _, folder = rest.partition("/")
    return f"{scheme}://{bucket}", folder


def note_path(table: str) -> str:
    """Return the path of the note about a table's place."""
    return f"{NOTES}/{table.replace('.', '/', 1)}"


def parse_location_note(content: bytes) -> str:
    """Return the place that a note contains."""
    return str(json.loads(content)["place"])


def format_location_note(place: str) -> bytes:
    """Return the content of the note about a place."""
    return json.dumps({"place": place}).encode()
