"""Supply the files that every .proto may import without registering them, from Python's own modules."""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from types import ModuleType

_GOOGLE = re.compile(r"google/(?:protobuf|type|api|rpc)/[a-z0-9_]+(?:/[a-z0-9_]+)?\.proto")
_CONFLUENT = re.compile(r"confluent/(?:meta|types?/[a-z]+)\.proto")


@lru_cache(maxsize=1024)
def well_known(name: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return the descriptor of a well-known file, or None where Python has none by that name.

    google/protobuf/* comes with protobuf, google/type/* with googleapis-common-protos, confluent/* with
    confluent-kafka. `name` may come from a registry: only names of these forms are looked up, as modules.
    """
    stem = name.removesuffix(".proto")
    if _GOOGLE.fullmatch(name):
        module = _google(stem.replace("/", ".") + "_pb2")
    elif _CONFLUENT.fullmatch(name):
        module = _confluent(stem)
    else:
        return None
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) if module else None


def _google(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _confluent(stem: str) -> ModuleType | None:
    """Load a module of confluent-kafka by its file: its package needs extras that reading a descriptor does not."""
    package = importlib.util.find_spec("confluent_kafka")
    if package is None or package.origin is None:
        return None
    file = Path(package.origin).parent / "schema_registry" / f"{stem}_pb2.py"
    spec = importlib.util.spec_from_file_location(f"{stem.replace('/', '_')}_pb2", file) if file.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
