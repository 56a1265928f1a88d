"""The sink `rest`: the part that people configure, and what it makes of the rows of its route."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr
from pyspark.sql import functions as F

from router import ApiState, Batch, Encoding, Opening, Outcome, Resent, Server, StartError, template_fields
from router_encoders.outbox_rows import PLACE, as_it_is, order_key, own_columns, type_of, with_event
from router_rest.delivery.batcher import HOST_AS_LIMIT_KEY, LIMIT_KEY_COLUMN
from router_rest.options import RestOptions
from router_rest.templates import (
    body_column,
    body_fields,
    body_row,
    check_fields,
    parse_json,
    to_column,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import Column, DataFrame
    from typing_extensions import Self

    from router_rest.batch import OpenSink
    from router_rest.logins.credentials import Credentials
    from router_rest.templates import BodyPiece

log = logging.getLogger("router")


class Rest(RestOptions):
    """Post events to an HTTP API, as fast as it allows and no faster.

    `url: https://api.test/players/{event.user}/wins` has fields in braces; a value stays one segment of the path, or
    one value of the query, whatever it holds. A row whose value is null, or would make an empty segment, `.` or `..`,
    is a dead letter. SQL and fields see the route's columns, also as `event.NAME`, and of the record `_topic`,
    `_partition`, `_offset`, `_timestamp` and `_key`. URLs are logged: secrets belong into `auth` and `headers`.

    The body is a JSON object of the route's columns, or an array of such objects with `rows_per_call`; `body` and
    `value` change that. Calls are cut from neighbouring offsets of one partition with the same URL.

    `calls_per_second`, `rows_per_second` and `limits` hold for all tasks of a job together, and for everything with
    the same `limit_name`. What the API refuses for good is a dead letter; what it cannot take now is tried again.

    Delivery: at least once; once in effect if the API honours the idempotency key. Every row has a receipt.
    """

    previews: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("router_rest.delivery.worker", "router_rest.logins.credentials")
    resends: ClassVar[bool] = True

    def talks_to(self, folder: Path) -> Iterable[Server]:
        """Yield the hosts of the API, without a path: nothing is done by asking them."""
        verify = self.tls.resolve_paths(folder).verify
        if self.template.has_fixed_host:
            yield Server("API", self.template.origin, verify)
            return
        for host in self.hosts:
            yield Server("API", f"{self.template.scheme}://{host}", verify)

    _folder: Path | None = PrivateAttr(default=None)
    _encodings: dict[str, Encoding] = PrivateAttr(default_factory=dict)
    _credentials: Any = PrivateAttr(default=None)

    @property
    def seconds_between(self) -> float:
        """Return how long rows are collected before they are sent."""
        return self.linger or 0.0

    @property
    def tasks_at_most(self) -> int:
        """Return how many tasks send at once."""
        from router_rest.batch import tasks_of

        return tasks_of(self)

    def api_state(self) -> ApiState | None:
        """Return whether the circuit is open, and how much of the rate limit is used."""
        from router_rest.limits.lease_server import api_state

        state = api_state(self.limit)
        # A query may have a key; a login is refused in a URL.
        return state and replace(state, url=self.url.partition("?")[0])

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

    def prepare(self, opening: Opening) -> Self:
        """Return this sink with its columns, files and login checked. May ask a token server or schema registry."""
        from router_rest.batch import check_spark

        check_spark(opening.events.sparkSession)
        tls_options = [self.tls]
        if self.auth is not None and self.auth.oauth is not None:
            tls_options.append(self.auth.oauth.tls)
        for tls in tls_options:
            missing = tls.resolve_paths(opening.folder).missing_file
            if missing is not None:
                raise StartError(f"tls: {missing}")
        prepared = self._check_columns(opening)
        prepared._log_in()
        return prepared

    def preview(self, events: DataFrame, opening: Opening) -> list[dict[str, Any]]:
        """Return the calls: `method`, `url`, `headers` that say what the body is, `body`, and the number of `rows`.

        With an answer also the `outcome`, in the words of `answers`, and the `reason`; of rows that differ as a list.
        """
        from router_rest.batch import preview_calls

        checked = self._check_columns(opening)
        return list(preview_calls(checked, checked.task_columns(events), checked.encoding_of(events), opening.answer))

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        """Send the rows of one batch, for as long as it takes; raise ConnectionError when it is stopped before."""
        from router_rest.batch import send_batch

        return send_batch(self._open_sink(), events, batch)

    def set_aside(self, batch: Batch, read: Callable[[str], DataFrame | None]) -> DataFrame | None:
        """Return the rows that are parked or dead by their last receipt, and have none that says delivered."""
        from router_rest.batch import set_aside

        receipts = read(self.receipts)
        if receipts is None:
            return None
        return set_aside(receipts, batch.query, batch.route, batch.sink)

    def resend(self, events: DataFrame, aside: DataFrame, batch: Batch) -> Resent:
        """Send rows again, those of one call as the same call; ends early when stopped or a setting is wrong."""
        from router_rest.batch import resend_rows

        return resend_rows(self._open_sink(), events, aside, batch)

    def encoding_of(self, events: DataFrame, *, trial: bool = False) -> Encoding:
        """Return the encoding of rows with these columns; it is kept for further batches of these columns."""
        pieces = self.body.pieces
        if pieces is not None:
            return Encoding(as_it_is, None, "JSON", partial(body_row, pieces=pieces))
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

    def _open_sink(self) -> OpenSink:
        """Return this sink as the functions of `batch` take it."""
        from router_rest.batch import OpenSink

        return OpenSink(
            self, self.folder, self.encoding_of, self.task_columns, lambda: self.open_credentials(self.folder)
        )

    def _check_columns(self, opening: Opening) -> Self:
        """Return this sink with its columns checked."""
        checked = self.model_copy()
        checked._folder = opening.folder
        checked._encodings = {}
        checked._credentials = None
        checked.encoding_of(opening.events, trial=opening.trial)
        checked.task_columns(opening.events).schema  # noqa: B018 - analyses the expressions
        return checked

    def _log_in(self) -> None:
        """Raise StartError for a login that cannot work. Tables also start while a token server is unavailable."""
        from router_rest.logins.credentials import make_login

        try:
            make_login(self.open_credentials(self.folder).current_credentials())
        except ConnectionError as error:
            log.warning("rest %s: no token yet: %s", self.limit, error)
