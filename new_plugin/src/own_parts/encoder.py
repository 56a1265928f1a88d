"""An encoder: rows become bytes, for sinks that send."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructType
from router import Encoded, Encoder, Encoding, hookimpl


class ToPairs(Encoder):
    """Encode a row as a text of pairs: `order_id=1;shop=rome`.

    Columns that are null are left out. A row with a semicolon in a value is refused.
    """

    def open(
        self,
        columns: StructType,
        folder: Path,
        subject: str | None = None,
        *,
        trial: bool = False,
    ) -> Encoding:
        """Return the function that tasks run, and its argument."""
        return Encoding(encode_pairs, None, "texts of pairs")


def encode_pairs(rows: pa.Array, argument: None) -> Encoded:
    """Return a value for each row, or None and a reason. Runs on executors."""
    values: list[bytes | None] = []
    reasons: dict[int, str] = {}
    for position, row in enumerate(rows.to_pylist()):
        texts = [f"{name}={value}" for name, value in row.items() if value is not None]
        if any(";" in text for text in texts):
            values.append(None)
            reasons[position] = "a value contains a semicolon"
            continue
        values.append(";".join(texts).encode())
    return Encoded(values, reasons)


@hookimpl
def router_encoders() -> dict[str, type[Encoder]]:
    """Offer the encoder under the name that configurations use."""
    return {"own_parts_to_pairs": ToPairs}
