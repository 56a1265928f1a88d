"""Land events in Delta tables: in one table, or in one per value."""

from router import Sink, hookimpl
from router_sinks.delta import Delta
from router_sinks.tables import Tables

__all__ = ["Delta", "Tables", "router_sinks"]


@hookimpl
def router_sinks() -> dict[str, type[Sink]]:
    """Offer the sinks that come with the router."""
    return {"delta": Delta, "tables": Tables}
