"""Land events in Delta tables, each or the latest per key, one or one per value; send them to Kafka or to an API."""

from router import Sink, hookimpl
from router_rest.sink import Rest
from router_sinks.kafka import Kafka
from router_sinks.tables import Delta, Tables
from router_sinks.upsert import Upsert

__all__ = ["Delta", "Kafka", "Rest", "Tables", "Upsert", "router_sinks"]


@hookimpl
def router_sinks() -> dict[str, type[Sink]]:
    """Offer the sinks that come with the router."""
    return {"delta": Delta, "kafka": Kafka, "rest": Rest, "tables": Tables, "upsert": Upsert}
