"""The sinks of the router: append to Delta tables, keep the newest row per key, send events to services."""

from router import Sink, hookimpl
from router_rest.sink import Rest
from router_sinks.aws import Aws
from router_sinks.kafka import Kafka
from router_sinks.spark_writer import SparkWriter
from router_sinks.sql import Database
from router_sinks.tables import Delta, Tables, Upsert

__all__ = ["Aws", "Database", "Delta", "Kafka", "Rest", "SparkWriter", "Tables", "Upsert", "router_sinks"]


@hookimpl
def router_sinks() -> dict[str, type[Sink]]:
    """Offer the sinks that come with the router."""
    tables: dict[str, type[Sink]] = {"delta": Delta, "tables": Tables, "upsert": Upsert}
    return {**tables, "boto3": Aws, "kafka": Kafka, "rest": Rest, "spark": SparkWriter, "sql": Database}
