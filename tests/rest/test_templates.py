"""URLs and bodies made of hostile values: each stays where the template puts it, or its row is refused."""

from __future__ import annotations

import json
import random
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
import requests
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import functions as F

from router import Opening, StartError
from router_rest.delivery.call import RequestBuilder
from router_rest.delivery.send_plan import form_of
from router_rest.templates import (
    MAX_URL_CHARS,
    UrlTemplate,
    body_column,
    parse_form,
    parse_json,
    parse_text,
    parse_url,
    to_column,
)
from router_sinks import Rest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.schemas.faulty import FaultyRegistry

HERE = Path()
NOISE = random.Random(7)
SIGNS = "./\\%?#&=+;:@!$'()*,~_-[]{}|^`<>\"  \t\r\n\0\x7f\x85aZ09äßЖ漢\u202e\u2028\ufeff\ufffd😀\u0301"
HOSTILE = [
    "../../admin",
    "..%2f..%2fadmin",
    "%2e%2e",
    "%2E",
    "..;/x",
    "a/b",
    "a\\b",
    "a?b=c",
    "a#b",
    "a&r=2",
    "a=b;c",
    "a+b c",
    "%",
    "%zz",
    "%00",
    "x\r\nX-More: 1",
    "x HTTP/1.1\r\nHost: other.test\r\n\r\n",
    "\0",
    "\x7f",
    "@other.test",
    "//other.test/",
    "http://other.test",
    "{event.v}",
    "${HOME}",
    "...",
    ". ",
    "~user",
    " ",
    "\u2025",
    "\uff0e\uff0e",
    "\uff0f",
    "é",
    "e\u0301",
    *("".join(NOISE.choices(SIGNS, k=NOISE.randint(3, 12))) for _ in range(300)),
]


def lane(spark: SparkSession, values: list[str | None]) -> DataFrame:
    """Return rows of a lane with the columns of a route: a text, and a number."""
    rows: list[Any] = [
        ("t", 0, at, datetime(2026, 1, 1, tzinfo=timezone.utc), b"k", value, at) for at, value in enumerate(values)
    ]
    return spark.createDataFrame(
        rows, "_topic string, _partition int, _offset bigint, _timestamp timestamp, _key binary, v string, n int"
    )


def opened(events: DataFrame, folder: Path = HERE, **options: Any) -> Rest:
    """Open a sink as the start of a stream does."""
    sink = Rest.model_validate({"url": "http://api.test/{event.v}", **options})
    return sink.prepare(Opening(folder, events.limit(0)))


def targets(events: DataFrame, **options: Any) -> list[tuple[str | None, str | None]]:
    """Return (url, fault) of each row; the URL as it is sent if it is the same for all."""
    sink = opened(events, **options)
    rows = sink.task_columns(events).orderBy("_offset")
    if rows.schema["_to"].dataType.simpleString() == "string":
        return [(RequestBuilder(form_of(sink)).build_request("", b"", "").url, None)] * rows.count()
    return [(row["target"], row["fault"]) for row in rows.select("_to.*").collect()]


@pytest.mark.parametrize("compile_", [False, True], ids=["interpreted", "compiled"])
def test_any_value_arrives_as_one_segment_and_one_value(
    spark: SparkSession, faulty: FaultyRegistry, request: pytest.FixtureRequest, compile_: bool
) -> None:
    """Whoever writes events could otherwise call any path of the API, or add parameters and headers."""
    if compile_:
        request.getfixturevalue("compiled")
    url = f"{faulty.url}/a/{{event.v}}/b-{{v}}?q={{ event.v }}&r=1"

    made = targets(lane(spark, [*HOSTILE]), url=url, allow_dot_segments=True)

    assert [fault for _, fault in made] == [None] * len(HOSTILE)
    with requests.Session() as session:
        for found, _ in made:
            session.post(str(found), data=b"{}", allow_redirects=False).close()
    assert len(faulty.paths) == len(HOSTILE)
    for value, path in zip(HOSTILE, faulty.paths, strict=True):
        parts = urlsplit(path)
        assert [unquote(part, errors="strict") for part in parts.path.split("/")] == ["", "a", value, f"b-{value}"]
        assert parse_qsl(parts.query, keep_blank_values=True, errors="strict") == [("q", value), ("r", "1")]
        assert path.isascii()
        assert path.isprintable()
    assert {seen.headers["Host"] for seen in faulty.seen} == {faulty.url.removeprefix("http://")}
    assert not any("X-More" in seen.headers for seen in faulty.seen)


