"""A view: a table that is computed from the tables of a route."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from router import ViewQuery, hookimpl


class OrdersOfShops(ViewQuery):
    """Count the orders of each shop."""

    def rows(self, source: DataFrame, tables: Mapping[str, DataFrame]) -> DataFrame:
        """Return the rows of the view, lazily: run no action."""
        return source.groupBy("shop").agg(F.count("*").alias("orders"))


@hookimpl
def router_views() -> dict[str, type[ViewQuery]]:
    """Offer the view under the name that configurations use."""
    return {"own_parts_orders_of_shops": OrdersOfShops}
