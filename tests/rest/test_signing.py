"""Signatures as those verify them who get the calls: AWS's own rules, vendors' own libraries."""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
import logging
import pickle
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import botocore.auth
import botocore.session
import jwt
import pyarrow as pa
import pytest
import requests
import standardwebhooks
import stripe
from botocore.credentials import ReadOnlyCredentials
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pydantic import ValidationError

from router import StartError
from router.registry import missing_extras
from router_rest.delivery.batcher import CallSize
from router_rest.delivery.send_plan import form_of
from router_rest.logins.auth import Auth
from router_rest.logins.credentials import Credentials, make_login
from router_rest.logins.task_login import TaskLogin
from router_rest.templates import body_of
from router_sinks import Rest
from tests.rest.keys import private_key_pem
from tests.rest.tasks import Tasks, changed, rows, run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.delta.lake import Lake
    from tests.rest.scripted import Scripted, Seen, Talk

URL = "https://api.test/wins"
HUSH = "hush-hush-hush"
WHSEC = f"whsec_{base64.b64encode(b'a key of 24 bytes or more').decode()}"
AWS = {"service": "es", "region": "eu-central-1", "access_key_id": "AKIDEXAMPLE", "secret_access_key": HUSH}


def fails_first(talk: Talk) -> None:
    """Answer the first request of all with 500, and every other well."""
    while talk.request() is not None:
        talk.answer(b"", "200 OK" if len(talk.server.seen) > 1 else "500 Oops")


def send_signed(
    server_tasks: Tasks, server: Scripted, auth: dict[str, Any], path: str = "/events", packed: bool = True, **form: Any
) -> list[Seen]:
    """Send four rows in two calls, `packed` by gzip, the first of them twice; return what arrived."""
    server.act = fails_first
    job = server_tasks.job(path, auth=Auth.model_validate(auth), cut=CallSize(rows=2))
    body = body_of("array", "application/json", compressed=packed)
    done = server_tasks.run(changed(job, form=replace(job.plan.form, body=body, **form)), rows(range(4)))

    assert done.counts["delivered"] == 4
    assert len(server.seen) == 3
    assert [json.loads(gzip.decompress(seen.body) if packed else seen.body) for seen in server.seen]
    return server.seen


def aws_signature(
    method: str, target: str, headers: list[tuple[str, str]], hashed: str, key: str, scope: str, at: str
) -> str:
    """Return the signature by the description of Signature Version 4; path and query are as they arrived."""
    path, _, query = target.partition("?")
    pairs = sorted(one.partition("=")[::2] for one in query.split("&") if one)
    encoded = "&".join("=".join(quote(unquote(part), safe="-_.~") for part in pair) for pair in pairs)
    signed = ";".join(name for name, _ in headers)
    lines = [method, quote(path, safe="/~-_."), encoded, *(f"{name}:{value}" for name, value in headers)]
    whole = "\n".join([*lines, "", signed, hashed])
    to_sign = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(whole.encode()).hexdigest()}"
    made = f"AWS4{key}".encode()
    for part in scope.split("/"):
        made = hmac.new(made, part.encode(), "sha256").digest()
    return hmac.new(made, to_sign.encode(), "sha256").hexdigest()


def test_the_verifier_of_these_tests_is_that_of_aws() -> None:
    """The vector `get-vanilla` that AWS publishes: without it the tests below would prove nothing."""
    at, scope = "20150830T123600Z", "20150830/us-east-1/service/aws4_request"
    headers = [("host", "example.amazonaws.com"), ("x-amz-date", at)]
    nothing, key = hashlib.sha256(b"").hexdigest(), "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

    found = aws_signature("GET", "/", headers, nothing, key, scope, at)

    assert found == "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"


def verify_aws(seen: Seen, key: str = HUSH) -> str:
    """Assert that a request has the signature of AWS for what arrived; return its time."""
    scheme, _, rest = seen.headers["authorization"].partition(" ")
    said = dict(part.split("=", 1) for part in rest.split(", "))
    names, hashed = said["SignedHeaders"].split(";"), hashlib.sha256(seen.body).hexdigest()
    method, target, _ = seen.line.split(" ")
    _, scope = said["Credential"].split("/", 1)
    at, headers = seen.headers["x-amz-date"], [(name, " ".join(seen.headers[name].split())) for name in names]
    assert scheme == "AWS4-HMAC-SHA256"
    assert {"host", "content-type", "content-encoding", "idempotency-key", "x-amz-content-sha256"} <= {*names}
    assert seen.headers["x-amz-content-sha256"] == hashed
    assert said["Signature"] == aws_signature(method, target, headers, hashed, key, scope, at)
    return at