@pytest.mark.parametrize(
    ("url", "value", "why"),
    [
        ("http://api.test/{v}", None, "field {v} is null"),
        ("http://api.test/?q={v}", None, "field {v} is null"),
        ("http://api.test/{v}", "", "field {v} is empty"),
        ("http://api.test/users/{v}", "", "field {v} is empty"),
        ("http://api.test/users-{event.v}", "", "field {event.v} is empty"),
        ("http://api.test/{v}/x", ".", "segment `.` or `..`"),
        ("http://api.test/{v}/x", "..", "segment `.` or `..`"),
        ("http://api.test/a/.{v}", ".", "segment `.` or `..`"),
        ("http://api.test/a/{v}{v}", ".", "segment `.` or `..`"),
        ("http://api.test/a/%2e{v}?x", ".", "segment `.` or `..`"),
        ("http://api.test/{v}", "x" * MAX_URL_CHARS, "more than 8000 characters"),
        ("http://api.test/?q={v}", "ä" * (MAX_URL_CHARS // 6), "more than 8000 characters"),
    ],
)
def test_a_value_that_leads_elsewhere_is_refused_with_the_reason(
    spark: SparkSession, url: str, value: str | None, why: str
) -> None:
    """An empty or dotted segment is another resource: DELETE /users/ in place of one user."""
    ((found, fault), good) = targets(lane(spark, [value, "x"]), url=url)

    assert found is None
    assert why in str(fault)
    assert "xxx" not in str(fault)
    assert good[1] is None


@pytest.mark.parametrize(
    ("url", "value", "arrives"),
    [
        ("http://api.test/?q={v}", "", "http://api.test/?q="),
        ("http://api.test/?q={v}", "..", "http://api.test/?q=.."),
        ("http://api.test/{v}.json", ".", "http://api.test/..json"),
        ("http://api.test/a", None, "http://api.test/a"),
        ("http://api.test", "..", "http://api.test/"),
        ("HTTPS://Api.test:8443/%7Ea/?", "x", "https://api.test:8443/~a/"),
        ("http://api.test/{event.n}/{_topic}/{_key}/{_offset}", "x", "http://api.test/0/t/k/0"),
    ],
)
def test_values_that_lead_nowhere_else_are_taken(
    spark: SparkSession, url: str, value: str | None, arrives: str
) -> None:
    """A rule that refuses too much loses events that an API would take."""
    assert targets(lane(spark, [value]), url=url) == [(arrives, None)]


def test_what_is_not_utf8_is_refused(spark: SparkSession) -> None:
    """Two values that differ in broken bytes would otherwise be one resource."""
    broken = lane(spark, ["x"]).withColumn("v", F.expr("cast(x'61ff62' as string)"))

    ((found, fault),) = targets(broken)

    assert (found, fault) == (None, "the URL's field {event.v} is not UTF-8")


def test_data_names_only_hosts_of_the_list(spark: SparkSession) -> None:
    """Whoever writes events could otherwise have them, and the login, sent to a host of theirs."""
    values = [
        "eu",
        "EU",
        "us",
        "",
        "eu.test/x",
        "me@evil",
        "evil.test#",
        "evil.test/?",
        "eu.api.test:99/",
        "eu\0",
        None,
    ]

    made = targets(
        lane(spark, [*values]), url="https://{event.v}.api.test:99/{v}", hosts=["eu.api.test:99", "Us.api.test:99"]
    )

    assert [url for url, _ in made[:3]] == [
        "https://eu.api.test:99/eu",
        "https://eu.api.test:99/EU",
        "https://us.api.test:99/us",
    ]
    assert {url for url, _ in made[3:]} == {None}
    assert {fault for _, fault in made[4:-1]} == {"the URL's host is none of `hosts`"}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"url": "http://api.test/{event.player}"}, r"url: \{event.player\}: there is no such column; the route has"),
        ({"url": "http://api.test/{event.*}"}, r"\{event.\*\}: name one column"),
        ({"url": "http://api.test/{*}"}, "name one column"),
        ({"url": "http://api.test/{a b c}"}, "there is no such column"),
        ({"url": "http://api.test/{event}"}, "not one value; use a field of it"),
        ({"body": {"template": {"a": "{event.player}"}}}, r"body: \{event.player\}: there is no such column"),
        ({"body": {"template": {"a": "so {event}"}}}, "body: .* not one value"),
        ({"body": {"text": "{event.player}"}}, r"body: \{event.player\}: there is no such column"),
        ({"body": {"urlencoded": {"a": "{event}"}}}, "body: .* not one value"),
        ({"method": {"sql": "event.player"}}, "method: .*player"),
        ({"method": {"sql": "IF("}}, "method: "),
        ({"group_by": "event.player", "rows_per_call": 2}, "group_by: .*player"),
        ({"group_by": "event", "rows_per_call": 2}, "group_by: it is struct"),
        ({"without": ["player"]}, "`without` has player"),
        ({"ordering": "per_key", "key": "event.player"}, "key: .*UNRESOLVED|key: .*player"),
        ({"ordering": "per_key", "key": "event"}, "key: it is struct"),
        ({"ordering": "per_key", "key": "a +"}, "key: "),
        ({"tls": {"ca": "ca.pem"}}, "tls: ca: there is no file .*ca.pem"),
        ({"auth": {"plugin": "nowhere:Login"}}, "nowhere:Login cannot be made"),
    ],
    ids=str,
)
def test_what_cannot_work_with_these_columns_stops_the_start(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], word: str
) -> None:
    """A typing error would otherwise make every row a dead letter."""
    with pytest.raises(StartError, match=word):
        opened(lane(spark, []), tmp_path, **options)


