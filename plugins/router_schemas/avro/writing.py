"""Write one record from plain data, as a producer does that has the schema. For tests of configurations.

Source of the bytes: Apache Avro 1.12 specification, "Binary Encoding".
"""

from __future__ import annotations

import struct
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from router_schemas.avro.schema import Array, Choice, Enum, MapOf, Primitive, Record, Type
from router_schemas.pieces import varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from router_schemas.avro.schema import Definition, Logical, Schema

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_UNITS = {"millis": timedelta(milliseconds=1), "micros": timedelta(microseconds=1)}


def written(event: Any, schema: Schema) -> bytes:
    """Return the bytes of a value of plain data.

    Dates and timestamps may be ISO 8601 text, bytes and fixed are text in UTF-8, all other logical types are given as
    the type beneath. A field that is not given is null. Of a union the first branch counts that takes the value.
    Raises ValueError for what the schema does not take.
    """
    return _value(event, schema.root, schema.types, "")


def _value(value: Any, kind: Type, types: Mapping[str, Definition], where: str) -> bytes:
    if isinstance(kind, Primitive):
        return _primitive(value, kind, where)
    if isinstance(kind, Choice):
        return _branch(value, kind, types, where)
    if isinstance(kind, Array):
        return _block(_value(item, kind.items, types, where) for item in _given(value, list, where))
    if isinstance(kind, MapOf):
        pairs = _given(value, dict, where).items()
        return _block(_sized(str(key).encode()) + _value(item, kind.values, types, where) for key, item in pairs)
    return _named(value, types[kind.name], types, where)


def _named(value: Any, named: Definition, types: Mapping[str, Definition], where: str) -> bytes:
    if isinstance(named, Record):
        return _record(_given(value, dict, where), named, types, where)
    if isinstance(named, Enum):
        if value not in named.symbols:
            raise _fault(where, value, named.name)
        return _long(named.symbols.index(value))
    content = str(_given(value, str, where)).encode()
    if len(content) != named.size:
        raise _fault(where, value, f"{named.name} of {named.size} bytes")
    return content


def _record(event: dict[str, Any], record: Record, types: Mapping[str, Definition], where: str) -> bytes:
    unknown = event.keys() - {field.name for field in record.fields}
    if unknown:
        raise ValueError(f"{record.name} has no field {', '.join(sorted(unknown))}")
    return b"".join(
        _value(event.get(field.name), field.type, types, f"{where}.{field.name}" if where else field.name)
        for field in record.fields
    )


def _branch(value: Any, kind: Choice, types: Mapping[str, Definition], where: str) -> bytes:
    for number, branch in enumerate(kind.branches):
        try:
            return _long(number) + _value(value, branch, types, where)
        except ValueError as fault:
            reason = fault
    raise reason


def _primitive(value: Any, kind: Primitive, where: str) -> bytes:
    takes, write = _WRITERS[kind.name]
    value = _beneath(value, kind.logical)
    if isinstance(value, bool) != (kind.name == "boolean") or not isinstance(value, takes):
        raise _fault(where, value, kind.name)
    return write(value)


def _beneath(value: Any, logical: Logical | None) -> Any:
    """Return the number of a date or timestamp that is given as text."""
    if logical is None or not isinstance(value, str):
        return value
    if logical.name == "date":
        return (date.fromisoformat(value) - _EPOCH.date()).days
    unit = _UNITS.get(logical.name.rpartition("-")[2])
    if "timestamp" not in logical.name or unit is None:
        return value
    moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
    return ((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)) - _EPOCH) // unit


def _given(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise _fault(where, value, kind.__name__)
    return value


def _fault(where: str, value: Any, kind: str) -> ValueError:
    return ValueError(f"{where or 'the event'}: {value!r} is no {kind}")


def _block(items: Iterable[bytes]) -> bytes:
    """Encode the items of an array or a map as one block, and the empty one that ends it."""
    found = list(items)
    return (_long(len(found)) + b"".join(found) if found else b"") + _long(0)


def _sized(content: bytes) -> bytes:
    return _long(len(content)) + content


def _long(number: int) -> bytes:
    """Encode a whole number, seven bits a byte, the sign in the lowest."""
    return varint(number << 1 if number >= 0 else ~(number << 1))


_WRITERS: dict[str, tuple[type | tuple[type, ...], Callable[[Any], bytes]]] = {
    "null": (type(None), lambda value: b""),
    "boolean": (bool, lambda value: bytes([value])),
    "int": (int, _long),
    "long": (int, _long),
    "float": ((int, float), lambda value: struct.pack("<f", value)),
    "double": ((int, float), lambda value: struct.pack("<d", value)),
    "bytes": (str, lambda value: _sized(value.encode())),
    "string": (str, lambda value: _sized(value.encode())),
}
