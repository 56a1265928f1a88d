"""The files of a lake some of whose tables lie elsewhere: at `layer/table/...` as all others are, wherever that is.

So whoever stages, commits, reads, moves and deletes files goes by a table's name, and does not ask where it lies.
"""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pyarrow import fs

from router.addresses import is_local
from router.storage import THREADS, Storage, files_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

NOTES = "_locations"
"""The folder of a lake in which it is written where tables lie that are not in its own layout."""


class Found(NamedTuple):
    """A path as its storage knows it: `inner` stands for what the lake calls `outer`."""

    storage: Storage
    path: str
    inner: str = ""
    outer: str = ""

    def info(self, info: fs.FileInfo) -> fs.FileInfo:
        """Return what a storage says of a file, under its path in the lake."""
        if not self.outer:
            return info
        path = f"{self.outer}/{info.path.removeprefix(self.inner).strip('/')}".rstrip("/")
        return fs.FileInfo(path, info.type, size=info.size, mtime_ns=info.mtime_ns)


class LocatedFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """Files below the root of a lake, and those of tables that `place_of` knows another place and options for."""

    def __init__(self, home: Storage, place_of: Callable[[str], tuple[str, Mapping[str, str]] | None]) -> None:
        self.home, self.place_of = home, place_of
        self.opened: dict[tuple[object, ...], Storage] = {}
        """By bucket or folder and options: no client acts with the key of one table for another in its bucket."""

    @cached_property
    def arrow(self) -> fs.FileSystem:
        return fs.PyFileSystem(self)

    def at(self, path: str) -> Found:
        """Return where a path leads. Raises OSError where its table can have no place."""
        layer, _, rest = path.strip("/").partition("/")
        table, _, rest = rest.partition("/")
        try:
            place = self.place_of(f"{layer}.{table}") if table else None
        except ValueError as error:
            raise FileNotFoundError(str(error)) from None
        if place is None:
            return Found(self.home, path)
        root, inner = _divided(place[0])
        key = (root, *sorted(place[1].items()))
        storage = self.opened.get(key) or self.opened.setdefault(key, files_at(root, place[1]))
        return Found(storage, f"{inner}/{rest}".strip("/"), inner, f"{layer}/{table}")

    # What the router asks of a storage.

    def read(self, path: str) -> bytes | None:
        found = self.at(path)
        return found.storage.read(found.path)

    def write(self, path: str, content: bytes) -> None:
        found = self.at(path)
        found.storage.write(found.path, content)

    def create(self, path: str, content: bytes) -> str | None:
        found = self.at(path)
        return found.storage.create(found.path, content)

    def replace(self, path: str, content: bytes, stamp: str) -> str | None:
        found = self.at(path)
        return found.storage.replace(found.path, content, stamp)

    def stamp(self, path: str) -> str | None:
        found = self.at(path)
        return found.storage.stamp(found.path)

    def stamps(self, folder: str, after: str) -> dict[str, str]:
        found, begin = self.at(folder), self.at(after)
        stamps = found.storage.stamps(found.path, begin.path.rstrip("/") + ("/" if after.endswith("/") else ""))
        return {folder + path.removeprefix(found.path): stamp for path, stamp in stamps.items()}

    def delete(self, paths: Iterable[str]) -> None:
        for found in map(self.at, paths):
            found.storage.delete([found.path])

    def sync(self, path: str) -> None:
        found = self.at(path)
        found.storage.sync(found.path)

    # What Arrow asks of a file system.

    def get_type_name(self) -> str:
        return "located"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        by_storage: dict[int, list[tuple[int, Found]]] = {}
        for index, path in enumerate(paths):
            found = self.at(path)
            by_storage.setdefault(id(found.storage), []).append((index, found))
        with ThreadPoolExecutor(THREADS) as pool:
            infos = dict(pair for part in pool.map(_infos, by_storage.values()) for pair in part)
        return [infos[index] for index in range(len(paths))]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """List a folder; what holds tables has those that lie elsewhere among its folders."""
        path = selector.base_dir.strip("/")
        found = self.at(path)
        if found.outer or selector.recursive or "/" in path or path.startswith(NOTES):
            inner = fs.FileSelector(found.path, selector.allow_not_found, selector.recursive)
            return [found.info(info) for info in found.storage.arrow.get_file_info(inner)]
        noted = self.home.arrow.get_file_info(fs.FileSelector(f"{NOTES}/{path}".strip("/"), allow_not_found=True))
        inner = fs.FileSelector(path, selector.allow_not_found or bool(noted))
        infos = {info.base_name: info for info in self.home.arrow.get_file_info(inner)}
        for name in {info.base_name for info in noted if "." not in info.base_name} - infos.keys():
            infos[name] = fs.FileInfo(f"{path}/{name}".strip("/"), fs.FileType.Directory)
        return list(infos.values())

    def create_dir(self, path: str, recursive: bool) -> None:
        found = self.at(path)
        found.storage.arrow.create_dir(found.path, recursive=recursive)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        found = self.at(path)
        return found.storage.arrow.open_input_stream(found.path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        found = self.at(path)
        return found.storage.arrow.open_input_file(found.path)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        found = self.at(path)
        return found.storage.arrow.open_output_stream(found.path)

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError("the router appends to no file")

    def delete_file(self, path: str) -> None:
        found = self.at(path)
        found.storage.arrow.delete_file(found.path)

    def move(self, src: str, dest: str) -> None:
        one, other = self.at(src), self.at(dest)
        if one.storage is other.storage:
            one.storage.arrow.move(one.path, other.path)
        else:
            self.copy_file(src, dest)
            self.delete_file(src)

    def copy_file(self, src: str, dest: str) -> None:
        one, other = self.at(src), self.at(dest)
        if one.storage is other.storage:
            one.storage.arrow.copy_file(one.path, other.path)
            return
        with (
            one.storage.arrow.open_input_stream(one.path) as source,
            other.storage.arrow.open_output_stream(other.path) as target,
        ):
            shutil.copyfileobj(source, target, 8 << 20)

    def delete_dir(self, path: str) -> None:
        found = self.at(path)
        found.storage.arrow.delete_dir(found.path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        found = self.at(path)
        found.storage.arrow.delete_dir_contents(found.path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("the router does not empty a lake")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = None  # type: ignore[assignment]


def _infos(asked: list[tuple[int, Found]]) -> list[tuple[int, fs.FileInfo]]:
    """Return what one storage says of files, each with its number; a bucket that is not there has none."""
    storage = asked[0][1].storage
    try:
        infos = storage.arrow.get_file_info([found.path for _, found in asked])
    except FileNotFoundError:
        infos = [fs.FileInfo(found.path, fs.FileType.NotFound) for _, found in asked]
    return [(index, found.info(info)) for (index, found), info in zip(asked, infos, strict=True)]


def _divided(place: str) -> tuple[str, str]:
    """Return the bucket, or the folder above, and the rest: tables of one bucket share a client."""
    if is_local(place):
        folder, _, name = place.rpartition("/")
        return folder or "/", name
    scheme, _, rest = place.partition("://")
    bucket, _, folder = rest.partition("/")
    return f"{scheme}://{bucket}", folder


def note_path(table: str) -> str:
    """Return the file of a lake that says where a table lies."""
    return f"{NOTES}/{table.replace('.', '/', 1)}"


def noted(content: bytes) -> str:
    """Return the place that such a file names."""
    return str(json.loads(content)["place"])


def note(place: str) -> bytes:
    """Return the content of such a file."""
    return json.dumps({"place": place}).encode()
