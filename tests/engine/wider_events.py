"""Events that bring more than their table has, and the ways to commit what becomes of them."""

from __future__ import annotations

import pytest

WAYS = {
    "auto": {"commit": "auto"},
    "spark": {"commit": "spark"},
}
EACH = [pytest.param(way, marks=[] if way == "auto" else [pytest.mark.slow]) for way in WAYS]
NARROW = "game string, id int, inner struct<x: int>, rounds array<struct<n: int>>"
WIDE = (
    "game string, id bigint, bonus double, inner struct<x: int, z: string>, rounds array<struct<n: int, card: string>>"
)
OLD = {"game": "old", "id": 1, "inner": {"x": 1}, "rounds": [{"n": 1}]}
HUGE = 2**40
