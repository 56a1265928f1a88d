"""Land events in Delta tables, each or the latest per key, in one table or in one per value, or send them to Kafka."""

from router import Sink, hookimpl
from router_sinks.delta import Delta
from router_sinks.kafka import Kafka
from router_sinks.tables import Tables
from router_sinks.upsert import Upsert

__all__ = ["Delta", "Kafka", "Tables", "Upsert", "router_sinks"]


@hookimpl
def router_sinks() -> dict[str, type[Sink]]:
    """Offer the sinks that come with the router."""
    return {"delta": Delta, "kafka": Kafka, "tables": Tables, "upsert": Upsert}
