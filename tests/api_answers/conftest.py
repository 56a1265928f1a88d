"""A server that speaks raw bytes."""

from tests.rest.conftest import certificates, server

__all__ = ["certificates", "server"]
