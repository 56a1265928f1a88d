"""Find the decimal with too many digits in a value that Spark's from_avro has refused. For tasks.

Avro checks no precision when a value is written, and Spark's decimals have no place for more digits: from_avro gives
null, as for a value that is broken. Here the bytes of such a value are walked once more, only to name the field.
Source: Apache Avro 1.12 specification, "Binary encoding" and "Decimal".
"""

from __future__ import annotations

from functools import lru_cache

from router_schemas.avro.model import (
    Array,
    AvroRecord,
    AvroSchema,
    Enum,
    Fixed,
    Logical,
    MapOf,
    Primitive,
    Ref,
    Type,
    branch_name,
    branches_of,
)
from router_schemas.avro.parser import parse_text

MOST_ITEMS = 1_000_000
"""Items of arrays and maps that are looked at in one value: those without bytes may be claimed without end."""


def too_many_digits(value: bytes, writer: str, reader: str) -> str | None:
    """Return which field of a value has more digits than its reader takes; None if none has, or the value is broken.

    The schemas are those of envelopes: records whose first field has the type of the value, with the same names in
    both. Runs on executors; never raises.
    """
    schema = _parse_schema(writer)
    walk = _Walk(value, schema, _decimals_by_path(reader))
    try:
        walk.pass_over(_first_field(schema), "")
    except (ValueError, IndexError, RecursionError):
        return None
    return walk.fault


@lru_cache(maxsize=64)
def _parse_schema(text: str) -> AvroSchema:
    return parse_text(text)


def _first_field(schema: AvroSchema) -> Type:
    """Return the type of the value in an envelope."""
    assert isinstance(schema.root, Ref)
    envelope = schema.types[schema.root.name]
    assert isinstance(envelope, AvroRecord)
    return envelope.fields[0].type


@lru_cache(maxsize=64)
def _decimals_by_path(reader: str) -> dict[tuple[str, str], Logical]:
    """Return the decimals of a reader's schema: by their path, and by the name of their type in a union."""
    schema = _parse_schema(reader)
    decimals: dict[tuple[str, str], Logical] = {}

    def collect_decimals(kind: Type, path: str) -> None:
        for branch in branches_of(kind):
            definition = schema.types[branch.name] if isinstance(branch, Ref) else branch
            if isinstance(definition, AvroRecord):
                for field in definition.fields:
                    collect_decimals(field.type, f"{path}.{field.name}".removeprefix("."))
            elif isinstance(branch, Array):
                collect_decimals(branch.items, f"{path}[]")
            elif isinstance(branch, MapOf):
                collect_decimals(branch.values, f"{path}{{}}")
            elif isinstance(definition, (Primitive, Fixed)):
                logical = definition.logical
                if logical is not None and logical.name == "decimal":
                    decimals[path, branch_name(branch)] = logical

    collect_decimals(_first_field(schema), "")
    return decimals


class _Walk:
    """The walk through one value; `fault` is about the first decimal with too many digits."""

    def __init__(self, value: bytes, schema: AvroSchema, decimals: dict[tuple[str, str], Logical]) -> None:
        self.value = value
        self.types = schema.types
        self.decimals = decimals
        self.place = 0
        self.items = 0
        self.fault: str | None = None

    def pass_over(self, kind: Type, path: str) -> None:
        """Pass over a value of a type; raise ValueError or IndexError if its bytes are none."""
        match kind:
            case Primitive(name):
                self.pass_over_primitive(name, path)
            case Array(items):
                self.pass_over_items(items, f"{path}[]", has_keys=False)
            case MapOf(values):
                self.pass_over_items(values, f"{path}{{}}", has_keys=True)
            case Ref(name):
                self.pass_over_named(name, path)
            case _:
                branch = self.read_number()
                if branch < 0:
                    raise ValueError("a union has no such branch")
                self.pass_over(kind.branches[branch], path)

    def pass_over_named(self, name: str, path: str) -> None:
        """Pass over a record, an enum or a fixed."""
        match self.types[name]:
            case AvroRecord(_, fields):
                for field in fields:
                    self.pass_over(field.type, f"{path}.{field.name}".removeprefix("."))
            case Enum():
                self.read_number()
            case Fixed(_, size):
                self.check_digits(self.read_bytes(size), path, name)

    def pass_over_primitive(self, name: str, path: str) -> None:
        """Pass over a value of a primitive type."""
        match name:
            case "boolean":
                self.read_bytes(1)
            case "int" | "long":
                self.read_number()
            case "float":
                self.read_bytes(4)
            case "double":
                self.read_bytes(8)
            case "bytes" | "string":
                self.check_digits(self.read_bytes(self.read_number()), path, name)

    def pass_over_items(self, kind: Type, path: str, *, has_keys: bool) -> None:
        """Pass over the blocks of an array or a map."""
        while True:
            count = self.read_number()
            if count == 0:
                return
            if count < 0:  # the bytes of the block follow the count
                count = -count
                self.read_number()
            self.items += count
            if self.items > MOST_ITEMS:
                raise ValueError("there are too many items")
            for _ in range(count):
                if has_keys:
                    self.read_bytes(self.read_number())
                self.pass_over(kind, path)

    def check_digits(self, unscaled: bytes, path: str, name: str) -> None:
        """Note a decimal that has more digits than its type allows."""
        decimal = self.decimals.get((path, name))
        if self.fault or decimal is None:
            return
        if abs(int.from_bytes(unscaled, "big", signed=True)) >= 10**decimal.precision:
            kind = f"decimal({decimal.precision}, {decimal.scale})"
            self.fault = f"field {path}: the number has more digits than {kind} allows"

    def read_number(self) -> int:
        """Return the next number: a zigzag varint of at most 64 bits."""
        bits = 0
        for shift in range(0, 70, 7):
            byte = self.value[self.place]
            self.place += 1
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (bits >> 1) ^ -(bits & 1)
        raise ValueError("a number is too long")

    def read_bytes(self, size: int) -> bytes:
        """Return the next bytes."""
        end = self.place + size
        if size < 0 or end > len(self.value):
            raise ValueError("the value ends too early")
        taken = self.value[self.place : end]
        self.place = end
        return taken
