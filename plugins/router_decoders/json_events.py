"""Decode JSON objects."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator
from pyspark.sql import types as T

from router import ArrowDecoding, Decoder, Preparation, StartError
from router_decoders.json_columns import RESCUED, TEMPORARY, levels
from router_decoders.schema_files import Infer, inferred, read_schema, struct_of_ddl

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from typing_extensions import Self


class Json(Decoder):
    """Decode a record whose value is one JSON object in UTF-8 (RFC 8259) to a struct with a known schema.

    The schema is given in one of three ways: in Spark DDL, as a JSON Schema file, or inferred once from a sample of
    the source into a file that every later start uses as it is (`--refresh-schema` makes it again and logs what
    changed).

    Fields that the record lacks are null, fields that the schema lacks are left out (or kept, see `rescue`). A record
    that cannot be decoded whole has no event, and `_error` says why: the value is null, is empty, is not UTF-8, is not
    JSON, has text after the object, is an array or a scalar; or it does not fit the schema, with the fields as far as
    they can be told (those inside of arrays cannot).

    - Numbers fit when they are in the range of their type; an integer field takes no 1.0 and no 1e3, a number field
      takes any number but is rounded to its type, a decimal to its scale. No number is taken from a text, except that
      a decimal may be one.
    - A timestamp is ISO 8601: `2026-11-21T10:00:00Z`, with up to 9 decimals of the second (6 are kept), a space in
      place of the T, the zone as Z, +02:00 or Europe/Berlin; without a zone it is in the session's time zone, and a
      date alone is its midnight. A date is `2026-11-21`. Years are 0001 to 9999. Numbers do not fit either: declare a
      bigint and convert it in `select`.
    - A string field takes any value, as JSON text: `5`, `{"a":1}`.
    - Of a key that comes twice the last value counts, except that both must fit; in a map field it does not fit.
    - Half of a surrogate pair (`\\ud800` alone) becomes a question mark. Nesting deeper than 998 levels, a text of
      more than 20 million characters and a number of more than 1000 digits are not JSON here.

    Runs as native expressions on executors; a good record is parsed once (twice with `rescue`). Tasks that land rows
    decode the plain records themselves, with the same result, where the schema has no map, decimal, float or other
    type that `json_batches` leaves to Spark.
    """

    needs: ClassVar[tuple[str, ...]] = ("router_decoders.json_batches",)
    main_option: ClassVar[str | None] = "schema"

    # pydantic models have a method called schema
    ddl: str | None = Field(
        default=None, alias="schema", min_length=1, description='Spark DDL, such as "game string, amount double"'
    )
    schema_file: str | None = Field(
        default=None, min_length=1, description="JSON Schema (or Spark DDL, in *.ddl), from the configuration's folder"
    )
    infer: Infer | None = Field(default=None, description="infer the schema from a sample, once, into a file")
    rescue: bool = Field(
        default=False,
        description=f"add the field {RESCUED}, map<string,string>: top-level keys that the schema does not know",
    )

    @model_validator(mode="after")
    def _one_schema(self) -> Self:
        ways = {"schema": self.ddl, "schema_file": self.schema_file, "infer": self.infer}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "none is given"
            raise ValueError(f"give exactly one of {', '.join(ways)}; {found}")
        return self

    def prepare(self, preparation: Preparation) -> Self:
        """Return this decoder with its schema in hand; may read a sample of the source and write the cached file."""
        if self.infer is not None:
            struct = inferred(self.infer, preparation)
        elif self.schema_file is not None:
            struct = read_schema(preparation.folder / self.schema_file)
        else:
            return self
        return self.model_copy(update={"ddl": struct.toDDL(), "schema_file": None, "infer": None})

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return the text of an event."""
        return json.dumps(event).encode()

    def decoding(self) -> ArrowDecoding | None:
        """Return how tasks decode plain records; None where the schema or `rescue` leaves it to native expressions."""
        return None if self.rescue or self.ddl is None else _decoding(self.ddl)

    def decode(self, raw: DataFrame) -> DataFrame:
        """Add `event`, a struct with exactly the schema's fields, and `_error`; raise ValueError for a bad schema."""
        if self.ddl is None:
            raise StartError("the schema is in a file: call prepare() before decode()")
        frame = raw
        for projection in levels(self.ddl, self.rescue):
            frame = frame.withColumns(projection)
        return frame.drop(*TEMPORARY)


@lru_cache(maxsize=16)
def _decoding(ddl: str) -> ArrowDecoding | None:
    """Return how tasks decode to a schema; made once, because Spark is asked what the DDL means."""
    from router_decoders.json_batches import events
    from router_decoders.json_shapes import nullable, shape

    schema = struct_of_ddl(ddl)
    known = shape(schema)
    adds = T.StructType([T.StructField("event", nullable(schema)), T.StructField("_error", T.StringType())])
    return ArrowDecoding(events, known, adds) if known else None
