"""Turn the rows of a route into bytes for other systems: JSON, or Avro and Protobuf with a schema registry."""

from router import Encoder, hookimpl
from router_encoders.to_avro import ToAvro
from router_encoders.to_json import ToJson
from router_encoders.to_protobuf import ToProtobuf

__all__ = ["ToAvro", "ToJson", "ToProtobuf", "router_encoders"]


@hookimpl
def router_encoders() -> dict[str, type[Encoder]]:
    """Offer the encoders that come with the router."""
    return {"to_avro": ToAvro, "to_json": ToJson, "to_protobuf": ToProtobuf}
