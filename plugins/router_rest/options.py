"""The options of the sink `rest` as people write them, whether they go together, and what they make of rows.

`check_columns` opens a sink for the columns of a route, on the driver.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PrivateAttr,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pyspark.sql import functions as F

from router import ApplyingSink, Encoder, Encoding, StartError, template_fields
from router_encoders import ToAvro, ToJson, ToProtobuf
from router_encoders.outbox_rows import PLACE, as_it_is, order_key, own_columns, type_of, with_event
from router_encoders.templates import check_name
from router_http.options import Secret, SecretOptions, Tls, check_header, checked_url, is_header_name, is_header_text
from router_rest.answers.bulk_results import BulkResults
from router_rest.answers.rules import AnswerRule, Then
from router_rest.delivery.batcher import HOST_AS_LIMIT_KEY, LIMIT_KEY_COLUMN
from router_rest.logins.auth import Auth
from router_rest.presets import PRESETS, expand_preset
from router_rest.templates import (
    MEDIA_TYPES,
    Body,
    BodyForm,
    BodyPiece,
    body_column,
    body_fields,
    body_of,
    check_fields,
    check_wrap,
    has_header_field,
    parse_form,
    parse_json,
    parse_text,
    parse_url,
    to_column,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame
    from typing_extensions import Self

    from router import Opening
    from router_rest.logins.credentials import Credentials
    from router_rest.templates import UrlTemplate

_UNIT_SECONDS = {
    "ms": 0.001,
    **dict.fromkeys(("s", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_DURATION_PATTERN = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)?\s*([a-z]+)\s*")


def parse_seconds(value: Any) -> Any:
    """Return the seconds of `10 s`, `5 min`, `1 h`, `hour`; a number is seconds already."""
    if not isinstance(value, str):
        return value
    number_and_unit = _DURATION_PATTERN.fullmatch(value)
    if number_and_unit is None or number_and_unit[2] not in _UNIT_SECONDS:
        raise ValueError("write a number and a unit: 500 ms, 10 s, 5 min, 1 h, 1 d")
    return float(number_and_unit[1] or 1) * _UNIT_SECONDS[number_and_unit[2]]


Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds),
    Field(gt=0, le=366 * 86400, allow_inf_nan=False),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]}),
]


class Limit(SecretOptions):
    """A limit of an API: so many calls, or so many rows, in any span of a length."""

    calls: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="calls, with their retries")
    rows: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="rows of these calls")
    per: Seconds = Field(default=1.0, description="second, minute, hour, day, or another span: 10 s")

    @model_validator(mode="after")
    def _limits_one(self) -> Self:
        if (self.calls is None) == (self.rows is None):
            raise ValueError("a limit is one of calls and rows; give each a limit of its own")
        return self


class Timeouts(SecretOptions):
    """The time that an attempt may take."""

    connect: Seconds = Field(default=5.0, description="until there is a connection")
    read: Seconds = Field(default=30.0, description="without a byte of the answer")
    total: Seconds = Field(default=60.0, description="until the whole answer is there")
    connection: Seconds = Field(
        default=300.0, description="age of a connection, after which its name is looked up again"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.total < max(self.connect, self.read):
            raise ValueError("total is the longest of the three")
        return self


class Retry(SecretOptions):
    """How often a call is tried that an API did not take, and may take later."""

    attempts: int = Field(default=5, ge=1, le=100, description="attempts of a call, the first one included")
    elapsed: Seconds = Field(default=300.0, description="no attempt begins later than so long after the first")
    statuses: tuple[Annotated[int, Field(ge=400, le=599)], ...] | None = Field(
        default=None, description="statuses that are tried again, instead of 408, 423, 425, 429 and 5xx but 501"
    )

    rounds: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="rounds of attempts that a call fails while others are taken, before its rows are set aside",
    )
    then: Literal["park", "dead"] = Field(
        default="park", description="what becomes of them: `park` them for `router replay`, or `dead` letters"
    )


class MaxOutage(SecretOptions):
    """What becomes of calls when an API stays unavailable."""

    after: Seconds = Field(
        description="length of an outage, or of the failures of a call while others succeed: 10 min, 2 h"
    )
    then: Literal["wait", "fail", "park"] = Field(
        default="wait", description="keep to `wait`, `fail` (the stream stops), or `park` the rows for `router replay`"
    )


class AnswerOptions(SecretOptions):
    """A rule: what becomes of the rows of a call, or of one of them, if a condition on the answer holds."""

    when: str = Field(
        description="SQL over `status`, `headers`, `body`, `method` and, with `results`, `item`: body.ok = false"
    )
    then: Then = Field(
        description="`retry`, `deliver`, `dead`, `park`, `pause` (as a 429), `split` (as a 413) or `fail` (as a 403)"
    )
    reason: str | None = Field(default=None, description="why, with expressions in braces: '{body.error}'")

    @field_validator("when")
    @classmethod
    def _check_when(cls, when: str) -> str:
        AnswerRule.from_texts(when, "retry", None)
        return when

    @field_validator("reason")
    @classmethod
    def _check_reason(cls, reason: str | None) -> str | None:
        AnswerRule.from_texts("true", "retry", reason)
        return reason

    @property
    def rule(self) -> AnswerRule:
        """Return the rule as tasks ask it."""
        return AnswerRule.from_texts(self.when, self.then, self.reason)


class BodyOptions(SecretOptions):
    """What a body is made of. A bare text is the form."""

    form: BodyForm | None = Field(
        default=None,
        description="`object`: the row alone; `array`: a JSON array; `ndjson`: a line for each row. Default: `object` "
        "for one row per call, else `array`",
    )
    wrap: dict[str, JsonValue] | list[JsonValue] | None = Field(
        default=None, description='JSON around the array, with "$rows" in its place: {events: $rows}'
    )
    template: dict[str, JsonValue] | list[JsonValue] | None = Field(
        default=None,
        description='JSON of a row instead of all its columns: {text: "{event.n} chips", user: "{event.user}"}',
    )
    text: str | None = Field(
        default=None,
        min_length=1,
        description='text of a row instead of JSON, on a line of its own: "wins,user={event.user} n={event.n}"',
    )
    urlencoded: dict[str, str] | None = Field(
        default=None,
        min_length=1,
        description='fields of a form (application/x-www-form-urlencoded), of one row: {user: "{event.user}"}',
    )
    action: dict[str, JsonValue] | None = Field(
        default=None, description='JSON on a line before that of each row: {create: {_id: "{event.id}"}}; for `ndjson`'
    )
    content_type: str | None = Field(
        default=None,
        pattern=r"^[\x21-\x7e]+/[\x20-\x7e]*[\x21-\x7e]$",
        description="header Content-Type; default: as the form and the encoder say",
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_name(cls, value: Any) -> Any:
        return {"form": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        ways = [name for name in ("template", "text", "urlencoded") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise ValueError(f"a body is one of {' and '.join(ways)}")
        lines = self.text is not None and self.form == "ndjson"
        if ways and ways[0] != "template" and (self.wrap or self.action or (self.form and not lines)):
            raise ValueError(f"{ways[0]} is no JSON: remove `form`, `wrap` and `action`")
        if self.wrap is not None:
            check_wrap(self.wrap)
            if self.form not in (None, "array"):
                raise ValueError(f"wrap is put around an array, and the form is {self.form}")
        if self.action is not None and self.form != "ndjson":
            raise ValueError("an action is a line before that of a row: write `form: ndjson`")
        if self.action is not None:
            parse_json(self.action)
        self.pieces  # noqa: B018 - reads the template
        return self

    @property
    def pieces(self) -> tuple[BodyPiece, ...] | None:
        """Return the pieces of the template; None: there is none."""
        if self.text is not None:
            return parse_text(self.text)
        if self.urlencoded is not None:
            return parse_form(self.urlencoded)
        return None if self.template is None else parse_json(self.template)

    def form_of(self, rows_per_call: int) -> BodyForm:
        """Return the form of bodies."""
        if self.form is not None or self.urlencoded is not None:
            return self.form or "object"
        if rows_per_call == 1 and self.wrap is None:
            return "object"
        return "array" if self.text is None else "ndjson"

    def make_body(self, rows_per_call: int, *, json: bool, compressed: bool) -> Body:
        """Return the maker of bodies; `json`: the values are JSON."""
        form = self.form_of(rows_per_call)
        media_type = MEDIA_TYPES[form]
        if self.text is not None:
            media_type = MEDIA_TYPES["text"]
        elif self.urlencoded is not None:
            media_type = MEDIA_TYPES["urlencoded"]
        if not json:
            media_type = "application/octet-stream"
        lines = 1 + (self.text or "").count("\n")
        if self.action is not None:
            lines += 1
        return body_of(form, self.content_type or media_type, wrap=self.wrap, compressed=compressed, lines=lines)


class MethodOptions(SecretOptions):
    """The method of calls. A bare text is that of all."""

    name: Literal["POST", "PUT", "PATCH", "DELETE"] = Field(default="POST", description="method of every call")
    sql: str | None = Field(
        default=None,
        min_length=1,
        description="SQL of each row's method: CASE WHEN event.gone THEN 'DELETE' ELSE 'PUT' END",
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.sql is not None and "name" in self.model_fields_set:
            raise ValueError("give one of name, for all calls, and sql, for each row")
        return self


TAKEN_HEADERS = {
    "content-type": "write `body: {content_type: ...}`",
    "content-encoding": "write `gzip`",
    "content-length": "it follows from the body",
    "transfer-encoding": "it follows from the body",
    "host": "it follows from `url`",
    "connection": "connections are kept",
}
"""Headers that the sink sets itself, and what to write instead."""


def checked_host(host: str) -> str:
    """Return a host in the form in which hosts are compared; raise ValueError for an invalid one."""
    try:
        same = host != "" and urlsplit(checked_url(f"https://{host}")).netloc == host
    except ValueError:
        same = False
    if not same:
        raise ValueError("a host is a name or an address, with a port if the URL has one: api.test:8443")
    return host.lower()


def check_hosts(template: UrlTemplate, hosts: tuple[str, ...]) -> None:
    """Raise ValueError if data could name any host, or where `hosts` has no effect."""
    if hosts and template.has_fixed_host:
        raise ValueError("hosts: the URL's host is fixed; remove `hosts`")
    if not hosts and not template.has_fixed_host:
        raise ValueError("the URL's host has a field in it: list in `hosts` what it may be")


def check_own_headers(headers: Mapping[str, Secret], auth: Auth | None, idempotency_header: str | None) -> None:
    """Raise ValueError if two options set the same header, or a name is invalid."""
    if idempotency_header is not None and not is_header_name(idempotency_header):
        raise ValueError("idempotency_header: it has a character that no name of a header has")
    logins = set()
    if auth is not None:
        logins = {name.lower() for name in auth.headers}
    key_header = (idempotency_header or "").lower()
    for name in headers:
        if name.lower() in {*logins, key_header}:
            raise ValueError(f"the header {name} is set by `auth` or `idempotency_header`; take it out of `headers`")
    if key_header in {*logins, *TAKEN_HEADERS}:
        raise ValueError(f"idempotency_header: {idempotency_header} is another header's name")


def check_body(body: BodyOptions, value: Encoder | None, without: tuple[str, ...], rows_per_call: int) -> None:
    """Raise ValueError for options of a body that exclude each other; `value` is the encoder, if one was given."""
    form = body.form_of(rows_per_call)
    if body.pieces is not None and value is not None:
        raise ValueError("give `value` or a template of the body, not both")
    if body.pieces is not None and without:
        raise ValueError("the template of the body names its columns itself; remove `without`")
    if body.urlencoded is not None and rows_per_call > 1:
        raise ValueError(f"a form has one row, and a call up to {rows_per_call}: remove `rows_per_call`")
    if form == "object" and rows_per_call > 1:
        raise ValueError(f"the body is one object, and a call has up to {rows_per_call} rows: write array or ndjson")
    if body.action is not None and not isinstance(value, (ToJson, type(None))):
        raise ValueError("an action is JSON before a row in JSON: remove `value` or `action`")
    if form != "object" and isinstance(value, (ToAvro, ToProtobuf)):
        raise ValueError(f"values of {value.part_name} are not JSON: they go alone, with `rows_per_call: 1`")


def check_limits(limits: Iterable[Limit], rows_per_call: int) -> None:
    """Raise ValueError for a limit that is smaller than one full call."""
    for limit in limits:
        if limit.rows is not None and limit.rows < rows_per_call:
            rows = f"{limit.rows:g} rows per {limit.per:g} s"
            raise ValueError(f"a call of {rows_per_call} rows never fits into {rows}: lower rows_per_call")


def check_limit_by(limit_by: str | None, limits: tuple[Limit, ...], template: UrlTemplate) -> None:
    """Raise ValueError if there is nothing that each key could have for itself, or one host only."""
    if limit_by is not None and not limits:
        raise ValueError("limit_by: there is no limit that each key could have; write `calls_per_second` or `limits`")
    if limit_by == HOST_AS_LIMIT_KEY and template.has_fixed_host:
        raise ValueError("limit_by: the URL's host is fixed; remove `limit_by`, or name a column")


class RestOptions(ApplyingSink):
    """The options of `rest`."""

    model_config = ConfigDict(hide_input_in_errors=True)

    main_option: ClassVar[str | None] = "url"

    url: str = Field(description="http(s) URL, which may have fields in braces: https://api.test/games/{event.game}")
    hosts: tuple[str, ...] = Field(
        default=(), description="hosts (with the port, if the URL has one) that fields in the URL's host may name"
    )
    method: MethodOptions = Field(
        default=MethodOptions(), description="POST, PUT, PATCH or DELETE, for all rows; or by row: {sql: event.method}"
    )
    headers: dict[str, Secret] = Field(
        default_factory=dict,
        description="further headers; never shown, unless they have fields in braces: {X-Game: '{event.game}'}",
    )
    value: Encoder = Field(default=ToJson(), description="an encoder of a row: to_json, to_avro, to_protobuf, ...")
    body: BodyOptions = Field(
        default=BodyOptions(),
        description="`object`, `array` or `ndjson`, or options: `form`, `wrap` ({events: $rows}), `template` ({text: "
        '"{event.n} chips"}: JSON instead of all columns), `text`, `urlencoded`, `content_type`',
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
    limit_by: str | None = Field(
        default=None,
        min_length=1,
        description="SQL of a key, each value of which has these limits for itself: event.account; `host`: of the URL",
    )
    max_in_flight: int = Field(default=64, ge=1, le=10_000, description="calls at once, of all tasks together")
    bytes_in_flight: int = Field(
        default=64 << 20, ge=1 << 20, description="bytes that the calls of a task may take in memory, gzip included"
    )
    tasks: int | None = Field(
        default=None, ge=1, le=10_000, description="tasks that send; default: as few as limits need"
    )

    ordering: Literal["none", "per_key"] = Field(
        default="none", description="`per_key`: a row is sent when those of its key before it have been answered"
    )
    key: str = Field(default="_key", min_length=1, description="SQL of the key for `ordering: per_key`")
    group_by: str | None = Field(
        default=None,
        min_length=1,
        description="SQL of a key that all rows of a call have; calls of one key go out one after the other",
    )
    linger: Seconds | None = Field(
        default=None, description="time in which a detached sink collects rows before it sends them: 10 s"
    )
    idempotency_key: str = Field(
        default="uuid5",
        min_length=1,
        description="`uuid5`: 36 characters made of where a call's rows come from and of its body; or text with fields",
    )
    idempotency_header: str | None = Field(
        default="Idempotency-Key", description="header with the same value whenever a call is sent again; null: none"
    )
    mode: Literal["detached", "inline"] = Field(
        default="detached", description="`detached`: a query of its own, tables do not wait; `inline`: the batch waits"
    )
    timeouts: Timeouts = Field(
        default=Timeouts(),
        description="of an attempt: `connect` 5 s, `read` 30 s, `total` 1 min; `connection` 5 min: its age at most",
    )
    retry: Retry = Field(
        default=Retry(), description="of a call: `attempts` 5, `elapsed` 5 min, `statuses`, `rounds` 3, `then`"
    )
    max_outage: MaxOutage | None = Field(
        default=None,
        description="for long outages: `after` (2 h), `then` (wait, fail, park); default: wait",
    )
    poison_share: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="share of a batch that the API may refuse; with more the stream stops: it is not the rows then",
    )
    results: BulkResults | None = Field(
        default=None,
        description="a bulk API's answer: `path` of its items, `status`, `ok`, `id`, `row_id` and `reason` in an item",
    )
    preset: Literal["slack", "elasticsearch_bulk", "graphql", "splunk_hec", "standard_webhooks"] | None = Field(
        default=None, description="options for an API: `answers` and limits; each may be given in its place"
    )
    answers: tuple[AnswerOptions, ...] = Field(
        default=(),
        description="rules, the first that holds decides, before statuses do: {when: body.ok = false, then: dead}",
    )
    receipts: str = Field(default="ops.receipts", description="table with what became of every row")
    responses: str | None = Field(default=None, description="table with the bodies of answers, for another route")

    auth: Auth | None = Field(
        default=None,
        description="one of `basic`, `bearer`, `api_key`, `oauth`, `hmac`, `sigv4`, `jwt`, `plugin` with `options`",
    )
    tls: Tls = Field(
        default=Tls(),
        description="`ca`, `certificate` and `key` (PEM files, at the same place on every machine), "
        "`insecure_skip_tls_verification`",
    )
    allow_dot_segments: bool = Field(
        default=False, description="send values in the URL's path that hold `../`, which servers may decode and follow"
    )
    proxy: Secret | None = Field(
        default=None,
        description="URL of an HTTP proxy, with user and password if it has any; `environment`: as HTTP_PROXY, "
        "HTTPS_PROXY and NO_PROXY of the driver say",
    )

    _folder: Path | None = PrivateAttr(default=None)
    _encodings: dict[str, Encoding] = PrivateAttr(default_factory=dict)
    _credentials: Any = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, value: Any) -> Any:
        return expand_preset(value, PRESETS)

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parse_url(url)
        return url

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(checked_host, hosts))

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, Secret]) -> dict[str, Secret]:
        seen: set[str] = set()
        for name, value in headers.items():
            check_header(name, value)
            if name.lower() in TAKEN_HEADERS:
                raise ValueError(f"the header {name} belongs to the sink: {TAKEN_HEADERS[name.lower()]}")
            if name.lower() in seen:
                raise ValueError(f"the header {name} is given twice")
            seen.add(name.lower())
        return headers

    @field_validator("receipts", "responses")
    @classmethod
    def _check_table(cls, table: str | None) -> str | None:
        return None if table is None else check_name(table)

    @field_validator("proxy")
    @classmethod
    def _check_proxy(cls, proxy: Secret | None) -> Secret | None:
        url = "environment" if proxy is None else proxy.get_secret_value()
        if url == "environment":
            return proxy
        try:
            parts = urlsplit(url)
            whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:
            whole = False
        # The message does not quote it: it may hold a password.
        if not whole or not is_header_text(url) or parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError("a proxy is http(s)://[user:password@]host[:port]")
        return proxy

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        written = self.model_fields_set
        check_hosts(self.template, self.hosts)
        if self.id_header is not None and "idempotency_header" in written:
            raise ValueError(f"idempotency_header: the signature says that it is {self.id_header}")
        check_own_headers(self.headers, self.auth, self.key_header)
        check_body(self.body, self.value if "value" in written else None, self.without, self.rows_per_call)
        check_limits(self.stated_limits(), self.rows_per_call)
        check_limit_by(self.limit_by, self.stated_limits(), self.template)
        if self.results is not None and self.body.form_of(self.rows_per_call) == "object":
            raise ValueError("results tell the rows of a call apart, and a call has one row")
        if self.results is None and any(answer.rule.of_items for answer in self.answers):
            raise ValueError("answers: `item` is what `results` says where to find, and there is no `results`")
        if self.ordering == "none" and "key" in written:
            raise ValueError("key: it is for `ordering: per_key`")
        if self.group_by is not None and self.rows_per_call == 1:
            raise ValueError("group_by: a call has one row; give `rows_per_call`")
        if self.group_by is not None and self.ordering != "none":
            raise ValueError("group_by: rows keep the order of its key; remove `ordering`")
        if self.linger is not None and self.mode == "inline":
            raise ValueError("linger: with `mode: inline` batches are those of the stream: see `trigger`")
        if self.idempotency_key != "uuid5" and (self.rows_per_call > 1 or not has_header_field(self.idempotency_key)):
            raise ValueError('idempotency_key: uuid5, or text with fields ("{event.id}") for one row per call')
        if self.responses == self.receipts:
            raise ValueError("receipts and responses need a table each")
        return self

    @property
    def template(self) -> UrlTemplate:
        """Return the URL as a template."""
        return parse_url(self.url)

    @property
    def rendered_headers(self) -> dict[str, str]:
        """Return the templates of headers that are made of data, by name; the idempotency key last if it is one."""
        templates = {}
        for name, value in self.headers.items():
            template = value.get_secret_value()
            if has_header_field(template):
                templates[name] = template
        if self.key_header is not None and self.idempotency_key != "uuid5":
            templates[self.key_header] = self.idempotency_key
        return templates

    @property
    def id_header(self) -> str | None:
        """Return the header that a signature takes for the idempotency key."""
        if self.auth is None or self.auth.hmac is None:
            return None
        return self.auth.hmac.id_header

    @property
    def key_header(self) -> str | None:
        """Return the header that carries the idempotency key."""
        return self.id_header or self.idempotency_header

    @property
    def ordered_by(self) -> str | None:
        """Return SQL of the key by which rows keep their order; None: they keep none."""
        if self.group_by is not None or self.ordering == "none":
            return self.group_by
        return self.key

    @property
    def fixed_headers(self) -> dict[str, Secret]:
        """Return the headers that are the same for all rows."""
        return {name: value for name, value in self.headers.items() if name not in self.rendered_headers}

    @property
    def detached(self) -> bool:
        """Say whether the sink has a query of its own, so that tables do not wait for the API."""
        return self.mode == "detached"

    @property
    def limit(self) -> str:
        """Return the name of the limit; sinks of one name share it."""
        return self.limit_name or self.template.origin

    def stated_limits(self) -> tuple[Limit, ...]:
        """Return every stated limit of the API."""
        limits = []
        if self.calls_per_second is not None:
            limits.append(Limit(calls=self.calls_per_second))
        if self.rows_per_second is not None:
            limits.append(Limit(rows=self.rows_per_second))
        return (*limits, *self.limits)

    @property
    def body_maker(self) -> Body:
        """Return the maker of a body from the rows of a call; it is pickled to tasks."""
        has_text = self.body.pieces is not None or isinstance(self.value, ToJson)
        return self.body.make_body(self.rows_per_call, json=has_text, compressed=self.gzip)

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

        `_order` is the key of an order as bytes, or null; `_to` a struct as of `to_column`, or null
        if rows name nothing of a call. `_row` is what the encoding
        takes. With `limit_by` there is also `_limit`, its key.
        Raises StartError, naming the column.
        """
        # Fields are those of the route's columns, by their own names and as parts of `event`.
        events_with_event = with_event(events)
        self._check_named_columns(events_with_event)
        value = self.encoding_of(events).column(own_columns(events, self.without).fieldNames())
        if self._action_pieces:
            value = F.concat(body_column(self._action_pieces), value)
        to = F.lit(None).cast("string")
        if self.template.fields or self.method.sql is not None or self.rendered_headers:
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
