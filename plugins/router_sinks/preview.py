"""Say what a REST sink would send, and send nothing: for route tests. Runs on the driver."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from router_rest.cutting import Cutter
from router_rest.feeding import Reader
from router_rest.making import Maker
from router_sinks.outbox import cut_of, form_of
from router_sinks.outgoing import PLACE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from router_rest.bodies import Body
    from router_rest.cutting import Call
    from router_sinks.rest import Rest


def calls(sink: Rest, events: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the calls of a small batch, as one task would make them; rows of which no call can be made are left out.

    A login is added later, by tasks: nothing here is secret.
    """
    maker = Maker(form_of(sink))
    for call in _cut(sink, events):
        body = sink.joined.join(call.rows)
        try:
            request = maker.request(call.url, body, "")
        except ValueError:  # its URL is none: a dead letter
            continue
        headers = sink.joined.headers
        shown = _shown(body, sink.joined)
        yield {"method": sink.method, "url": request.url, "headers": headers, "body": shown, "rows": len(call)}


def _cut(sink: Rest, events: DataFrame) -> Iterator[Call]:
    reader = Reader(sink.encoding(events), sink.joined, urls=bool(sink.template.fields))
    cutter = Cutter(cut_of(sink))
    rows = sink.columns(events).coalesce(1).sortWithinPartitions(*PLACE)
    for batch in rows.toArrow().to_batches():
        for one in reader.rows(batch):
            if one.why is None:
                yield from cutter.add(*one[:5])
    yield from cutter.end()


def _shown(body: bytes, made: Body) -> Any:
    """Return a body as its values where it is JSON, those of each line for lines; else as text, or in base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(body).decode()
    try:
        return [json.loads(line) for line in text.split("\n")[:-1]] if made.between == b"\n" else json.loads(text)
    except (ValueError, RecursionError):
        return text