def test_speculation_stops_the_start(spark: SparkSession) -> None:
    """A second copy of a slow task would send its calls a second time."""
    settings = spark._jsparkSession.sessionState().conf()
    settings.setConfString("spark.speculation", "true")
    try:
        with pytest.raises(StartError, match=r"spark\.speculation is on"):
            opened(lane(spark, []))
    finally:
        settings.setConfString("spark.speculation", "false")


def test_a_token_server_that_is_away_is_told_from_one_that_refuses(spark: SparkSession, faulty: FaultyRegistry) -> None:
    """The first passes, and the start does not wait for it; a login that is refused needs somebody at once."""
    faulty.granted = [{"status": 503}, {"status": 401}]
    login = {"token_url": f"{faulty.url}/token", "client_id": "a", "client_secret": "b"}

    with pytest.raises(ConnectionError, match="answers 503"):
        opened(lane(spark, []), auth={"oauth": login})

    with pytest.raises(StartError, match="client_id, its secret or key"):
        opened(lane(spark, []), auth={"oauth": login})


def test_tasks_get_what_they_need_of_each_row(spark: SparkSession) -> None:
    """The columns are the contract between the driver and the tasks."""
    events = lane(spark, ["x", None])
    sink = opened(events, ordering="per_key", key="event.v", url="http://api.test/{event.n}", without=["n"])

    taken = sink.task_columns(events)

    assert taken.schema.simpleString() == (
        "struct<_topic:string,_partition:int,_offset:bigint,_order:binary,"
        "_to:struct<target:string,fault:string>,_row:binary>"
    )
    first, second = taken.orderBy("_offset").collect()
    assert (first["_topic"], first["_partition"], first["_offset"]) == ("t", 0, 0)
    assert (bytes(first["_order"]), bytes(first["_row"])) == (b"x", b'{"v":"x"}')
    assert (second["_order"], bytes(second["_row"])) == (None, b"{}")
    encoding = cloudpickle.loads(cloudpickle.dumps(sink.encoding_of(events)))
    assert encoding.what == "JSON"
    assert cloudpickle.loads(cloudpickle.dumps(sink.body_maker)) == sink.body_maker


def test_the_key_of_the_record_is_a_key_without_being_named(spark: SparkSession) -> None:
    """Records of one key are in one partition: their order is the one that people mean."""
    events = lane(spark, ["x"])

    assert bytes(opened(events, ordering="per_key").task_columns(events).collect()[0]["_order"]) == b"k"
    assert opened(events).task_columns(events).collect()[0]["_order"] is None


