"""Hold what the router makes of every scenario against what was saved (`python -m tests.expectations.save`).

What is saved is what version 0.1 (commit dcc78e1) made. A later change that is meant does not touch the saved files:
a rename is listed in RENAMES, any other difference in JUSTIFIED, one by one, each with its reason.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.expectations import saved
from tests.expectations.catalogue import SCENARIOS
from tests.expectations.justified import JUSTIFIED
from tests.expectations.playing import MAIN, OTHERS, played

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


RENAMES = saved.Renames(
    tables={"silver.big_wins": "gold.big_wins"},
    columns={"*": {"waiting": "quarantined", "pending": "backlog"}},
    # rows that wait for an approval are in a quarantine; all others that were in lanes are in an outbox
    texts={
        "lanes.games__all__tables": "quarantine.games__all__tables",
        "lanes.": "outbox.",
        "index path of the message": "message index",
        "frame: ": "wire format: ",
        "the 5 bytes of a frame": "the 5 bytes before a payload",
    },
)

NEW_COLUMNS = {
    "ops.ledger": (
        *("lost bigint", "unknown bigint", "unknown_fields map<string,bigint>", "violated map<string,bigint>"),
        *("configuration string", "topic_id string"),
    )
}
"""Columns that tables have got since, wherever the table is: records that Kafka deleted before they were read, those
with fields that the schema lacks, expectations that do not hold, the configuration of a batch, and
Kafka's id of a topic."""

CASES = [
    *[
        pytest.param(name, MAIN, id=name, marks=[pytest.mark.slow] if SCENARIOS[name].slow else [])
        for name in SCENARIOS
    ],
    *[pytest.param(name, way, id=f"{name}, {way}", marks=pytest.mark.slow) for way in OTHERS for name in SCENARIOS],
]


def expected(scenario: str) -> Counter[str]:
    """Return the saved lines of a scenario with everything that was changed on purpose."""
    found = saved.lines(saved.load(scenario), RENAMES)
    for meant in JUSTIFIED:
        if meant.scenario == scenario:
            absent = Counter(meant.gone) - found
            assert not absent, f"JUSTIFIED names lines of {scenario} that are not saved: {[*absent]}"
            found = found - Counter(meant.gone) + Counter(meant.come)
    there = {line.split(" | column ")[0] for line in found if " | column " in line}
    new = (f"{table} | column {column}" for table in there & NEW_COLUMNS.keys() for column in NEW_COLUMNS[table])
    return found + Counter(new)


@pytest.mark.parametrize(("scenario", "way"), CASES)
def test_records_become_what_they_became(spark: SparkSession, scenario: str, way: str) -> None:
    """Without it a change of the code changes tables, dead letters or counts that nobody meant to change."""
    if way != MAIN and way not in saved.load(scenario)["ways"]:
        pytest.skip("this way made it differently, or was not compared: see saved/DIFFERENCES.md")

    found = saved.differences(expected(scenario), saved.lines(played(SCENARIOS[scenario], way, spark)))

    assert not found, f"{scenario}, {way}: - saved, + now\n{saved.shown(found)}"


def test_every_scenario_is_saved() -> None:
    """Without it a scenario is held against nothing."""
    assert {path.stem for path in saved.FOLDER.glob("*.json")} == set(SCENARIOS)


def test_every_justified_difference_names_a_scenario() -> None:
    """Without it a reason stays that belongs to nothing."""
    assert {meant.scenario for meant in JUSTIFIED} <= set(SCENARIOS)
