"""Find values whose partition's folder would have a name that the storage refuses.

Both Delta libraries put the files of a merge or a compaction into folders named after the partition: `COLUMN=VALUE`.
Delta on Spark names them at random instead if the table has the property `RANDOM_FOLDERS`; delta-rs does not. Files
that the router stages itself lie in the table's own folder, so that an append takes any value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from router.storage.addresses import is_local_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalake import DeltaTable

RANDOM_FOLDERS = "delta.randomizeFilePrefixes"
FOLDER_BYTES = 255
"""Bytes of a name in the usual file systems of Linux (NAME_MAX)."""
KEY_BYTES = 1024
"""Bytes of a whole path in S3, Google Cloud Storage and Azure."""
FILE_BYTES = 100
"""Bytes of a file's name that are reckoned with."""
ESCAPED_BYTES = 3
"""Bytes of one that is percent-encoded, as delta-rs does; Delta on Spark encodes fewer characters."""


def long_folder(address: str, rows: pa.Table, partition_by: Iterable[str]) -> str:
    """Return why rows cannot be written into folders named after their partition; an empty text if they can."""
    path = len(address) + FILE_BYTES
    for name in partition_by:
        size = _longest_name_bytes(name, rows)
        if is_local_path(address) and size > FOLDER_BYTES:
            return f"a folder of its partitions by {name} would have a name of {size} bytes"
        path += size + 1
    if not is_local_path(address) and path > KEY_BYTES:
        return f"a file of its partitions by {', '.join(partition_by)} would have a path of {path} bytes"
    return ""


def has_long_folder(table: DeltaTable) -> str:
    """Return the same about the rows that an open table has."""
    partition_by = table.metadata().partition_columns
    if not partition_by:
        return ""
    actions: Any = pa.table(table.get_add_actions())
    partitions = actions.column("partition").combine_chunks()
    return long_folder(table.table_uri, pa.Table.from_struct_array(partitions), partition_by)


def _longest_name_bytes(name: str, rows: pa.Table) -> int:
    """Return the bytes of the longest name of a folder. The values of other types than texts are short."""
    begin = len(quote(name, safe="")) + 1
    if name not in rows.column_names or not pa.types.is_string(rows.schema.field(name).type):
        return begin
    texts = rows.column(name).unique().drop_null()
    # Few texts are so long that it matters how many of their characters are encoded.
    long_texts = texts.filter(pc.greater(pc.binary_length(texts), (FOLDER_BYTES - begin) // ESCAPED_BYTES))
    return begin + max((len(quote(text, safe="")) for text in long_texts.to_pylist()), default=0)