def test_any_value_stays_in_its_place_in_a_json_template(spark: SparkSession) -> None:
    """A quote in a name could otherwise write fields of its own into the body."""
    template = {"alone": "{event.v}", "in": ["<{event.v}>", {'"k"': "{n}"}], "all": "{event}", "fixed": '"\\'}
    values = [*HOSTILE, '","admin":true,"x":"', "\\", '"', None]
    events = lane(spark, values)

    rows = opened(events, body={"template": template}, url="http://api.test").task_columns(events).orderBy("_offset")

    for at, (value, row) in enumerate(zip(values, rows.collect(), strict=True)):
        found = json.loads(bytes(row["_row"]))
        whole = {"v": value, "n": at}
        assert found == {"alone": value, "in": [f"<{value or ''}>", {'"k"': at}], "all": whole, "fixed": '"\\'}


def test_any_value_stays_in_its_place_in_a_form_and_in_a_text(spark: SparkSession) -> None:
    """An ampersand in a name could otherwise write fields of its own into a form."""
    values = [*HOSTILE, "a&admin=1", "=", "+", None]
    form = parse_form({"v v": "{event.v}", "in": "<{v}&>", "&": "{n}", "fixed": "a b"})
    text = parse_text("{event.v}\t{n}\r\n")
    events = lane(spark, values).withColumn("event", F.struct("v", "n"))

    rows = events.orderBy("_offset").select(body_column(form), body_column(text)).collect()

    for at, (value, row) in enumerate(zip(values, rows, strict=True)):
        shown = {"v v": value, "in": f"<{value or ''}&>", "&": str(at), "fixed": "a b"}
        assert dict(parse_qsl(bytes(row[0]).decode("ascii"), keep_blank_values=True, strict_parsing=True)) == {
            name: text for name, text in shown.items() if text is not None
        }
        assert bytes(row[1]).decode() == f"{value or ''}\t{at}\r\n"


def test_a_row_whose_method_is_none_has_the_reason(spark: SparkSession) -> None:
    """Without it a row goes out by a method that nobody wanted, or stops all others."""
    values = ["PUT", "put", "GET", "", None, "DELETE", "PUT\r\nX: 1", "1"]

    sink = opened(lane(spark, values), method={"sql": "event.v"}, url="http://api.test/", headers={"X-N": "{event.n}"})
    found = sink.task_columns(lane(spark, values)).orderBy("_offset").select("_to.*").collect()

    assert [row["target"] for row in found if row["fault"] is None] == ["\nPUT\n0", "\nDELETE\n5"]
    assert [str(row["fault"]) for row in found[1:5]] == ["its method is none of POST, PUT, PATCH, DELETE"] * 3 + [
        "its method is null"
    ]


