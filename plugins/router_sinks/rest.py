"""Post events to HTTP APIs."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from router import ApplyingSink, Batch, Encoder, Encoding, Opening, Outcome, Resent, StartError, row
from router_encoders import ToJson
from router_encoders.json_texts import as_it_is
from router_http.secret import Secret
from router_http.tls import Tls
from router_rest.auth import Auth
from router_rest.checks import (
    check_body,
    check_headers,
    check_hosts,
    check_limits,
    check_own_headers,
    check_proxy,
    checked_host,
)
from router_rest.options import BodyOptions, Limit, MaxOutage, Results, Retry, Timeouts
from router_rest.templates import check_fields, json_fields, json_row, parse_url, to_column
from router_sinks.naming import check_name
from router_sinks.outgoing import PLACE, lane_of, own_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from typing_extensions import Self

    from router_rest.bodies import Body
    from router_rest.credentials import Credentials
    from router_rest.templates import UrlTemplate

log = logging.getLogger("router")


class Rest(ApplyingSink):
    """Post events to an HTTP API, as fast as it allows and no faster.

    `url: https://api.test/players/{event.user}/wins` has fields in braces; a value stays one segment of the path, or
    one value of the query, whatever it holds. A row whose value is null, or would make an empty segment, `.` or `..`,
    is a dead letter. SQL and fields see the route's columns, also as `event.NAME`, and of the record `_topic`,
    `_partition`, `_offset`, `_timestamp` and `_key`. URLs are logged: secrets belong into `auth` and `headers`.

    The body is a JSON object of the route's columns, or an array of such objects with `rows_per_call`; `body` and
    `value` say otherwise. Calls are cut from neighbouring offsets of one partition with the same URL.

    `calls_per_second`, `rows_per_second` and `limits` hold for all tasks of a job together, and for everything with
    the same `limit_name`. What the API refuses for good is a dead letter; what it cannot take now is tried again.

    Delivery: at least once; once in effect where the API honours the idempotency key. Every row has a receipt.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    main_option: ClassVar[str | None] = "url"
    previews: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("router_rest.task", "router_rest.credentials")
    resends: ClassVar[bool] = True

    url: str = Field(description="http(s) URL, which may have fields in braces: https://api.test/games/{event.game}")
    hosts: tuple[str, ...] = Field(
        default=(), description="hosts (with the port, if the URL has one) that fields in the URL's host may name"
    )
    method: Literal["POST", "PUT", "PATCH", "DELETE"] = Field(default="POST", description="method of every call")
    headers: dict[str, Secret] = Field(default_factory=dict, description="further headers of every call; never shown")
    value: Encoder = Field(default=ToJson(), description="an encoder of a row: to_json, to_avro, to_protobuf, ...")
    body: BodyOptions = Field(
        default=BodyOptions(),
        description="`object`, `array` or `ndjson`, or options: `form`, `wrap` ({events: $rows}), `template` ({text: "
        '"{event.n} chips"}: JSON in place of all columns), `content_type`',
    )
    without: tuple[str, ...] = Field(
        default=(), description="columns of the route that are for the URL and the key only, not for the value"
    )
    gzip: bool = Field(default=False, description="compress bodies; the API must know Content-Encoding")

    rows_per_call: int = Field(default=1, ge=1, le=100_000, description="rows of a call at most")
    bytes_per_call: int = Field(
        default=1 << 20, ge=1, le=1 << 30, description="bytes of a body at most, before compression"
    )
    calls_per_second: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="the API's limit of calls in any second"
    )
    rows_per_second: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="the API's limit of rows in any second"
    )
    limits: tuple[Limit, ...] = Field(
        default=(), description="further limits: {calls: 5000, per: hour}, {rows: 100, per: 10 s}"
    )
    limit_name: str | None = Field(
        default=None,
        min_length=1,
        description="sinks and queries of one name share one limit; default: scheme, host and port of the URL",
    )
    max_in_flight: int = Field(default=64, ge=1, le=10_000, description="calls at once, of all tasks together")
    tasks: int | None = Field(default=None, ge=1, le=10_000, description="tasks that send; default: the job's cores")

    ordering: Literal["none", "per_key"] = Field(
        default="none", description="`per_key`: a row is sent when those of its key before it have been answered"
    )
    key: str = Field(default="_key", min_length=1, description="SQL of the key for `ordering: per_key`")
    idempotency_header: str | None = Field(
        default="Idempotency-Key", description="header with the same value whenever a call is sent again; null: none"
    )
    mode: Literal["detached", "inline"] = Field(
        default="detached", description="`detached`: a query of its own, tables do not wait; `inline`: the batch waits"
    )
    timeouts: Timeouts = Field(
        default=Timeouts(), description="of an attempt: `connect` 5 s, `read` 30 s, `total` 1 min"
    )
    retry: Retry = Field(default=Retry(), description="of a call: `attempts` 5, `elapsed` 5 min, `statuses`")
    max_outage: MaxOutage | None = Field(
        default=None, description="when the API stays away: `after` (2 h), `then` (wait, fail, park); default: wait"
    )
    poison_share: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="share of a batch that the API may refuse; with more the stream stops: it is not the rows then",
    )
    results: Results | None = Field(
        default=None,
        description="a bulk API's answer: `path` of its items, `status`, `ok`, `id`, `row_id` and `reason` in an item",
    )
    receipts: str = Field(default="ops.receipts", description="table with what became of every row")
    responses: str | None = Field(default=None, description="table with the bodies of answers, for another route")

    auth: Auth | None = Field(
        default=None, description="one of `basic`, `bearer`, `api_key`, `oauth`, `hmac`, `plugin` with `options`"
    )
    tls: Tls = Field(
        default=Tls(),
        description="`ca`, `certificate` and `key` (PEM files, at the same place on every machine), "
        "`insecure_skip_tls_verification`",
    )
    proxy: Secret | None = Field(default=None, description="URL of an HTTP proxy, with user and password if it has any")

    _folder: Path | None = PrivateAttr(default=None)
    _encodings: dict[str, Encoding] = PrivateAttr(default_factory=dict)
    _credentials: Any = PrivateAttr(default=None)

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        parse_url(url)
        return url

    @field_validator("hosts")
    @classmethod
    def _hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(checked_host, hosts))

    @field_validator("headers")
    @classmethod
    def _headers(cls, headers: dict[str, Secret]) -> dict[str, Secret]:
        check_headers(headers)
        return headers

    @field_validator("receipts", "responses")
    @classmethod
    def _table(cls, table: str | None) -> str | None:
        return None if table is None else check_name(table)

    @field_validator("proxy")
    @classmethod
    def _proxy(cls, proxy: Secret | None) -> Secret | None:
        if proxy is not None:
            check_proxy(proxy.get_secret_value())
        return proxy

    @model_validator(mode="after")
    def _together(self) -> Self:
        written = self.model_fields_set
        check_hosts(self.template, self.hosts)
        check_own_headers(self.headers, self.auth, self.idempotency_header)
        check_body(self.body, self.value if "value" in written else None, self.without, self.rows_per_call)
        check_limits(self.pace(), self.rows_per_call)
        if self.results is not None and self.body.form_of(self.rows_per_call) == "object":
            raise ValueError("results tell the rows of a call apart, and a call has one row")
        if self.ordering == "none" and "key" in written:
            raise ValueError("key: it is for `ordering: per_key`")
        if self.responses == self.receipts:
            raise ValueError("receipts and responses need a table each")
        return self

    @property
    def template(self) -> UrlTemplate:
        """Return what the URL says."""
        return parse_url(self.url)

    @property
    def detached(self) -> bool:
        """Say whether tables wait for the API."""
        return self.mode == "detached"

    @property
    def tasks_at_most(self) -> int:
        """Return how many tasks send at once."""
        from router_sinks.outbox import tasks_of

        return tasks_of(self)

    @property
    def limit(self) -> str:
        """Return the name of the limit that this sink shares with others of it."""
        return self.limit_name or self.template.origin

    def pace(self) -> tuple[Limit, ...]:
        """Return every limit of the API, of calls or rows in `seconds`; none: nobody stated any."""
        calls = () if self.calls_per_second is None else (Limit(calls=self.calls_per_second),)
        rows = () if self.rows_per_second is None else (Limit(rows=self.rows_per_second),)
        return (*calls, *rows, *self.limits)

    @property
    def joined(self) -> Body:
        """Return how the rows of a call become its body; travels to tasks."""
        text = self.body.template is not None or isinstance(self.value, ToJson)
        return self.body.body(self.rows_per_call, json=text, compressed=self.gzip)

    @property
    def folder(self) -> Path:
        """Return the configuration's folder, which files are beside."""
        if self._folder is None:
            raise StartError("the sink is not open: call prepare() before apply()")
        return self._folder

    def credentials(self, folder: Path) -> Credentials:
        """Return what opens the API, the same object every time: it holds a token. For the driver."""
        from router_rest.credentials import Credentials

        verify, seconds = self.tls.beside(folder).verify, self.timeouts.read
        opened: Credentials = self._credentials or Credentials(
            self.auth, self.headers, seconds=seconds, verify=verify, proxy=self.proxy
        )
        self._credentials = opened
        return opened

    def prepare(self, opening: Opening) -> Self:
        """Return this sink with its columns, files and login looked at. May ask a token server or schema registry."""
        from router_rest.genuine import real_stack
        from router_sinks.outbox import check_spark

        real_stack()
        check_spark(opening.events.sparkSession)
        if missing := self.tls.beside(opening.folder).missing:
            raise StartError(f"tls: {missing}")
        prepared = self._looked(opening)
        prepared._log_in()
        return prepared

    def preview(self, events: DataFrame, opening: Opening) -> list[dict[str, Any]]:
        """Return the calls: `method`, `url`, `headers` that say what the body is, `body`, and the number of `rows`."""
        from router_sinks.preview import calls

        return list(calls(self._looked(opening), events))

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        """Send the rows of one batch, for as long as it takes; raise ConnectionError when it is stopped before."""
        from router_sinks.outbox import post

        return post(self, events, batch)

    def set_aside(self, batch: Batch, read: Callable[[str], DataFrame | None]) -> DataFrame | None:
        """Return the rows that are parked or dead by their last receipt, and have none that says delivered."""
        from router_rest.aside import set_aside

        receipts = read(self.receipts)
        return None if receipts is None else set_aside(receipts, batch.query, batch.route, batch.sink)

    def resend(self, events: DataFrame, aside: DataFrame, batch: Batch) -> Resent:
        """Send rows again, those of one call as the same call; ends early when stopped or a setting is wrong."""
        from router_sinks.resending import resend

        return resend(self, events, aside, batch)

    def encoding(self, events: DataFrame, *, trial: bool = False) -> Encoding:
        """Return how rows of these columns are encoded; what was found for columns is kept for the next batch."""
        if (pieces := self.body.pieces) is not None:
            return Encoding(as_it_is, None, "JSON", partial(json_row, pieces=pieces))
        columns = own_columns(events, self.without)
        named = columns.simpleString()
        if named not in self._encodings:
            self._encodings[named] = self.value.open(columns, self.folder, None, trial=trial)
        return self._encodings[named]

    def columns(self, events: DataFrame) -> DataFrame:
        """Return what tasks take: `_topic`, `_partition`, `_offset`, `_lane`, `_to` and `_row`.

        `_lane` is the key of an order as bytes, null where rows have none; `_to` a struct of `url` and `fault`, of
        which one is null: the fault is the reason of a dead letter. `_to` is null where a field cannot be evaluated.
        `_row` is what the encoding takes. Raises StartError, naming the column.
        """
        names = own_columns(events).fieldNames()
        seen = events if "event" in names else events.withColumn("event", row(names))
        check_fields(seen, "url", self.template.fields)
        values, texts = json_fields(self.body.pieces or ())
        check_fields(seen, "body", values, one_value=False)
        check_fields(seen, "body", texts)
        value = self.encoding(events).column(own_columns(events, self.without).fieldNames())
        to = to_column(self.template, self.hosts)
        lane = lane_of(seen, None if self.ordering == "none" else self.key)
        return seen.select(*PLACE, lane.alias("_lane"), to.alias("_to"), value.alias("_row"))

    def _looked(self, opening: Opening) -> Self:
        """Return this sink with its columns looked at."""
        looked = self.model_copy()
        looked._folder, looked._encodings, looked._credentials = opening.folder, {}, None
        looked.encoding(opening.events, trial=opening.trial)
        looked.columns(opening.events).schema  # noqa: B018 - analyses the expressions
        return looked

    def _log_in(self) -> None:
        """Raise StartError for a login that cannot work. A token server that is away keeps no table from starting."""
        from router_rest.credentials import apply

        try:
            apply(self.credentials(self.folder).current())
        except ConnectionError as error:
            log.warning("rest %s: no token yet: %s", self.limit, error)
