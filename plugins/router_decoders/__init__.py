"""Turn records into events: JSON, Avro, Protobuf, what a registry says, and none for those who keep what came."""

from router import Decoder, hookimpl
from router_decoders.auto import Auto
from router_decoders.avro import Avro
from router_decoders.json import Json, JsonSchema
from router_decoders.none import Nothing
from router_decoders.protobuf import Protobuf
from router_decoders.record_keys import Keyed

__all__ = ["Auto", "Avro", "Json", "JsonSchema", "Keyed", "Nothing", "Protobuf", "router_decoders"]


@hookimpl
def router_decoders() -> dict[str, type[Decoder]]:
    """Offer the decoders that come with the router."""
    return {
        "auto": Auto,
        "avro": Avro,
        "json": Json,
        "json_schema": JsonSchema,
        "keyed": Keyed,
        "none": Nothing,
        "protobuf": Protobuf,
    }