def test_the_mutation_of_the_page_is_a_query_with_variables(spark: SparkSession) -> None:
    """Without it whoever copies the example sends something that no GraphQL server reads."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "rest.md").read_text()
    (example,) = re.findall(r"```yaml\n(sinks:\n(?:(?!```).)*?preset: graphql.*?)```", page, re.DOTALL)
    (sink,) = yaml.safe_load(example)["sinks"]
    options = Rest.model_validate(sink["rest"])
    assert options.body.pieces is not None
    frame = spark.sql("SELECT 0L AS _offset, named_struct('user', 'ann \"a\"', 'amount', 9000.5D) AS event")

    (row,) = frame.select(body_column(options.body.pieces)).collect()

    assert json.loads(bytes(row[0])) == {
        "query": "mutation($user: String!, $amount: Float!) { addWin(user: $user, amount: $amount) { id } }",
        "variables": {"user": 'ann "a"', "amount": 9000.5},
    }


def test_a_template_keeps_types_as_the_json_of_a_row_does(spark: SparkSession) -> None:
    """A number in quotes, or a time in another format, is refused by an API that took the row."""
    frame = spark.range(1).selectExpr(
        "0L as _offset",
        "timestamp'2026-01-01T12:00:00.123456Z' as at",
        "1.50BD as amount",
        "cast('NaN' as double) as nan",
        "array(1, null) as list",
        "map('a', true) as map",
        "x'00ff' as bytes",
        "cast(null as int) as nothing",
        "date'2026-01-31' as day",
    )
    template = {name: f"{{{name}}}" for name in frame.columns[1:]}

    (row,) = frame.select(body_column(parse_json(template))).collect()

    assert json.loads(bytes(row[0])) == {
        "at": "2026-01-01T12:00:00.123456Z",
        "amount": 1.5,
        "nan": "NaN",
        "list": [1, None],
        "map": {"a": True},
        "bytes": "AP8=",
        "nothing": None,
        "day": "2026-01-31",
    }


def test_a_fault_names_no_value(spark: SparkSession) -> None:
    """Reasons are read by more people than events are."""
    column = to_column(parse_url("http://{v}.test/{v}/{v}"), ["a.test"])

    faults = {row[0] for row in lane(spark, ["secret", "..", ""]).select(column.getField("fault")).collect()}

    assert len(faults) == 3
    assert not any("secret" in fault for fault in faults)


@given(st.text(alphabet="ab{}./:?#%@ 2eäh\x00\n[]"))
def test_any_text_behind_a_host_is_a_url_or_refused(text: str) -> None:
    """A typing error ends in a message, and what is taken is a URL with the host that was written."""
    try:
        found = parse_url(f"http://api.test/{text}")
    except ValueError:
        return
    assert isinstance(found, UrlTemplate)
    assert found.host == ("api.test",)
    written = "".join(one if isinstance(one, str) else f"{{{one.path}}}" for one in found.after_host)
    if not any(sign.isspace() for sign in text):
        assert written == f"/{text}"
    filled = "".join(one if isinstance(one, str) else "x" for one in found.after_host)
    prepared = str(requests.Request("POST", f"http://api.test{filled}").prepare().url)
    assert urlsplit(prepared).path.count("/") == filled.partition("?")[0].count("/")


def test_a_value_that_a_server_may_follow_up_the_path_is_a_dead_letter(spark: SparkSession) -> None:
    """Without it `../../admin` goes out as `..%2F..%2Fadmin`, and many servers decode it and go there."""
    ways = ["../x", "x/../y", "x/..", "..\\x", "./x", "x/."]
    fine = ["..x", "a..b", "x/y", "...", "a.b/c.d"]

    made = targets(lane(spark, [*ways, *fine]))
    allowed = targets(lane(spark, ways), allow_dot_segments=True)

    assert [url is None and "holds `../`" in str(fault) for url, fault in made] == [True] * 6 + [False] * 5
    assert [fault for _, fault in allowed] == [None] * 6


def test_headers_and_keys_may_be_made_of_data_but_never_break_a_request(spark: SparkSession) -> None:
    """Without it `{event.v}` is sent as it is written, or a line break in a value begins another header."""
    values = ["uno", "a b", "x\r\nX-Admin: 1", "x\n", "x\x00y", "\x7f", "\t", "x\x85", "", None]
    headers = {"X-Game": "game {event.v}", "X-Key": "fixed {not a field}"}
    sink = opened(lane(spark, values), headers=headers, idempotency_key="{event.n}-{event.v}", url="http://api.test/")

    found = sink.task_columns(lane(spark, values)).orderBy("_offset").select("_to.*").collect()

    assert [row["target"] for row in found[:2]] == ["\ngame uno\n0-uno", "\ngame a b\n1-a b"]
    assert [row["fault"] is None for row in found] == [True, True, *[False] * 6, True, False]
    assert [*sink.fixed_headers] == ["X-Key"]


def test_a_header_that_begins_with_a_blank_makes_a_dead_letter_that_names_it(spark: SparkSession) -> None:
    """Without it the dead letter blames the URL, and its reader looks for the fault there."""
    values = ["uno", "uno ", " uno", " ", "\tuno"]
    headers = {"X-Game": "{event.v}"}

    found = targets(lane(spark, values), headers=headers, url="http://api.test/")
    of_key = targets(lane(spark, values), idempotency_key="{event.v}", url="http://api.test/")

    assert [fault and "the header X-Game would be empty, begin with a blank" in fault for _, fault in found] == [
        *[None] * 2,
        *[True] * 3,
    ]
    assert [fault is None for _, fault in of_key] == [True, True, False, False, False]
