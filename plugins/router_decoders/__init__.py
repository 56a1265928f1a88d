"""The decoders that come with the router: each turns raw records into events.

The task that lands a record gives it an `event`, or an `_error` with the reason why it has none. A decoder (`json`,
`avro`, `protobuf`, `auto`, `keyed`, `by_topic`) decides on the driver how tasks decode. The function that they run is
next to the decoder, or in `json_arrow` and `router_schemas.protobuf`. Only `avro` adds native columns before.
`Nothing`, which keeps records as they came, is here.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router import Decoder, hookimpl
from router_decoders.auto import Auto
from router_decoders.avro import Avro
from router_decoders.by_topic import ByTopic
from router_decoders.json import Json, JsonSchema
from router_decoders.protobuf import Protobuf
from router_decoders.record_keys import RecordKeys
from router_decoders.rows import RowsOfFiles

__all__ = [
    "Auto",
    "Avro",
    "ByTopic",
    "Json",
    "JsonSchema",
    "Nothing",
    "Protobuf",
    "RecordKeys",
    "RowsOfFiles",
    "router_decoders",
]

NO_EVENT_TYPE = "struct<_: string>"
"""The type of an event that never is; Parquet has no struct without fields, hence one."""


class Nothing(Decoder):
    """Keep records as they came: every record reaches bronze, none becomes an event or a dead letter."""

    def decode(self, raw: DataFrame) -> DataFrame:
        """Add `event` and `_error`, both null in every row."""
        return raw.withColumns({"event": F.lit(None).cast(NO_EVENT_TYPE), "_error": F.lit(None).cast("string")})


@hookimpl
def router_decoders() -> dict[str, type[Decoder]]:
    """Offer the decoders that come with the router."""
    return {
        "auto": Auto,
        "avro": Avro,
        "by_topic": ByTopic,
        "json": Json,
        "json_schema": JsonSchema,
        "keyed": RecordKeys,
        "none": Nothing,
        "protobuf": Protobuf,
        "rows": RowsOfFiles,
    }
