"""The options of the sink that posts to HTTP APIs, and whether they go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from router import ApplyingSink, Encoder
from router_encoders import ToJson
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
from router_rest.templates import parse_url
from router_sinks.naming import check_name

if TYPE_CHECKING:
    from typing_extensions import Self

    from router_rest.bodies import Body
    from router_rest.templates import UrlTemplate


class RestOptions(ApplyingSink):
    """Hold the options of `rest`; what it does with them is its own."""

    model_config = ConfigDict(hide_input_in_errors=True)

    main_option: ClassVar[str | None] = "url"

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
