"""Protobuf: descriptors on the driver, bytes to and from Arrow on the executors; needs an extra (`require_extra`).

Input are registered texts or files: `descriptors` compiles and links them, kinds describes each kind of value once, the
model a message on the wire and as columns, merge makes one message of all versions, and the library keeps the schemas
that wrote the records.
Output are events (events, decode), and, for writing, a schema made for columns (derive) and messages (encode).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from router import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator


EXTRA = "spark-event-router[protobuf]"
EXTRAS = {"google.protobuf": EXTRA, "ptars": EXTRA}
"""The modules of the extra, and what to install for them."""


@contextmanager
def require_extra(whose: str) -> Iterator[None]:
    """Raise StartError with the package to install if an import finds no module; `whose` needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = f"pip install '{EXTRA}', here and on every node"
        raise StartError(f"{whose} needs the module {error.name}: {extra}") from error
