"""Turn records into events: JSON, Avro, Protobuf, and none for those who only keep what came."""

from router import Decoder, hookimpl
from router_decoders.avro_events import Avro
from router_decoders.json_events import Json
from router_decoders.keyed import Keyed
from router_decoders.none import Nothing
from router_decoders.protobuf_events import Protobuf

__all__ = ["Avro", "Json", "Keyed", "Nothing", "Protobuf", "router_decoders"]


@hookimpl
def router_decoders() -> dict[str, type[Decoder]]:
    """Offer the decoders that come with the router."""
    return {"avro": Avro, "json": Json, "keyed": Keyed, "none": Nothing, "protobuf": Protobuf}