@pytest.mark.parametrize("path", ["/events", "/_bulk?b=2&a=%C3%A4%20x*&c", "/wins/a%2Fb%20c/*"])
def test_aws_finds_its_signature_in_what_arrives(
    server_tasks: Tasks, server: Scripted, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Without it each call is answered 403; and so is one that is sent again with the time of its first attempt."""
    began = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    times = iter([began + timedelta(seconds=at) for at in range(100)])
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_: next(times))

    seen = send_signed(server_tasks, server, {"sigv4": AWS}, path)

    assert len({verify_aws(one) for one in seen}) == 3
    assert "x-amz-security-token" not in seen[0].headers


@pytest.fixture(scope="module")
def sqs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Run an SQS that verifies signatures; yield its address, a queue, and the keys of a user and of a role."""
    import boto3
    from moto.server import ThreadedMotoServer

    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    of_aws = boto3.Session("a", "b", region_name="eu-west-1")
    iam, queues, sts = (of_aws.client(name, endpoint_url=url) for name in ("iam", "sqs", "sts"))
    iam.create_user(UserName="router")
    iam.put_user_policy(UserName="router", PolicyName="all", PolicyDocument=json.dumps(allowed))
    role = iam.create_role(RoleName="router", AssumeRolePolicyDocument=json.dumps(allowed))["Role"]["Arn"]
    iam.put_role_policy(RoleName="router", PolicyName="all", PolicyDocument=json.dumps(allowed))
    keys = {
        "user": iam.create_access_key(UserName="router")["AccessKey"],
        "role": sts.assume_role(RoleArn=role, RoleSessionName="wins")["Credentials"],
    }
    queue = queues.create_queue(QueueName="wins")["QueueUrl"]
    requests.post(f"{url}/moto-api/reset-auth", data="0", timeout=10).close()
    yield url, queue, keys
    requests.post(f"{url}/moto-api/reset-auth", data="inf", timeout=10).close()
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["user", "role", "nobody"])
def test_a_server_of_aws_takes_what_is_signed(sqs: Any, lake: Lake, who: str) -> None:
    """moto verifies signatures as AWS does, by botocore: a wrong secret is refused, and so is another body."""
    url, queue, keys = sqs
    key = keys.get(who, keys["user"])
    secret = HUSH if who == "nobody" else key["SecretAccessKey"]
    given = {"access_key_id": key["AccessKeyId"], "secret_access_key": secret, "session_token": key.get("SessionToken")}
    sink = Rest.model_validate(
        {
            "url": f"{url}/",
            "headers": {"X-Amz-Target": "AmazonSQS.SendMessage"},
            "body": {"content_type": "application/x-amz-json-1.0"},
            "auth": {"sigv4": {"service": "sqs", "region": "eu-west-1", **given}},
        }
    )
    messages = [json.dumps({"QueueUrl": queue, "MessageBody": f"{who} {at} ä"}) for at in range(3)]
    batch = rows(range(3))
    batch = batch.set_column(batch.schema.names.index("_row"), "_row", pa.array([one.encode() for one in messages]))
    api: Any = SimpleNamespace(url=url, reset=lambda: None)
    with run_tasks(api, lake) as running:
        job = running.job(auth=sink.auth)
        form = form_of(sink)
        done = running.run(changed(job, form=replace(form, headers={**form.headers, **sink_headers(sink)})), batch)

    if who == "nobody":
        assert "SignatureDoesNotMatch" in done.texts["wrong"]
        return
    assert done.counts["delivered"] == 3


def sink_headers(sink: Rest) -> dict[str, str]:
    """Return the fixed headers of a sink, which travel with its credentials."""
    return {name: value.get_secret_value() for name, value in sink.fixed_headers.items()}


def test_the_keys_of_a_role_are_asked_for_again_and_never_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, faulty: Any
) -> None:
    """Keys of a role end after an hour: a task that keeps them gets 403 from then on."""
    found = [ReadOnlyCredentials("AKID", f"{HUSH}-{turn}", f"token-{HUSH}-{turn}") for turn in range(2)]
    role = SimpleNamespace(get_frozen_credentials=lambda: found.pop(0))
    monkeypatch.setattr(botocore.session.Session, "get_credentials", lambda self: role)
    caplog.set_level(logging.DEBUG)
    held = Credentials(Auth.model_validate({"sigv4": {"service": "execute-api", "region": "eu-west-1"}}))

    given = [json.loads(json.dumps(held.current_credentials())) for _ in range(2)]
    for one in given:
        request = requests.Request("POST", f"{faulty.url}/wins", data=b"{}").prepare()
        with requests.Session() as session:
            session.send(make_login(one)(request)).close()

    assert [one["renewal"] for one in given] == [300.0, 300.0]
    assert [seen.headers["X-Amz-Security-Token"] for seen in faulty.seen] == [f"token-{HUSH}-{at}" for at in range(2)]
    assert {f"{HUSH}-0", f"token-{HUSH}-0"} <= {*given[0]["secrets"]}
    assert HUSH not in caplog.text


