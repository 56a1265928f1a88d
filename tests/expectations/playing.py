"""Play a scenario in one way and return what it left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.expectations.adapter import WAYS, Player
from tests.expectations.results import results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.expectations.scenario import Scenario

MAIN, *OTHERS = WAYS


def played(scenario: Scenario, way: str, spark: SparkSession) -> dict[str, Any]:
    """Return the results of a scenario: why it stopped, what was recorded, and every table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        player = Player(spark, folder, way)
        stops = [why.replace(str(folder), "FOLDER") for why in scenario.play(player)]
        return {"about": scenario.about, "stops": stops, **results(player.root, folder, spark)}
