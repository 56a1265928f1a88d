"""Decode the rows of files that the source `files` reads as CSV, JSON, Parquet or Avro."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr
from pyspark.sql import types as T

from router import ArrowDecoder, ArrowDecoding, Memory, Preparation
from router_decoders.json import json_decoding

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

COLUMNS_NOTE = "rows"
"""The name under which the source notes the columns of its files."""
RESCUED_DDL = "_rescued map<string,string>"


class RowsOfFiles(ArrowDecoder):
    """Decode rows of files: `source: {files: {path: ..., format: csv}}`, or json, parquet, avro.

    The columns are those of the files, with their types; of CSV and JSON these are inferred. A column that comes later
    is there from its first batch on, without a restart. Known columns keep their type: a value that does not go into
    it without loss is kept as text in `_rescued`, a map of column and text, as does a line that is no row (`_line`).
    What is known is kept next to the checkpoint.
    """

    needs: ClassVar[tuple[str, ...]] = ("router_decoders.json_arrow",)

    _memory: Memory | None = PrivateAttr(default=None)
    _learnt: bytes | None = PrivateAttr(default=None)

    def prepare(self, preparation: Preparation) -> Self:
        """Return this decoder with the columns that are known."""
        return self._with_columns(preparation.memory)

    def refresh(self, wanted: frozenset[str]) -> Self:
        """Return this decoder with the columns that the source has learnt since."""
        if self._memory is None or self._memory.read(COLUMNS_NOTE) == self._learnt:
            return self
        return self._with_columns(self._memory)

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return a row as the source gives it."""
        return json.dumps(event).encode()

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode."""
        if self._learnt is None:
            return json_decoding(RESCUED_DDL)
        struct = T.StructType.fromJson(json.loads(self._learnt))
        return json_decoding(struct.toDDL())

    def _with_columns(self, memory: Memory) -> Self:
        copy = self.model_copy()
        copy._memory = memory
        copy._learnt = memory.read(COLUMNS_NOTE)
        return copy