def test_no_keys_of_aws_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(botocore.session.Session, "get_credentials", lambda self: None)

    with pytest.raises(StartError, match="no keys of AWS here"):
        Credentials(Auth.model_validate({"sigv4": {"service": "es", "region": "eu-west-1"}})).current_credentials()


def test_a_task_gets_other_credentials_before_its_own_end() -> None:
    """A token that ends while a task runs would cost a 401 for every call in flight, of AWS a 403."""
    import asyncio

    now, given = [0.0], iter([{"version": "1", "headers": {}, "renewal": 60}, {"version": "2", "headers": {}}])
    asked = []

    async def credentials(refused: str = "") -> dict[str, Any]:
        asked.append(now[0])
        return next(given)

    async def story() -> None:
        lease: Any = SimpleNamespace(fetch_credentials=credentials)
        login = TaskLogin(lease, clock=lambda: now[0])
        await login.open()
        for now[0] in (59.0, 61.0, 9999.0):
            await asyncio.gather(*(login.refresh_credentials() for _ in range(8)))
        assert login.version == "2"

    asyncio.run(story())

    assert asked == [0.0, 61.0]


def test_github_publishes_the_signature_of_a_text() -> None:
    """The page "Validating webhook deliveries": without it a receiver that follows it refuses every call."""
    auth = Auth.model_validate({"hmac": {"preset": "github", "key": "It's a Secret to Everybody"}})
    request = requests.Request("POST", URL, data=b"Hello, World!").prepare()

    signed = make_login(Credentials(auth).current_credentials())(request)

    published = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert signed.headers["X-Hub-Signature-256"] == f"sha256={published}"
    assert "X-Timestamp" not in signed.headers


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_the_library_of_stripe_takes_what_arrives(server_tasks: Tasks, server: Scripted, packed: bool) -> None:
    """Without it a receiver that verifies with that library refuses every call."""
    for seen in send_signed(server_tasks, server, {"hmac": {"preset": "stripe", "key": "whsec_hush"}}, packed=packed):
        header = seen.headers["stripe-signature"]
        at = int(header.split(",")[0].removeprefix("t="))
        signed = hmac.new(b"whsec_hush", f"{at}.".encode() + seen.body, "sha256").hexdigest()
        assert header == f"t={at},v1={signed}"
        if not packed:  # it takes texts only
            assert stripe.WebhookSignature.verify_header(seen.body.decode(), header, "whsec_hush", tolerance=300)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_the_library_of_standard_webhooks_takes_what_arrives(
    server_tasks: Tasks, server: Scripted, packed: bool
) -> None:
    """Without it a receiver refuses every call, or takes one that is sent again for another."""
    auth = {"hmac": {"preset": "standard_webhooks", "key": WHSEC}}

    seen = send_signed(server_tasks, server, auth, packed=packed, key_header="webhook-id", quoted=False)

    for one in seen:
        to_sign = f"{one.headers['webhook-id']}.{one.headers['webhook-timestamp']}.".encode() + one.body
        key = base64.b64decode(WHSEC.removeprefix("whsec_"))
        signed = base64.b64encode(hmac.new(key, to_sign, "sha256").digest()).decode()
        assert (one.headers["webhook-signature"], len(one.headers["webhook-id"])) == (f"v1,{signed}", 36)
        if not packed:  # it takes texts only
            assert standardwebhooks.Webhook(WHSEC).verify(one.body, dict(one.headers))
            with pytest.raises(standardwebhooks.WebhookVerificationError):
                standardwebhooks.Webhook(WHSEC).verify(one.body + b" ", dict(one.headers))
    assert len({one.headers["webhook-id"] for one in seen}) == 2


