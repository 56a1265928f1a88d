"""Choose the format of the values."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from router import StartError
from router_demo.avro_values import AvroValues
from router_demo.json_values import JsonValues
from router_demo.subject import subject_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router_demo.traffic import Traffic
    from router_demo.values import Values


@contextmanager
def opened(
    form: str, registry: str | None, subject: str, on_register: Callable[[int], None] | None = None
) -> Iterator[Callable[[Traffic], Values]]:
    """Hold what renders json, protobuf or avro; its connection to the registry is closed at the end.

    `on_register` gets the id of each schema that is registered. Raises StartError without a registry where the format
    needs one, or without the extra that it needs.
    """
    if form == "json":
        yield JsonValues
        return
    if registry is None:
        raise StartError(f"{form} needs a registry: give the URL of a Confluent-compatible one")
    with subject_in(registry, subject, on_register) as connected:
        yield partial(AvroValues, connected) if form == "avro" else partial(_protobuf(), connected)


def _protobuf() -> Callable[..., Values]:
    try:
        from router_demo.protobuf_values import ProtobufValues  # noqa: PLC0415 - an extra, which JSON does not need
    except ModuleNotFoundError as error:
        extra = "pip install 'spark-event-router[protobuf]'"
        raise StartError(f"protobuf needs the module {error.name}: {extra}") from error
    return ProtobufValues
