"""The sinks of the router: append events to Delta tables, keep the newest row per key, send events to Kafka."""

from router import Sink, hookimpl
from router_rest.sink import Rest
from router_sinks.kafka import Kafka
from router_sinks.tables import Delta, Tables, Upsert

__all__ = ["Delta", "Kafka", "Rest", "Tables", "Upsert", "router_sinks"]


@hookimpl
def router_sinks() -> dict[str, type[Sink]]:
    """Offer the sinks that come with the router."""
    return {"delta": Delta, "kafka": Kafka, "rest": Rest, "tables": Tables, "upsert": Upsert}
