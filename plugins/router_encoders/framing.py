"""Write rows behind the frame of a schema registry. Runs on executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router import Encoded

if TYPE_CHECKING:
    import pyarrow as pa

    from router_schemas.pieces import Write


def framed(array: pa.Array, prefix: bytes, write: Write) -> Encoded:
    """Write the rows of an array; find those that cannot be written by halves, so that each is judged by itself."""
    try:
        return Encoded([prefix + one for one in write(array)])
    except ValueError as error:
        if len(array) <= 1:
            return Encoded([None] * len(array), dict.fromkeys(range(len(array)), str(error)))
    half = len(array) // 2
    left, right = framed(array[:half], prefix, write), framed(array[half:], prefix, write)
    reasons = {at + half: reason for at, reason in right.reasons.items()}
    return Encoded(left.values + right.values, left.reasons | reasons)
