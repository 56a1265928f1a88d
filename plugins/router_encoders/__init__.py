"""Turn the rows of a route into bytes for other systems: what sinks that send offer as `value`."""

from router_encoders.avro_records import Avro
from router_encoders.encoding import Encoded, Encoder, Encoding, Place, row
from router_encoders.json_texts import Json
from router_encoders.protobuf_messages import Protobuf
from router_encoders.value import Value

__all__ = ["Avro", "Encoded", "Encoder", "Encoding", "Json", "Place", "Protobuf", "Value", "row"]
