"""Checks for the tests of your own plugins."""

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
