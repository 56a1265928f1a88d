"""Turn the rows of a route into bytes for other systems: JSON, or Avro and Protobuf with a schema registry."""

from router import Encoder, hookimpl
from router_encoders.avro_records import ToAvro
from router_encoders.json_texts import ToJson
from router_encoders.protobuf_messages import ToProtobuf

__all__ = ["ToAvro", "ToJson", "ToProtobuf", "router_encoders"]


@hookimpl
def router_encoders() -> dict[str, type[Encoder]]:
    """Offer the encoders that come with the router."""
    return {"to_avro": ToAvro, "to_json": ToJson, "to_protobuf": ToProtobuf}
