"""Find what a landing job fails on that Spark cannot catch on its row: columns that it evaluates.

Spark makes null of an expression that raises an exception on a row. An error of the JVM ends the task instead: a text
of 10,000 characters is too deep for many regular expressions of Java (StackOverflowError). So the plan runs without
writing anything, first without Spark's columns, then with each half of them, then over halves of the records. Runs on
the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from router.api.halving import by_halves
from router.engine.label.planner import WHOLE_EVENT
from router.engine.retryable_errors import is_for_search
from router.engine.source.failing_records import failing_records, is_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from router.engine.label.planner import Plan
    from router.engine.source.failing_records import RecordPlace


@dataclass(frozen=True)
class FailingColumns:
    """The search for columns of a plan on which its job fails. `land` runs a plan without writing anything."""

    plan: Plan
    land: Callable[[Plan], object]

    def find(self) -> dict[str, dict[RecordPlace, str]]:
        """Return the records on which each column fails, with the reasons; nothing if no column is to blame."""
        stages = self.plan.stages
        levels = [[*({*level} - {"event", WHOLE_EVENT})] for level in (*stages.levels, *stages.spread_by)]
        later = {name for names in levels for name in names}
        found: dict[str, dict[RecordPlace, str]] = {}
        if not later or not self._lands_without(later, found):
            return {}
        # A column reads those of the levels before it.
        for names in levels:
            later -= {*names}
            for name in self._find_failing_columns(names, later, found):
                records = failing_records(self.plan.raw, partial(self._land_without, {*names, *later} - {name}, found))
                if not records:
                    return {}
                found[name] = records
        return found

    def _find_failing_columns(
        self, names: list[str], later: set[str], found: dict[str, dict[RecordPlace, str]]
    ) -> list[str]:
        """Return the columns of a level that fail, each without the others."""

        def land(start: int, stop: int) -> bool:
            self._land_without({*names[:start], *names[stop:], *later}, found, self.plan.raw)
            return True

        return [names[half.start] for half in by_halves(land, len(names), is_for_search) if half.error] if names else []

    def _lands_without(self, without: set[str], found: dict[str, dict[RecordPlace, str]]) -> bool:
        try:
            self._land_without(without, found, self.plan.raw)
        except Exception as error:
            if is_for_search(error):
                return False
            raise
        return True

    def _land_without(self, without: set[str], found: dict[str, dict[RecordPlace, str]], raw: DataFrame) -> None:
        self.land(replace(self.plan, raw=raw, nulls=nulls_of(found) | dict.fromkeys(without, F.lit(True))))


def nulls_of(found: dict[str, dict[RecordPlace, str]]) -> dict[str, Column]:
    """Return on which records each column is null, as a plan takes it."""
    return {name: is_at(places) for name, places in found.items()}
