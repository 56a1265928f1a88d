"""The options of the REST sink: what is refused when it is read, and what is never seen."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from router import Sink
from router.registry import load_registry
from router_http.options import OAuth
from router_rest.options import Limit, parse_seconds
from router_sinks import Rest
from tests.rest.sink_options import URL, read_sink_options

HUSH = "hush-hush"
OAUTH = {"token_url": "https://login.test/token", "client_id": "router", "client_secret": HUSH}
WITH_SECRETS: list[dict[str, Any]] = [
    {"headers": {"X-Key": HUSH}},
    {"proxy": f"http://me:{HUSH}@proxy.test:3128"},
    {"auth": {"bearer": HUSH}},
    {"auth": {"basic": {"user": "router", "password": HUSH}}},
    {"auth": {"api_key": {"header": "X-Key", "value": HUSH}}},
    {"auth": {"oauth": OAUTH}},
    {"auth": {"hmac": {"key": HUSH}}},
    {"auth": {"plugin": "a.b:C", "options": {"key": HUSH, "rounds": 3}}},
]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"url": "api.test"}, "a URL is http"),
        ({"url": "ftp://api.test"}, "a URL is http"),
        ({"url": "https://"}, "a URL is http"),
        ({"url": "{event.url}"}, "no field stands before the host"),
        ({"url": "https://api.test:many"}, "a URL is http"),
        ({"url": "https://api.test/a#b"}, "a URL is http"),
        ({"url": "https://api.test/a b"}, "the path of a URL cannot have ' ' as it is"),
        ({"url": "https://api.test/ä"}, "the path of a URL cannot have 'ä' as it is"),
        ({"url": "https://api.test/%zz"}, "the path of a URL cannot have '%' as it is"),
        ({"url": "https://api.test?a=\\"}, "the query of a URL cannot have '\\\\' as it is"),
        ({"url": "https://api.test/\x00"}, "control characters"),
        ({"url": "https://api.test/a/../b"}, "no segments"),
        ({"url": "https://api.test/a/%2E%2e/b"}, "no segments"),
        ({"url": "https://api.test/{event.a"}, "character 18 has no partner"),
        ({"url": "https://api.test/{}"}, "hold no field"),
        ({"url": f"https://me:{HUSH}@api.test"}, "no user and password"),
        ({"url": "https://{event.region}.api.test"}, "list in `hosts`"),
        ({"hosts": ["api.test"]}, "the URL's host is fixed"),
        ({"url": "https://{event.a}/", "hosts": ["api.test/x"]}, "a host is a name or an address"),
        ({"url": "https://{event.a}/", "hosts": [f"me:{HUSH}@api.test"]}, "a host is a name or an address"),
        ({"method": "GET"}, "'POST', 'PUT', 'PATCH' or 'DELETE'"),
        ({"method": {"name": "PUT", "sql": "event.a"}}, "one of name, for all calls, and sql"),
        ({"method": {"sql": ""}}, "at least 1 character"),
        ({"headers": {"X Key": "a"}}, "a header has a token as its name"),
        ({"headers": {"X-Key": f"{HUSH}\r\nX: 1"}}, "printable ASCII"),
        ({"headers": {"content-type": "text/plain"}}, "write `body: {content_type"),
        ({"headers": {"Host": "other.test"}}, "it follows from `url`"),
        ({"headers": {"X-Key": "a", "x-key": "b"}}, "given twice"),
        ({"headers": {"authorization": "a"}, "auth": {"bearer": HUSH}}, "is set by `auth`"),
        ({"headers": {"idempotency-key": "a"}}, "is set by `auth` or `idempotency_header`"),
        ({"idempotency_header": "a b"}, "no name of a header has"),
        ({"idempotency_header": "Content-Type"}, "another header's name"),
        ({"idempotency_header": "X-Key", "auth": {"api_key": {"header": "x-key", "value": HUSH}}}, "another header's"),
        ({"body": "object", "rows_per_call": 2}, "the body is one object, and a call has up to 2 rows"),
        ({"body": {"wrap": {"events": "$row"}}}, "stands once for the array of rows, and is here 0 times"),
        ({"body": {"wrap": ["$rows", {"a": "$rows"}]}}, "is here 2 times"),
        ({"body": {"wrap": ["$rows"], "form": "ndjson"}}, "and the form is ndjson"),
        ({"body": {"template": {"a": "{event.a"}}}, "has no partner"),
        ({"body": {"template": {"a": float("nan")}}}, "Out of range float"),
        ({"body": {"template": {"a": 1}}, "without": ["b"]}, "remove `without`"),
        ({"body": {"text": "{event.a"}}, "has no partner"),
        ({"body": {"text": "a", "template": {"a": 1}}}, "one of template and text"),
        ({"body": {"text": "a", "form": "array"}}, "text is no JSON"),
        ({"body": {"urlencoded": {"a": "b"}, "action": {"c": 1}}}, "urlencoded is no JSON"),
        ({"body": {"urlencoded": {"a": "b"}}, "rows_per_call": 2}, "a form has one row"),
        ({"body": {"urlencoded": {}}}, "at least 1 item"),
        ({"body": {"text": "a"}, "without": ["b"]}, "remove `without`"),
        ({"body": {"content_type": "json"}}, "match pattern"),
        ({"body": {"content_type": "a/b\nX: 1"}}, "match pattern"),
        ({"rows_per_call": 0}, "greater than or equal to 1"),
        ({"calls_per_second": 0}, "greater than 0"),
        ({"calls_per_second": float("inf")}, "finite"),
        ({"limits": [{"calls": 1, "rows": 1}]}, "one of calls and rows"),
        ({"limits": [{"per": "hour"}]}, "one of calls and rows"),
        ({"limits": [{"calls": 1, "per": "5 parsecs"}]}, "write a number and a unit"),
        ({"limits": [{"calls": 1, "per": 0}]}, "greater than 0"),
        ({"rows_per_second": 5, "rows_per_call": 10}, "a call of 10 rows never fits into 5 rows per 1 s"),
        ({"ordering": "per_partition"}, "'none' or 'per_key'"),
        ({"key": "event.a"}, "it is for `ordering: per_key`"),
        ({"group_by": "event.a"}, "give `rows_per_call`"),
        ({"group_by": "event.a", "rows_per_call": 2, "ordering": "per_key"}, "remove `ordering`"),
        ({"linger": "5 s", "mode": "inline"}, "see `trigger`"),
        ({"linger": 0}, "greater than 0"),
        ({"timeouts": {"read": 30, "total": 10}}, "total is the longest"),
        ({"retry": {"statuses": [200]}}, "greater than or equal to 400"),
        ({"retry": {"attempts": 0}}, "greater than or equal to 1"),
        ({"max_outage": {"then": "park"}}, "Field required"),
        ({"max_outage": {"after": "1 h", "then": "drop"}}, "'wait', 'fail' or 'park'"),
        ({"poison_share": 5}, "less than or equal to 1"),
        ({"results": {"status": "status"}}, "a call has one row"),
        ({"rows_per_call": 2, "results": {"status": "a..b"}}, "names with dots between them"),
        ({"rows_per_call": 2, "results": {"status": "a", "row_id": "b"}}, "no `id` is given"),
        ({"receipts": "receipts"}, "layer.table"),
        ({"responses": "ops.receipts"}, "need a table each"),
        ({"tls": {"key": "key.pem"}}, "a key needs its certificate"),
        ({"tls": {"verify": False}}, "Extra inputs"),
        ({"proxy": f"socks5://me:{HUSH}@proxy.test"}, "a proxy is http"),
        ({"proxy": f"http://me:{HUSH}@proxy.test/path"}, "a proxy is http"),
        ({"auth": {}}, "none is given"),
        ({"auth": {"bearer": HUSH, "hmac": {"key": HUSH}}}, "bearer and hmac are given"),
        ({"auth": {"bearer": HUSH, "options": {"a": 1}}}, "no plugin is given"),
        ({"auth": {"bearer": f"{HUSH}\n"}}, "printable ASCII"),
        ({"auth": {"plugin": "Class"}}, "package.module:Class"),
        ({"auth": {"plugin": "os:system('x')"}}, "package.module:Class"),
        ({"auth": {"api_key": {"value": HUSH}}}, "one of header, query"),
        ({"auth": {"api_key": {"value": HUSH, "query": "a&b"}}}, "match pattern"),
        ({"auth": {"api_key": {"value": f"{HUSH}ä", "header": "X-Key"}}}, "printable ASCII"),
        ({"auth": {"hmac": {"key": HUSH, "signed": "{date}"}}}, "signed: there is no {date}"),
        ({"auth": {"hmac": {"key": HUSH, "value": "v1"}}}, "without {signature} nothing"),
        ({"auth": {"hmac": {"key": HUSH, "value": "{signature}\n"}}}, "printable ASCII"),
        ({"auth": {"hmac": {"key": HUSH, "timestamp_header": None}}}, "the time is signed and not sent"),
        ({"auth": {"hmac": {"key": HUSH, "key_encoding": "hex"}}}, "it is not hex"),
        ({"auth": {"hmac": {"key": HUSH, "key_encoding": "base64"}}}, "it is not base64"),
        ({"auth": {"hmac": {"key": HUSH, "header": "a:b"}}}, "no name of a header has"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused_without_their_secrets(options: dict[str, Any], word: str) -> None:
    """A configuration that cannot work never starts, and its log shows nobody what opens the API."""
    with pytest.raises(ValidationError) as caught:
        read_sink_options(**options)

    assert word in str(caught.value)
    assert HUSH not in str(caught.value)


def test_encoders_that_make_no_json_go_alone() -> None:
    """Binary values in a JSON array would be garbage at the API."""
    resolve = load_registry().resolve
    value = {"to_avro": {"registry": "http://registry.test"}}

    assert resolve(Sink, {"rest": {"url": URL, "value": value}}).body_maker.content_type == "application/octet-stream"  # type: ignore[attr-defined]
    for options in ({"rows_per_call": 2}, {"body": "ndjson"}, {"body": {"template": {"a": 1}}}):
        with pytest.raises(ValidationError, match=r"not JSON|not both"):
            resolve(Sink, {"rest": {"url": URL, "value": value, **options}})


@pytest.mark.parametrize("options", WITH_SECRETS, ids=str)
def test_no_secret_is_seen_or_travels(options: dict[str, Any]) -> None:
    """A plan, a log line, a receipt and a task must not carry what opens the API."""
    sink = read_sink_options(**options)

    assert HUSH not in f"{sink!r} {sink} {sink.model_dump()} {sink.model_dump_json()}"
    assert HUSH.encode() not in pickle.dumps(sink)


def test_a_bare_url_is_enough() -> None:
    """The shortest configuration has the defaults that the documentation promises."""
    sink = load_registry().resolve(Sink, {"rest": URL})

    assert isinstance(sink, Rest)
    assert (sink.mode, sink.ordering, sink.idempotency_header) == ("detached", "none", "Idempotency-Key")
    assert sink.tls.verify is True
    assert sink.stated_limits() == ()


def test_every_limit_is_kept_at_once() -> None:
    """An API with a limit per second and one per hour answers 429 when either is ignored."""
    limits = [{"calls": 5000, "per": "hour"}, {"rows": 20, "per": "10 s"}]
    sink = read_sink_options(calls_per_second=10, rows_per_second=7, limits=limits)

    assert [(one.calls, one.rows, one.per) for one in sink.stated_limits()] == [
        (10, None, 1),
        (None, 7, 1),
        (5000, None, 3600),
        (None, 20, 10),
    ]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "https://api.test:443"),
        ({"url": "HTTP://API.test/x?y=1"}, "http://api.test:80"),
        ({"url": "http://api.test:8080"}, "http://api.test:8080"),
        ({"url": "http://[::1]/x"}, "http://[::1]:80"),
        ({"url": "https://api.test:443/{event.a}"}, "https://api.test:443"),
        ({"url": "https://{event.a}.test", "hosts": ["a.test"]}, "https://{event.a}.test:443"),
        ({"limit_name": "games"}, "games"),
    ],
    ids=str,
)
def test_sinks_of_one_api_share_a_limit_without_being_told(options: dict[str, Any], name: str) -> None:
    """Two sinks that each use the whole limit get 429s for half of their calls."""
    assert read_sink_options(**options).limit == name


@pytest.mark.parametrize(
    ("text", "found"),
    [("500 ms", 0.5), ("10 s", 10), ("1.5 min", 90), ("2h", 7200), ("day", 86400), ("3 hours", 10800), (7, 7)],
)
def test_spans_are_written_as_people_say_them(text: Any, found: float) -> None:
    """A limit per hour that is read as one per second stops nothing."""
    assert Limit(calls=1, per=text).per == found


@given(st.text())
def test_any_text_is_a_span_or_refused(text: str) -> None:
    """A typing error ends in a message."""
    with suppress(ValueError):
        assert parse_seconds(text) >= 0


def test_options_have_a_manual_page() -> None:
    """An option that nobody can read about does not exist for a user."""
    definitions = Rest.model_json_schema()
    models = {"Rest": definitions, **definitions["$defs"]}

    for name in ("Rest", "Auth", "ApiKey", "Hmac", "Jwt", "SigV4", "MethodOptions", "BodyOptions", "Limit", "Retry"):
        fields = models[name]["properties"].items()
        assert [field for field, said in fields if not said.get("description")] == [], name
    for name in ("BulkResults", "Timeouts", "Tls"):
        fields = models[name]["properties"].items()
        assert [field for field, said in fields if not said.get("description")] == [], name


def test_the_registry_and_the_api_log_in_with_the_same_options() -> None:
    """Whoever has configured one knows the other."""
    sink = read_sink_options(auth={"oauth": OAUTH})

    assert sink.auth is not None
    assert sink.auth.oauth == OAuth.model_validate(OAUTH)
