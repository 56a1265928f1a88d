"""The rows of a view are staged by table, and the expectations that they violate are counted by table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from router.delta.lake import Lake
from router.delta.parquet_writer import Staging
from router.engine.views.stage import _Check, _staging_task

if TYPE_CHECKING:
    from pathlib import Path


def test_dropped_rows_count_for_their_table_whatever_its_case(tmp_path: Path) -> None:
    """Without it a view reports fewer dropped rows than there were."""
    batch = pa.record_batch(
        {
            "n": [1, 2, 3],
            "_target": ["gold.Uno", "gold.uno", "gold.uno"],
            "_hash": [10, 20, 30],
            "_violated0": [True, True, False],
        }
    )
    staging = Staging(Lake.at(str(tmp_path)), file_bytes=1 << 20, buffer_bytes=1 << 20)
    task = _staging_task(staging, ["n"], "view/counts", 1, [_Check("positive", drops=True)])

    (reports,) = task(iter([batch]))
    file, counts = [json.loads(report) for report in reports.column(0).to_pylist()]

    assert (file["table"], file["rows"]) == ("gold.uno", 1)
    assert counts == {"table": "gold.uno", "rows": 1, "hash": 30, "violated": {"positive": 2}, "dropped": 2}
