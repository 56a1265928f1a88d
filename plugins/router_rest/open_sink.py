"""A REST sink with the folder of its configuration: what its options make of rows, and its credentials.

Runs on the driver.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr
from pyspark.sql import functions as F

from router import Encoding, StartError, template_fields
from router_encoders.outbox_rows import PLACE, as_it_is, order_key, own_columns, type_of, with_event
from router_rest.delivery.batcher import HOST_AS_LIMIT_KEY, LIMIT_KEY_COLUMN
from router_rest.options import RestOptions
from router_rest.templates import (
    body_column,
    body_fields,
    check_fields,
    parse_json,
    to_column,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame
    from typing_extensions import Self

    from router import Opening
    from router_rest.logins.credentials import Credentials
    from router_rest.templates import BodyPiece


class OpenSink(RestOptions):
    """The options of `rest` for the columns of a route; `check_columns` comes before all else."""

    _folder: Path | None = PrivateAttr(default=None)
    _encodings: dict[str, Encoding] = PrivateAttr(default_factory=dict)
    _credentials: Any = PrivateAttr(default=None)

    def check_columns(self, opening: Opening) -> Self:
        """Return this sink with its columns checked. Raises StartError."""
        checked = self.model_copy()
        checked._folder = opening.folder
        checked._encodings = {}
        checked._credentials = None
        checked.encoding_of(opening.events, trial=opening.trial)
        checked.task_columns(opening.events).schema  # noqa: B018 - analyses the expressions
        return checked

    @property
    def folder(self) -> Path:
        """Return the folder of the configuration, to which paths of files are relative."""
        if self._folder is None:
            raise StartError("the sink is not open: call prepare() before apply()")
        return self._folder

    def open_credentials(self, folder: Path) -> Credentials:
        """Return the credentials for the API, the same object every time: it holds a token. For the driver."""
        from router_rest.logins.credentials import Credentials

        if self._credentials is None:
            self._credentials = Credentials(
                self.auth, self.fixed_headers, seconds=self.timeouts.read, folder=folder, proxy=self.proxy
            )
        credentials: Credentials = self._credentials
        return credentials

    def encoding_of(self, events: DataFrame, *, trial: bool = False) -> Encoding:
        """Return the encoding of rows with these columns; it is kept for further batches of these columns."""
        pieces = self.body.pieces
        if pieces is not None:
            return Encoding(as_it_is, None, "JSON", partial(body_column, pieces))
        columns = own_columns(events, self.without)
        named = columns.simpleString()
        if named not in self._encodings:
            self._encodings[named] = self.value.open(columns, self.folder, None, trial=trial)
        return self._encodings[named]

    def task_columns(self, events: DataFrame) -> DataFrame:
        """Return the columns that tasks take: `_topic`, `_partition`, `_offset`, `_order`, `_to` and `_row`.

        `_order` is the key of an order as bytes, or null; `_to` a struct of `url`, `values` (the method where rows name
        it, then those of headers), and `fault`, which is null or else the reason of a dead letter. `_to` is null if
        a field cannot be evaluated. `_row` is what the encoding takes. With `limit_by` there is also `_limit`, its key.
        Raises StartError, naming the column.
        """
        # Fields are those of the route's columns, by their own names and as parts of `event`.
        events_with_event = with_event(events)
        self._check_named_columns(events_with_event)
        value = self.encoding_of(events).column(own_columns(events, self.without).fieldNames())
        if self._action_pieces:
            value = F.concat(body_column(self._action_pieces), value)
        to = to_column(
            self.template, self.hosts, self.rendered_headers, method=self.method.sql, dots=self.allow_dot_segments
        )
        order = order_key(events_with_event, self.ordered_by, "group_by" if self.group_by else "key")
        columns: list[str | Column] = [*PLACE, order.alias("_order"), to.alias("_to"), value.alias("_row")]
        if self.limit_by not in (None, HOST_AS_LIMIT_KEY):
            columns.append(order_key(events_with_event, self.limit_by, "limit_by").alias(LIMIT_KEY_COLUMN))
        return events_with_event.select(*columns)

    @property
    def _action_pieces(self) -> tuple[BodyPiece, ...]:
        """Return the pieces of the line before each row; none without an action."""
        if self.body.action is None:
            return ()
        return (*parse_json(self.body.action), "\n")

    def _check_named_columns(self, events: DataFrame) -> None:
        """Raise StartError for an option that names a column which is not there, or does not fit."""
        check_fields(events, "url", self.template.fields)
        for header in self.rendered_headers.values():
            check_fields(events, "headers", template_fields(header))
        values, texts = body_fields((*self._action_pieces, *(self.body.pieces or ())))
        check_fields(events, "body", values, one_value=False)
        check_fields(events, "body", texts)
        if self.method.sql is not None:
            type_of(events, self.method.sql, "method")
