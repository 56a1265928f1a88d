"""Whom the HTTP client trusts, and who it says it is."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import ssl
import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from router_rest.http_client.client import HttpClient, UnusableFile, tls_context
from router_rest.http_client.response import InDoubt, Response, Unsent
from tests.rest.calls import OPTIONS, ask, open_count, post
from tests.rest.scripted import Scripted, Talk, replies, server_tls, silent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.rest.conftest import Certificates


@pytest.fixture
def server(certificates: Certificates) -> Iterator[Scripted]:
    with Scripted(context=server_tls(certificates.here)) as running:
        yield running


def test_calls_share_a_connection_over_tls(server: Scripted, certificates: Certificates) -> None:
    """The hello costs more than thirty calls."""
    answers = ask(*[post(server.url)] * 10, verify=certificates.here)

    assert [answer.status for answer in answers] == [200] * 10
    assert server.accepted == 1


@pytest.mark.parametrize("how", ["as usual", "another authority"])
def test_a_server_with_an_unknown_certificate_gets_nothing(
    server: Scripted, certificates: Certificates, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, certificates.here)  # the environment has no say

    (error,) = ask(post(server.url), verify=True if how == "as usual" else certificates.client)

    assert isinstance(error, Unsent)
    assert "not trusted" in error.what
    assert server.seen == []


def test_a_server_with_another_name_gets_nothing(certificates: Certificates) -> None:
    with Scripted(context=server_tls(certificates.elsewhere)) as server:
        (error,) = ask(post(server.url), verify=certificates.elsewhere)

        assert isinstance(error, Unsent)
        assert "not trusted" in error.what
        assert server.seen == []


def test_verification_can_be_switched_off(certificates: Certificates) -> None:
    with Scripted(context=server_tls(certificates.elsewhere)) as server:
        (answer,) = ask(post(server.url), verify=False)

    assert answer.status == 200


def test_authorities_may_be_in_a_folder(server: Scripted, certificates: Certificates, tmp_path: Path) -> None:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(certificates.here)
    shutil.copy(certificates.here, tmp_path / f"{_name_of(certificates.here)}.0")

    (answer,) = ask(post(server.url), verify=str(tmp_path))

    assert answer.status == 200


def _name_of(certificate: str) -> str:
    """Return the name that OpenSSL looks for in a folder."""
    import subprocess

    command = ["openssl", "x509", "-noout", "-subject_hash", "-in", certificate]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("pair", [False, True], ids=["one file", "two files"])
def test_a_client_shows_its_certificate(certificates: Certificates, pair: bool) -> None:
    mine = certificates.client
    with Scripted(context=server_tls(certificates.here, clients=mine)) as server:
        (answer,) = ask(post(server.url), verify=certificates.here, cert=(mine, mine) if pair else mine)

        assert answer.status == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize("shown", ["none", "another"])
@pytest.mark.parametrize("hook", [False, True], ids=["aiohttp", "requests"])
@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning" if sys.version_info < (3, 11) else "error")
def test_a_client_whose_certificate_is_not_taken_sent_nothing(
    certificates: Certificates, version: ssl.TLSVersion, shown: str, hook: bool
) -> None:
    """In TLS 1.3 the request is on its way before the client learns of it, and the server never reads it.

    The asyncio of Python 3.10 forgets to close what wraps a connection that ends so.
    """
    strict = server_tls(certificates.here, clients=certificates.client)
    strict.maximum_version = version
    cert = certificates.elsewhere if shown == "another" else None
    with Scripted(context=strict) as server:
        call = post(server.url)
        if hook:
            call.register_hook("response", lambda answer, **_: None)
        (error,) = ask(call, verify=certificates.here, cert=cert)

        # the reset of a server that leaves may be heard before what it said: then nobody knows
        unheard = isinstance(error, InDoubt) and re.search("reset|closed|broke", error.what, re.IGNORECASE)
        assert (unheard and version is ssl.TLSVersion.TLSv1_3) or isinstance(error, Unsent)
        assert unheard or "ALERT" in error.what
        assert server.seen == []


def test_old_tls_is_not_spoken(certificates: Certificates) -> None:
    assert tls_context(True, None).minimum_version == ssl.TLSVersion.TLSv1_2
    assert tls_context(certificates.here, None).verify_mode == ssl.CERT_REQUIRED
    assert tls_context(certificates.here, None).check_hostname


def test_a_file_that_has_changed_is_read_again(certificates: Certificates, tmp_path: Path) -> None:
    """Certificates are renewed while a stream runs."""
    file = tmp_path / "authorities.pem"
    shutil.copy(certificates.elsewhere, file)
    before = tls_context(str(file), None)
    assert tls_context(str(file), None) is before
    shutil.copy(certificates.here, file)
    os.utime(file, ns=(1, 1))

    with Scripted(context=server_tls(certificates.here)) as server:
        (answer,) = ask(post(server.url), verify=str(file))

    assert answer.status == 200


@pytest.mark.parametrize("option", ["verify", "cert"])
@pytest.mark.parametrize("file", ["nowhere.pem", "empty.pem", "locked"])
def test_a_file_that_is_of_no_use_is_named(certificates: Certificates, tmp_path: Path, option: str, file: str) -> None:
    """Among them a key that needs a password, which nobody can type where a task runs."""
    path = certificates.locked if file == "locked" else str(tmp_path / file)
    (tmp_path / "empty.pem").touch()
    if (option, file) == ("verify", "locked"):
        path = str(tmp_path / "nowhere" / "at all.pem")
    options = {"verify": True, "cert": None, option: path}

    with pytest.raises(UnusableFile) as caught:
        tls_context(options["verify"], options["cert"])
    (error,) = ask(post("https://127.0.0.1:9/"), **options)

    assert path in str(caught.value)
    assert isinstance(error, Unsent)
    assert path in error.what


@pytest.mark.parametrize("act", ["plain text", "closes", "keeps still"])
def test_a_server_without_tls_gets_nothing(act: str) -> None:
    def plain(talk: Talk) -> None:
        if act == "plain text":
            talk.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        if act == "keeps still":
            talk.wait()

    with Scripted(plain) as http:
        (error,) = ask(post(http.url.replace("http:", "https:")), connect=0.5)

    assert isinstance(error, Unsent)
    words = {"plain text": "TLS failed", "closes": "no connection|reset|TLS", "keeps still": "in time"}
    assert re.search(words[act], error.what)


def test_a_body_may_end_with_its_connection_over_tls(server: Scripted, certificates: Certificates) -> None:
    server.act = replies(b"HTTP/1.1 200 OK\r\n\r\n", b"abc")

    (answer,) = ask(post(server.url), verify=certificates.here)

    assert (answer.body, answer.whole) == (b"abc", True)


def test_cancelled_calls_leave_nothing_behind_over_tls(server: Scripted, certificates: Certificates) -> None:
    async def cancel() -> tuple[list[object], Response, int]:
        client = HttpClient(replace(OPTIONS, in_flight=2, verify=certificates.here))
        tasks = [asyncio.create_task(client.send(post(server.url))) for _ in range(6)]
        for task in tasks:
            await asyncio.sleep(0.002)
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        answer = await client.send(post(server.url))
        await client.close()
        return list(outcomes), answer, open_count(client)

    outcomes, answer, left = asyncio.run(cancel())

    assert {type(one) for one in outcomes} <= {asyncio.CancelledError, Response}
    assert (answer.status, left) == (200, 0)


def test_a_silent_server_leaves_a_call_in_doubt_over_tls(server: Scripted, certificates: Certificates) -> None:
    server.act = silent

    (error,) = ask(post(server.url), verify=certificates.here, read=0.3)

    assert isinstance(error, InDoubt)
    assert error.timeout


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"], ids=["none", "half"])
def test_nothing_stays_open_where_the_server_says_no_goodbye(
    server: Scripted, certificates: Certificates, answer: bytes
) -> None:
    """A connection over TLS is closed when both sides have said so: a task does not wait for that, and leaves none."""

    def act(talk: Talk) -> None:
        talk.request()
        talk.send(answer)
        server.ended.wait()  # and reads nothing

    server.act = act
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        ask(post(server.url), verify=certificates.here, read=0.3)
        gc.collect()

    assert [str(one.message) for one in caught if "transport" in str(one.message)] == []
