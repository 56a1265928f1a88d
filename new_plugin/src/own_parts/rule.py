"""A rule: which events belong to a route."""

from pydantic import Field
from pyspark.sql import Column
from pyspark.sql import functions as F
from router import Rule, hookimpl


class InShops(Rule):
    """Match orders of some shops. An order without a shop does not match."""

    main_option = "shops"
    shops: tuple[str, ...] = Field(min_length=1, description="names of shops")

    def matches(self) -> Column:
        """Return a boolean column; null is no match."""
        return F.col("event.shop").isin(*self.shops)


@hookimpl
def router_rules() -> dict[str, type[Rule]]:
    """Offer the rule under the name that configurations use."""
    return {"own_parts_in_shops": InShops}
