"""Names of the router's own tables, folders and columns, which no user chooses."""

from __future__ import annotations

OUTBOX = "outbox."
"""How names of outboxes begin: tables that keep rows until they are applied or merged."""
QUARANTINE = "quarantine."
"""How names of quarantines begin: tables that keep rows until their table may take them."""
OWN_LAYERS = (OUTBOX, QUARANTINE)
"""Layers in which the router, and people who discard rows, may delete any rows."""
BRONZE = "/bronze"
"""The key of bronze in counts; all others name a route and its sink."""
STAGING = "_staged"
"""The folder of a lake with files that no commit names yet."""
REPLACED = "_replaced"
"""The folder of a lake with logs that could not be read, and their files."""
DELETIONS = "_deletions"
"""The folder below a table's in which its deletions are remembered, a Delta table of keys and order columns. Readers of
the table do not see it, and it is deleted with the table."""
KEPT = "_kept"
"""The folder of a lake with logs of versions that the tables' own logs may not reach back to."""

TOPIC = "_topic"
PARTITION = "_partition"
OFFSET = "_offset"
TIMESTAMP = "_timestamp"
KEY = "_key"
ARRIVAL = "_arrival"
"""The column of a row with the run and the batch in which its record arrived: see `router.engine.source.position`."""

TABLE = "_table"
"""The column of a merging sink's outbox, and of a quarantine, with the table that a row is for."""
QUERY = "_query"
BATCH_ID = "_batch_id"
"""Columns of a quarantine with the query and the batch that read a row."""
CAUSE = "_cause"
"""The column of a quarantine with why a row waits, null if it waits for an approval."""
