"""The rules that come with the router, by which a route chooses its events; rules.py holds them all.

In come the options that a configuration gives; out goes a Spark column that is true for the events that match.
"""

from router import Rule, hookimpl
from router_rules.rules import All, Any, Field, Not, Schema, Sql

__all__ = ["All", "Any", "Field", "Not", "Schema", "Sql", "router_rules"]


@hookimpl
def router_rules() -> dict[str, type[Rule]]:
    """Offer the rules that come with the router."""
    return {"all": All, "any": Any, "field": Field, "not": Not, "schema": Schema, "sql": Sql}
