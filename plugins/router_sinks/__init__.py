"""Land events in Delta tables, in one or in one per value, or send them to Kafka."""

from router import Sink, hookimpl
from router_sinks.delta import Delta
from router_sinks.kafka import Kafka
from router_sinks.tables import Tables

__all__ = ["Delta", "Kafka", "Tables", "router_sinks"]


@hookimpl
def router_sinks() -> dict[str, type[Sink]]:
    """Offer the sinks that come with the router."""
    return {"delta": Delta, "kafka": Kafka, "tables": Tables}
