"""The encoders that come with the router: each turns the rows of a route into bytes for another system.

The formats are JSON, and Avro and Protobuf with a schema registry. The driver gets the columns of the rows, asks the
registry and chooses the schema (registry_encoder). Executors get the rows as an Arrow array, and return a value for
each row, or the reason why it has none.
"""

from router import Encoder, hookimpl
from router_encoders.outbox_rows import ToJson
from router_encoders.registry_encoder import ToAvro, ToProtobuf

__all__ = ["ToAvro", "ToJson", "ToProtobuf", "router_encoders"]


@hookimpl
def router_encoders() -> dict[str, type[Encoder]]:
    """Offer the encoders that come with the router."""
    return {"to_avro": ToAvro, "to_json": ToJson, "to_protobuf": ToProtobuf}
