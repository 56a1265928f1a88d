"""Choose the events of a route: by condition, field or schema (conditions), and by other rules (combined).

In come the options that a configuration gives; out goes a Spark column that is true for the events that match.
"""

from router import Rule, hookimpl
from router_rules.combined import All, Any, Not
from router_rules.conditions import Field, Schema, Sql

__all__ = ["All", "Any", "Field", "Not", "Schema", "Sql", "router_rules"]


@hookimpl
def router_rules() -> dict[str, type[Rule]]:
    """Offer the rules that come with the router."""
    return {"all": All, "any": Any, "field": Field, "not": Not, "schema": Schema, "sql": Sql}
