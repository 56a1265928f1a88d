"""Queries, as the tests of the engine have them."""

from tests.engine.conftest import make_query

__all__ = ["make_query"]
