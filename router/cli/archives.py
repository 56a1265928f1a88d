"""Pack what travels to a cluster: distributions as zip files that Python imports from, a configuration with its files.

Packed from what is installed, or from a checkout that is installed as editable. Equal content makes equal files.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sysconfig
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from router.errors import StartError
from router.hookspecs import PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROUTER = "spark-event-router"
NATIVE = {".so", ".pyd", ".dylib"}
"""Suffixes of what Python cannot import from an archive."""
WHEN = (1980, 1, 1, 0, 0, 0)
"""The time of all files in archives: the earliest that a zip file can say."""


@dataclass(frozen=True)
class Shipped:
    """Archives for --py-files, and the names of distributions that have to be installed on the machines instead."""

    archives: tuple[Path, ...]
    native: tuple[str, ...]


def ship_distributions(folder: Path) -> Shipped:
    """Pack the router and every distribution that offers a plugin into a folder."""
    archives, native = [], []
    for dist, modules in _distributions().items():
        found = dict(_files(dist, modules))
        if any(Path(name).suffix in NATIVE for name in found):
            native.append(dist.name)
        else:
            archives.append(pack(folder / f"{_plain(dist.name)}-{dist.version}.zip", found))
    return Shipped(tuple(archives), tuple(native))


def pack(target: Path, files: Mapping[str, Path | str]) -> Path:
    """Write a zip file of names and what they hold: a file, or a text; return where it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            data = content.read_bytes() if isinstance(content, Path) else content.encode()
            archive.writestr(zipfile.ZipInfo(name, WHEN), data, zipfile.ZIP_DEFLATED)
    return target


def _distributions() -> dict[Distribution, set[str]]:
    """Return the router and the providers of plugins, with the top-level modules that they are known by."""
    try:
        router = Distribution.from_name(ROUTER)
    except ModuleNotFoundError:
        raise StartError(
            f"{ROUTER} is not installed here, so nobody knows what belongs to it; pip install it, or -e a checkout"
        ) from None
    found, known = {router: {"router"}}, {_plain(router.name): router}
    for point in entry_points(group=PROJECT):
        if point.dist:
            dist = known.setdefault(_plain(point.dist.name), point.dist)
            found.setdefault(dist, set()).add(point.module.partition(".")[0])
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _files(dist: Distribution, modules: set[str]) -> Iterator[tuple[str, Path | str]]:
    """Return the files of a distribution by their names in a wheel."""
    project = _checkout(dist)
    if project is None:
        for file in dist.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                yield str(file), Path(str(dist.locate_file(file)))
        return
    for place in _packages(modules, project):
        files = place.rglob("*") if place.is_dir() else [place]
        for path in files:
            if path.is_file() and path.suffix != ".pyc":
                yield str(path.relative_to(place.parent)), path
    for name in ("METADATA", "entry_points.txt"):
        if text := dist.read_text(name):
            yield f"{_plain(dist.name)}-{dist.version}.dist-info/{name}", text


def _checkout(dist: Distribution) -> Path | None:
    """Return the folder of an editable installation; None for one whose files are in place."""
    about = json.loads(dist.read_text("direct_url.json") or "{}")
    if not about.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlparse(about["url"]).path)).resolve()


def _packages(modules: Iterable[str], project: Path) -> Iterator[Path]:
    """Return the packages and modules of a checkout that some of them import, these included."""
    waiting, seen = sorted(modules), set(modules)
    while waiting:
        spec = find_spec(waiting.pop())
        if spec is None or not spec.has_location or not _within(file := Path(str(spec.origin)), project):
            continue
        place = file.parent if spec.submodule_search_locations else file
        yield place
        new = set(_imported(place)) - seen
        seen |= new
        waiting += sorted(new)


def _within(file: Path, project: Path) -> bool:
    """Say whether a file is one of a checkout, and not of what is installed in an environment below it."""
    installed = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib")}
    return project in file.resolve().parents and not installed & {*file.parents}


def _imported(place: Path) -> Iterator[str]:
    """Return the top-level names of all that a package imports."""
    for file in place.rglob("*.py") if place.is_dir() else [place]:
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (name.name.partition(".")[0] for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def configuration_files(path: Path, plugins: Iterable[Path], texts: Iterable[str]) -> dict[str, Path | str]:
    """Return a configuration, its plugin files and the files that its values name, by their names in an archive.

    `texts` are the values of the configuration. Names are relative to the nearest folder that holds all of them, so
    that ../schemas/games.proto is found there, too. What an absolute path names stays where it is, and so does what
    `${file:...}` reads: it is a secret.
    """
    named = {place.resolve() for text in texts if (place := _named(path.resolve().parent, text))}
    beside = {near.resolve() for file in _importing(named) for near in file.parent.rglob(f"*{file.suffix}")}
    files = {path.resolve(), *named, *beside}
    top = os.path.commonpath([file.parent for file in files])
    found: dict[str, Path | str] = {str(file.relative_to(top)): file for file in files}
    return {**found, **{f"plugins/{file.name}": file.resolve() for file in plugins}}


def _named(folder: Path, text: str) -> Path | None:
    """Return the file that a relative path names, where there is one."""
    if not 0 < len(text) < 1000 or not text.isprintable() or Path(text).is_absolute():
        return None
    place = folder / text
    return place if place.is_file() else None


def _importing(files: Iterable[Path]) -> set[Path]:
    """Return the files whose kind may import others of their kind, beside or below them."""
    return {file for file in files if file.suffix in {".proto", ".avsc"}}
