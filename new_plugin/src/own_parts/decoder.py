"""A decoder: the bytes of records become events."""

import pyarrow as pa
from pydantic import Field
from pyspark.sql.types import StringType, StructField, StructType
from router import ArrowDecoder, ArrowDecoding, Decoder, hookimpl


class Pairs(ArrowDecoder):
    """Decode a text of pairs: `order_id=1;shop=rome`.

    A pair that is not in `fields` is left out.
    """

    fields: tuple[str, ...] = Field(
        min_length=1, description="names of the fields, all of them texts"
    )

    def decoding(self) -> ArrowDecoding:
        """Return the function that tasks run, its argument and the columns it adds."""
        event = StructType([StructField(name, StringType()) for name in self.fields])
        adds = StructType()
        adds.add("event", event)
        adds.add("_error", StringType())
        return ArrowDecoding(decode_pairs, self.fields, adds)


def decode_pairs(records: pa.RecordBatch, fields: tuple[str, ...]) -> pa.RecordBatch:
    """Return an event or an error for each record. Runs on executors."""
    events: list[dict[str, str | None] | None] = []
    errors: list[str | None] = []
    for value in records.column("value").to_pylist():
        pairs = parse_pairs(value)
        if pairs is None:
            events.append(None)
            errors.append("value is not a text of pairs")
            continue
        events.append({name: pairs.get(name) for name in fields})
        errors.append(None)
    event = pa.struct([(name, pa.string()) for name in fields])
    columns = [pa.array(events, event), pa.array(errors, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=["event", "_error"])


def parse_pairs(value: bytes | None) -> dict[str, str] | None:
    """Return the pairs of a text; None for bytes that are none."""
    if value is None:
        return None
    try:
        return dict(pair.split("=", 1) for pair in value.decode().split(";"))
    except ValueError:  # no UTF-8, or a piece without `=`
        return None


@hookimpl
def router_decoders() -> dict[str, type[Decoder]]:
    """Offer the decoder under the name that configurations use."""
    return {"own_parts_pairs": Pairs}
