"""A server that speaks raw bytes."""

from tests.rest.conftest import server

__all__ = ["server"]