@pytest.mark.parametrize("kind", ["RS256", "ES256"])
def test_a_jwt_is_read_by_those_who_have_the_public_key(faulty: Any, kind: str) -> None:
    """Without it there is no login at APIs that want a token which the client signs."""
    key: Any = ec.generate_private_key(ec.SECP256R1()) if kind == "ES256" else rsa.generate_private_key(65537, 2048)
    now = [1000.0]
    options = {
        "private_key": private_key_pem(key),
        "key_id": "k-1",
        "issuer": "router",
        "audience": "https://api.test",
        "claims": {"scope": ["wins"]},
        "lifetime": 100,
    }
    held = Credentials(Auth.model_validate({"jwt": options}), clock=lambda: now[0])

    tokens = []
    for now[0] in (1000.0, 1079.0, 1081.0):
        given = held.current_credentials()
        assert 0 < given["renewal"] <= 80
        tokens.append(given["headers"]["Authorization"].removeprefix("Bearer "))
    refused = held.current_credentials(given["version"])

    claims = jwt.decode(tokens[0], key.public_key(), algorithms=[kind], audience="https://api.test", issuer="router")
    assert (claims["scope"], claims["exp"] - claims["iat"], "sub" in claims) == (["wins"], 100, False)
    assert abs(claims["iat"] - time.time()) < 60
    assert jwt.get_unverified_header(tokens[0]) == {"alg": kind, "typ": "JWT", "kid": "k-1"}
    assert (tokens[0] == tokens[1], tokens[1] == tokens[2]) == (True, False)
    assert refused["version"] != given["version"]
    assert private_key_pem(key) not in json.dumps(given["headers"])


def test_a_key_that_signs_no_jwt_is_told_without_its_text() -> None:
    with pytest.raises(StartError, match="auth: jwt: private_key is no PEM key") as caught:
        Credentials(Auth.model_validate({"jwt": {"private_key": HUSH}})).current_credentials()

    assert HUSH not in str(caught.value)


ALL: list[dict[str, Any]] = [
    {"sigv4": AWS},
    {"sigv4": {**AWS, "session_token": HUSH}},
    {"jwt": {"private_key": HUSH}},
    {"hmac": {"preset": "github", "key": HUSH}},
]


@pytest.mark.parametrize("auth", ALL, ids=lambda auth: next(iter(auth)))
def test_what_signs_is_seen_nowhere_and_does_not_travel(auth: dict[str, Any], tmp_path: Path) -> None:
    """A plan, a log line and a task must not carry what opens the API."""
    sink = Rest.model_validate({"url": URL, "auth": auth})

    assert HUSH not in f"{sink!r} {sink} {sink.model_dump()} {sink.model_dump_json()}"
    assert HUSH.encode() not in pickle.dumps(sink)
    with pytest.raises(StartError, match="on the driver"):
        pickle.loads(pickle.dumps(sink)).open_credentials(tmp_path)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"sigv4": {"service": "es"}}, "Field required"),
        ({"sigv4": {**AWS, "secret_access_key": None}}, "go together"),
        ({"sigv4": {"service": "es", "region": "x", "session_token": HUSH}}, "belongs to an access_key_id"),
        ({"sigv4": {**AWS, "profile": "p"}}, "not both"),
        ({"jwt": {"issuer": "a"}}, "Field required"),
        ({"jwt": {"private_key": HUSH, "lifetime": 1}}, "greater than or equal to 10"),
        ({"hmac": {"key": HUSH, "signed": "{id}"}}, "give id_header"),
        ({"hmac": {"key": HUSH, "preset": "slack"}}, "'github', 'stripe' or 'standard_webhooks'"),
        ({"hmac": {"key": "whsec_?", "preset": "standard_webhooks"}}, "it is not base64"),
    ],
    ids=str,
)
def test_signatures_that_cannot_work_are_refused_without_their_secrets(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Rest.model_validate({"url": URL, "auth": options})

    assert word in str(caught.value)
    assert HUSH not in str(caught.value)


def test_the_id_of_a_webhook_is_its_idempotency_key() -> None:
    """Without it the id that is signed is not the one that stays the same when a call is sent again."""
    auth = {"hmac": {"preset": "standard_webhooks", "key": WHSEC}}
    sink = Rest.model_validate({"url": URL, "auth": auth})

    assert (sink.key_header, sink.id_header) == ("webhook-id", "webhook-id")
    assert Rest.model_validate({"url": URL, "auth": auth, "idempotency_key": "{event.id}"}).rendered_headers == {
        "webhook-id": "{event.id}"
    }
    with pytest.raises(ValidationError, match="the signature says that it is webhook-id"):
        Rest.model_validate({"url": URL, "auth": auth, "idempotency_header": "X-Id"})
    with pytest.raises(ValidationError, match="is set by `auth`"):
        Rest.model_validate({"url": URL, "auth": auth, "headers": {"webhook-id": "a"}})


def test_what_sigv4_needs_is_asked_for_only_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a sink fails with its first row where botocore is not installed, or asks all for it."""
    monkeypatch.setattr("router.registry._is_installed", lambda module: False)

    assert missing_extras(Rest.model_validate({"url": URL, "auth": {"bearer": HUSH}})) == {}
    assert missing_extras(Rest.model_validate({"url": URL, "auth": {"sigv4": AWS}})) == {
        "botocore": "the option sigv4 needs the module botocore; "
        "pip install 'spark-event-router[aws]', here and on every node"
    }
