"""How old records are when they land: counted once per batch, by table, and made older until the commit."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.engine.land.record_ages import AGE_SECONDS, BUCKETS, BatchAges, TableAges

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def batch_ages(*ages: float | None) -> BatchAges:
    """Return the ages of records that are so many seconds old; None has no time."""
    times = [None if age is None else NOW - timedelta(seconds=age) for age in ages]
    return BatchAges(pa.array(times, pa.timestamp("us", "Europe/Vilnius")), NOW.timestamp())


def test_each_table_has_the_ages_of_its_records() -> None:
    """Without it a table whose records are late hides behind one with many."""
    ages = batch_ages(0.5, 3.0, 200.0, 200_000.0, None, -7.0)
    all_records = ages.of_rows(None)
    assert dict(zip((*AGE_SECONDS, "older"), all_records.counts, strict=True)) == {
        **dict.fromkeys(AGE_SECONDS, 0),
        0.5: 2,
        5.0: 1,
        300.0: 1,
        "older": 1,
    }, "a record without a time has no age, one of a clock that is ahead is new"
    assert all_records.seconds == pytest.approx(200_203.5)
    assert all_records.newest == NOW.timestamp()
    some = ages.of_rows(np.array([1, 2]))
    assert sum(some.counts) == 2
    assert some.newest == pytest.approx(NOW.timestamp() - 3)
    assert TableAges.from_report(json.loads(json.dumps(asdict(some)))) == some


def test_records_without_a_time_have_no_age() -> None:
    assert batch_ages(None, None).of_rows(None) == TableAges()


def test_a_commit_later_makes_records_older() -> None:
    """Without it a stream that takes ten minutes for a batch looks as fresh as one that takes a second."""
    # All in the bucket up to 0.5 s: after 1.75 s evenly between 1.75 and 2.25.
    later = batch_ages(0.1, 0.2, 0.3, 0.4).of_rows(None).committed_later(1.75)
    assert later.counts[AGE_SECONDS.index(2.0)] == 2
    assert later.counts[AGE_SECONDS.index(5.0)] == 2
    assert later.seconds == pytest.approx(1.0 + 4 * 1.75)


@given(st.lists(st.floats(0, 1_000_000), min_size=1), st.floats(0, 100_000))
def test_no_record_is_lost_between_buckets(ages: list[float], later: float) -> None:
    """Without it a quantile is of other records than there were."""
    begun = batch_ages(*ages).of_rows(None)
    committed = begun.committed_later(later)
    assert sum(begun.counts) == len(ages)
    assert sum(committed.counts) == len(ages)
    assert len(committed.counts) == BUCKETS
    for bucket in range(BUCKETS):
        assert sum(committed.counts[:bucket]) <= sum(begun.counts[:bucket]), "no record gets younger"
