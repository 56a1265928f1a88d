"""Map a registered JSON Schema to columns, whatever it allows: what no column can hold is its JSON text.

A schema file that is written for the router may be refused, and its author be told. A registered one is somebody
else's, and a refusal would make dead letters of all its records. So to the table of `spark_types`
come:

| JSON Schema | Spark | decided by |
|---|---|---|
| several objects in oneOf, anyOf or allOf, or beside properties | one struct with the fields of all | core, 10.2.1 |
| integer in one of them and number in another | double | validation, 6.1.1 |
| members that only restrict: required, if, not, ... | are left aside | validation, 6.5.3 |
| other types beside each other; none; true | string: the JSON text | core, 4.3.2 |
| object without properties and without a schema of its values | string: the JSON text | core, 10.3.2 |
| array without one schema of its items | string: the JSON text | core, 10.3.1 |
| a schema within itself | string: the JSON text, where it comes again | core, 8.2.3.1 |

A text is text as it is, and everything else is JSON: `5`, `{"a":1}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyspark.sql import types as T

from router_schemas.json_schema.merge import Version, merge
from router_schemas.json_schema.spark_types import UNIONS, TypeMapping, Untyped, is_null

MOST = 200_000
"""Objects of a schema with every `$ref` written out: a few lines can name each definition twice in the next."""
TELLING = {"type", "properties", "additionalProperties", "items", "prefixItems", "const", "enum", "$ref", *UNIONS}
"""Keywords that say what a value is."""


class ColumnMapping(TypeMapping):
    """Map the places of one document to types of columns."""

    def __init__(self, document: object) -> None:
        super().__init__(document)
        self.count = 0

    def inside(self, node: object, pointer: str, trail: tuple[str, ...]) -> T.DataType:
        """Return the type of a property, of elements or of a map's values; a text where there is none."""
        try:
            return self.type_at(node, pointer, trail)
        except Untyped:
            return T.StringType()

    def type_at(self, node: object, pointer: str, trail: tuple[str, ...]) -> T.DataType:
        """Return the type of one schema."""
        self.count += 1
        if self.count > MOST:
            raise ValueError(f"#: the schema describes over {MOST} parts; register smaller ones")
        if not isinstance(node, Mapping) or "$ref" in node or not any(union in node for union in UNIONS):
            return super().type_at(node, pointer, trail)
        own = {key: value for key, value in node.items() if key not in UNIONS}
        kinds = []
        if _is_telling(own):
            with suppress(Untyped):  # `type: object` alone: the members say which
                kinds.append(super().type_at(own, pointer, trail))
        for union in UNIONS:
            if union in node:
                kinds += self.members(node[union], f"{pointer}/{union}", trail)
        return _one(kinds, pointer)

    def members(self, members: object, pointer: str, trail: tuple[str, ...]) -> list[T.DataType]:
        """Return the types of those that say one."""
        if not isinstance(members, Sequence) or isinstance(members, str):
            raise ValueError(f"{pointer}: a list of schemas is needed")
        telling = {k: one for k, one in enumerate(members) if not is_null(one) and _is_telling(one)}
        return [self.type_at(one, f"{pointer}/{k}", trail) for k, one in telling.items()]


def _is_telling(node: Any) -> bool:
    return not isinstance(node, Mapping) or not TELLING.isdisjoint(node)


def _one(kinds: list[T.DataType], pointer: str) -> T.DataType:
    """Return the type that holds the values of all."""
    structs = [T.StructType([T.StructField("it", kind)]) for kind in kinds]
    merged = merge([Version("", struct) for struct in structs or [T.StructType()]])
    for finding in merged.findings:
        raise Untyped(f"{pointer}: a column has one type; {finding.field.removeprefix('it.')}: {finding.what}")
    if not kinds:
        raise Untyped(f"{pointer}: it does not say what the value is")
    return merged.struct["it"].dataType
