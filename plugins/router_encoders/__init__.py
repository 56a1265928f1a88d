"""Turn the rows of a route into bytes for other systems: JSON, or Avro and Protobuf with a schema registry.

In come the columns of the rows, on the driver, where a registry is asked and the schema chosen (registry_encoder); and
the rows as an Arrow array, on the executors. Out goes a value per row, or the reason why there is none.
"""

from router import Encoder, hookimpl
from router_encoders.outbox_rows import ToJson
from router_encoders.registry_encoder import ToAvro, ToProtobuf

__all__ = ["ToAvro", "ToJson", "ToProtobuf", "router_encoders"]


@hookimpl
def router_encoders() -> dict[str, type[Encoder]]:
    """Offer the encoders that come with the router."""
    return {"to_avro": ToAvro, "to_json": ToJson, "to_protobuf": ToProtobuf}
