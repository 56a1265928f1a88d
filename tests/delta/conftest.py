"""What the tests of the Delta log share: files landed as the engine lands them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from router.delta.commit import TableCommit, to_arrow, to_delta
from router.delta.parquet_writer import Staging
from router.delta.schema_diff import compare_schemas, delta_schema

if TYPE_CHECKING:
    from router.delta.lake import Lake

Land = Callable[..., TableCommit]


@pytest.fixture(scope="session")
def land() -> Land:
    """Land rows for a table and return the commit that is still to be made."""

    def land(
        lake: Lake,
        table: str,
        rows: pa.Table,
        version: int = 0,
        target: str = "route/sink",
        folder: str | None = None,
    ) -> TableCommit:
        writer = Staging(lake, file_bytes=1 << 30, buffer_bytes=1 << 30, folder=folder).open_writer(version, "0-0")
        for batch in rows.to_batches():
            writer.hold_rows(target, table, batch)
        have = lake.open(table)
        found = compare_schemas(delta_schema(to_arrow(have)), rows.schema) if have else None
        return TableCommit(
            target=target,
            table=table,
            app_id=f"query/{target}/{table}",
            version=version,
            files=tuple(writer.close()),
            columns=to_delta(rows.schema),
            added=to_delta(pa.schema(found.added)) if found and found.added else None,
            widened=to_delta(pa.schema(found.widened)) if found and found.widened else None,
        )

    return land
