"""Hold the schema registry of the framed feeds: one per process, started when a feed first needs it."""

from __future__ import annotations

from functools import cache

from router_demo.registry import EmbeddedRegistry


@cache
def registry() -> EmbeddedRegistry:
    """Return the running registry; it ends with this process."""
    started = EmbeddedRegistry()
    started.start()
    return started
