"""What the tests of the engine share: queries of either engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from router.config.models import Config
from tests.engine.query import SOURCE, Query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITS = ("auto", "spark")
EITHER = ("auto", pytest.param("spark", marks=pytest.mark.slow))
"""For what both get from the same code; scenarios compare what they write in every run of the tests."""
MakeQuery = Callable[..., Query]
Scenario = Callable[[MakeQuery, Path, str], Query]


@pytest.fixture(scope="session")
def make_query(spark: SparkSession) -> MakeQuery:
    """Make a query on a folder; the arguments are those of a configuration."""

    def make_query(folder: Path, **settings: Any) -> Query:
        settings = {
            "name": "games",
            "lake": str(folder / "lake"),
            "dead_letters": "ops.dead",
            "source": SOURCE,
            **settings,
        }
        return Query(Config(**settings), spark)

    return make_query


@pytest.fixture(scope="session")
def played(make_query: MakeQuery, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Scenario, str], Query]:
    """Play a scenario with an commit, once per run; those who look at it leave it as it is."""

    @cache
    def played(scenario: Scenario, commit: str) -> Query:
        return scenario(make_query, tmp_path_factory.mktemp(f"{scenario.__name__}_{commit}"), commit)

    return played
