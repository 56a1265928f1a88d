"""Former bugs, each planted again without the net that contains it: the drawing tests have to find every one.

A process plants the bug that the environment names: pytest as this is a plugin of it, workers by sitecustomize.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from router.api import halving

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "ROUTER_PLANTED"
"""The variable of the environment that names a bug."""


@dataclass(frozen=True)
class Bug:
    """A bug: how it is planted, the drawing test below tests/engine that finds it, and what that says."""

    plant: Callable[[], None]
    found_by: str
    says: str


def pytest_configure() -> None:
    """Plant the bug in the process of the tests."""
    plant_named_bug()


def plant_named_bug() -> None:
    """Plant the bug that the environment names, if it names one."""
    name = os.environ.get(VARIABLE)
    if name:
        remove_nets()
        BUGS[name].plant()


def remove_nets() -> None:
    """Let a step that raises on a row raise for the whole batch, a batch that fails not look for a cause, and a merge
    that delta-rs refuses wait.
    """
    from router.engine import decision
    from router.engine.label import planner
    from router.engine.merge import delta_rs

    def run_whole(step: Callable[[int, int], Any], _: Any, start: int, stop: int) -> list[halving.Halved[Any]]:
        return [halving.Halved(start, stop, made=step(start, stop))]

    def leave_nothing(self: planner.Planner, defects: dict[str, str]) -> bool:
        assert not defects, defects
        return False

    halving._run_by_halves = run_whole
    decision.is_for_search = lambda error: False
    delta_rs.is_temporary = lambda error: True
    planner.Planner.leave_to_spark = leave_nothing


def read_digits_as_python() -> None:
    """Raise for a text of more digits than Python reads as an integer."""
    from router.engine.expressions import casts

    casts._wide_integer = int


def print_far_years_as_python() -> None:
    """Raise for a date beyond those of Python."""
    from router.engine.expressions import casts

    def print_day(day: int) -> str:
        return (date(1970, 1, 1) + timedelta(days=day)).isoformat()

    casts._far_day = print_day


def name_folders_after_any_partition() -> None:
    """Let delta-rs make folders with names of any length."""
    from router.delta.keyed import upsert
    from router.engine.merge import delta_spark

    upsert.long_folder = upsert.has_long_folder = delta_spark.long_folder = lambda *_: ""


def refuse_routes_of_new_schemas() -> None:
    """End the stream if a route cannot be planned with a new version of a schema."""
    from router.engine.label import planner

    planner.narrowest_change = lambda *_: None


def join_waiting_rows_by_their_order() -> None:
    """Let merges wait for tables whose structs inside of maps gain a field."""
    from router.delta.keyed import upsert

    upsert.NARROWER_MAP = "no error says this"


def keep_names_of_files() -> None:
    """Keep the names of columns in files as they are, though no table can have them."""
    from router.engine.source import file_rows

    file_rows.table_name = lambda name: name


def plant_nothing() -> None:
    """Leave the code as it is: times that no timestamp holds are Spark's bug, and without nets all others pass."""


BUGS = {
    "digits": Bug(read_digits_as_python, "expressions/test_random_expressions.py", "Exceeds the limit (4300 digits)"),
    "far years": Bug(print_far_years_as_python, "expressions/test_random_expressions.py", "OverflowError"),
    "partitions": Bug(
        name_folders_after_any_partition,
        "stream/test_drawn_configurations.py",
        "LocalFileSystem error: Unable to open file",
    ),
    "schemas": Bug(refuse_routes_of_new_schemas, "land/test_drawn_schemas.py", "router.errors.StartError: route r"),
    "maps": Bug(join_waiting_rows_by_their_order, "land/test_drawn_schemas.py", "Cannot cast column"),
    "names": Bug(keep_names_of_files, "source/test_drawn_files.py", "rename it in `select`"),
    "times": Bug(plant_nothing, "stream/test_drawn_streams.py", "kafkaMalformedRecordTimestamp"),
}
"""The bugs by name."""
