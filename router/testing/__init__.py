"""Check plugins and routes: what a test of your own needs."""

from router.testing.contracts import (
    GARBAGE,
    check_applying_sink,
    check_decoder,
    check_encoder,
    check_rule,
    check_table_sink,
)

__all__ = [
    "GARBAGE",
    "check_applying_sink",
    "check_decoder",
    "check_encoder",
    "check_rule",
    "check_table_sink",
]
