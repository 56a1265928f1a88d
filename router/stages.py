"""Where a record was refused: the stages of dead letters."""

from __future__ import annotations

from enum import Enum


class Stage(str, Enum):
    """The stage of a dead letter, as its column `stage` has it."""

    DECODE = "decode"
    MATCH = "match"
    EXPECT = "expect"
    SELECT = "select"
    NAME = "name"
    SCHEMA = "schema"
    APPLY = "apply"

    __str__ = str.__str__
    """Texts have the value, not the member's name."""
