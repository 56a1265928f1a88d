"""Fixtures of all tests."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return a local Spark session; it starts once for all tests."""
    builder = SparkSession.builder.master("local[1]")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()
