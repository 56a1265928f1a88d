"""Turn records into events: JSON, Avro, Protobuf, what a registry says, and none for those who keep what came.

Raw records go in, an `event` or an `_error` comes out of each, in the task that lands it. A decoder (`json`, `avro`,
`protobuf`, `auto`, `record_keys`) says on the driver how tasks decode; the function that they run is in the module
beside it that ends in `_arrow`, or in `router_schemas`. Only Avro adds native columns before (`avro_spark`).
"""

from router import Decoder, hookimpl
from router_decoders.auto import Auto
from router_decoders.avro import Avro
from router_decoders.json import Json, JsonSchema
from router_decoders.none import Nothing
from router_decoders.protobuf import Protobuf
from router_decoders.record_keys import RecordKeys

__all__ = ["Auto", "Avro", "Json", "JsonSchema", "Nothing", "Protobuf", "RecordKeys", "router_decoders"]


@hookimpl
def router_decoders() -> dict[str, type[Decoder]]:
    """Offer the decoders that come with the router."""
    return {
        "auto": Auto,
        "avro": Avro,
        "json": Json,
        "json_schema": JsonSchema,
        "keyed": RecordKeys,
        "none": Nothing,
        "protobuf": Protobuf,
    }
