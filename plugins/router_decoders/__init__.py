"""Turn records into events: JSON, and none for those who only keep what came."""

from router import Decoder, hookimpl
from router_decoders.json_events import Json
from router_decoders.none import Nothing

__all__ = ["Json", "Nothing", "router_decoders"]


@hookimpl
def router_decoders() -> dict[str, type[Decoder]]:
    """Offer the decoders that come with the router."""
    return {"json": Json, "none": Nothing}
