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

from router.api.hookspecs import PROJECT_NAME
from router.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROUTER_DISTRIBUTION = "spark-event-router"
NATIVE_SUFFIXES = {".so", ".pyd", ".dylib"}
"""Suffixes of what Python cannot import from an archive."""
TIME_OF_FILES = (1980, 1, 1, 0, 0, 0)
"""The time of all files in archives: the earliest that a zip file can say."""


@dataclass(frozen=True)
class Shipped:
    """Archives for --py-files, and the names of distributions that have to be installed on the machines instead."""

    archives: tuple[Path, ...]
    native: tuple[str, ...]


def ship_distributions(folder: Path) -> Shipped:
    """Pack the router and every distribution that offers a plugin into a folder."""
    archives = []
    native = []
    for dist, modules in _find_distributions().items():
        files = dict(_files_in_wheel(dist, modules))
        if any(Path(name).suffix in NATIVE_SUFFIXES for name in files):
            native.append(dist.name)
            continue
        archives.append(write_zip(folder / f"{_module_name(dist.name)}-{dist.version}.zip", files))
    return Shipped(tuple(archives), tuple(native))


def write_zip(target: Path, files: Mapping[str, Path | str]) -> Path:
    """Write a zip file of names and what they hold: a file, or a text; return where it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            data = content.read_bytes() if isinstance(content, Path) else content.encode()
            # The time of the file is left out, so that equal content makes equal archives.
            archive.writestr(zipfile.ZipInfo(name, TIME_OF_FILES), data, zipfile.ZIP_DEFLATED)
    return target


def _find_distributions() -> dict[Distribution, set[str]]:
    """Return the router and the providers of plugins, with the top-level modules that they are known by."""
    try:
        router = Distribution.from_name(ROUTER_DISTRIBUTION)
    except ModuleNotFoundError:
        raise StartError(
            f"{ROUTER_DISTRIBUTION} is not installed here, so its files are not known; pip install it, or -e a checkout"
        ) from None
    modules_by_dist = {router: {"router"}}
    # Each entry point has a distribution object of its own: the name tells whether it is one that was seen.
    dists = {_module_name(router.name): router}
    for point in entry_points(group=PROJECT_NAME):
        if point.dist:
            dist = dists.setdefault(_module_name(point.dist.name), point.dist)
            modules_by_dist.setdefault(dist, set()).add(point.module.partition(".")[0])
    return modules_by_dist


def _module_name(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _files_in_wheel(dist: Distribution, modules: set[str]) -> Iterator[tuple[str, Path | str]]:
    """Yield the files of a distribution by their names in a wheel."""
    project = _checkout_folder(dist)
    if project is None:
        for file in dist.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                yield str(file), Path(str(dist.locate_file(file)))
        return
    # An editable installation lists none of its files.
    for place in _packages_of_checkout(modules, project):
        files = place.rglob("*") if place.is_dir() else [place]
        for path in files:
            if path.is_file() and path.suffix != ".pyc":
                yield str(path.relative_to(place.parent)), path
    for name in ("METADATA", "entry_points.txt"):
        text = dist.read_text(name)
        if text:
            yield f"{_module_name(dist.name)}-{dist.version}.dist-info/{name}", text


def _checkout_folder(dist: Distribution) -> Path | None:
    """Return the folder of an editable installation; None for one whose files are in place."""
    # https://packaging.python.org/en/latest/specifications/direct-url/
    origin = json.loads(dist.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlparse(origin["url"]).path)).resolve()


def _packages_of_checkout(modules: Iterable[str], project: Path) -> Iterator[Path]:
    """Yield the packages and modules of a checkout that some of them import, these included."""
    waiting = sorted(modules)
    seen = set(waiting)
    while waiting:
        spec = find_spec(waiting.pop())
        if spec is None or not spec.has_location:
            continue
        file = Path(str(spec.origin))
        if not _is_in_checkout(file, project):
            continue
        place = file.parent if spec.submodule_search_locations else file
        yield place
        imported = set(_imported_names(place)) - seen
        seen |= imported
        waiting += sorted(imported)


def _is_in_checkout(file: Path, project: Path) -> bool:
    """Say whether a file is one of a checkout, and not of what is installed in an environment below it."""
    installed = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib")}
    return project in file.resolve().parents and not installed & {*file.parents}


def _imported_names(place: Path) -> Iterator[str]:
    """Yield the top-level names of all that a package, or a module, imports."""
    files = place.rglob("*.py") if place.is_dir() else [place]
    for file in files:
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                for name in node.names:
                    yield name.name.partition(".")[0]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def configuration_files(path: Path, plugins: Iterable[Path], texts: Iterable[str]) -> dict[str, Path | str]:
    """Return a configuration, its plugin files and the files that its values name, by their names in an archive.

    `texts` are the values of the configuration. Names are relative to the nearest folder that holds all of them, so
    that ../schemas/games.proto is also found there. What an absolute path names stays where it is, and so does what
    `${file:...}` reads: it is a secret.
    """
    path = path.resolve()
    files = {path}
    for text in texts:
        file = _named_file(path.parent, text)
        if file is None:
            continue
        file = file.resolve()
        files.add(file)
        # A schema may import others of its kind, from its folder or below it.
        if file.suffix in {".proto", ".avsc"}:
            files |= {near.resolve() for near in file.parent.rglob(f"*{file.suffix}")}
    top = os.path.commonpath([file.parent for file in files])
    files_by_name: dict[str, Path | str] = {str(file.relative_to(top)): file for file in files}
    for plugin in plugins:
        files_by_name[f"plugins/{plugin.name}"] = plugin.resolve()
    return files_by_name


def _named_file(folder: Path, text: str) -> Path | None:
    """Return the file that a relative path names, if there is one."""
    # Anything else a configuration says, a query for example, is no path, and the system refuses the longest.
    if not 0 < len(text) < 1000 or not text.isprintable() or Path(text).is_absolute():
        return None
    file = folder / text
    return file if file.is_file() else None
