"""The options of a registry, and what they keep to themselves."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from router_schemas.registry_client import make_login
from router_schemas.registry_options import RegistryAway, RegistryOptions, RegistryRefuses

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://registry.test/api"
HUSH = "hush-hush"
CLIENT = {"token_url": "https://login.test/token", "client_id": "router"}
OAUTH = {**CLIENT, "client_secret": HUSH}
WITH_SECRETS: list[dict[str, Any]] = [
    {"basic": {"user": "router", "password": HUSH}},
    {"bearer": HUSH},
    {"oauth": OAUTH},
    {"oauth": {**CLIENT, "private_key": HUSH}},
    {"oauth": {**CLIENT, "refresh_token": HUSH}},
    {"headers": {"X-Api-Key": HUSH}},
]


class Decoder(BaseModel):
    registry: RegistryOptions | None = None


@pytest.mark.parametrize(
    ("given", "urls"),
    [
        (URL, (URL,)),
        ([URL, "http://other.test:8081/"], (URL, "http://other.test:8081")),
        ({"url": URL}, (URL,)),
        ({"url": [URL + "/"]}, (URL,)),
    ],
    ids=str,
)
def test_a_bare_url_is_enough(given: Any, urls: tuple[str, ...]) -> None:
    registry = Decoder.model_validate({"registry": given}).registry

    assert registry is not None
    assert registry.url == urls


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"url": []}, "at least 1 item"),
        ({"url": "registry.test"}, "http"),
        ({"url": "ftp://registry.test"}, "http"),
        ({"url": "https://"}, "http"),
        ({"url": "https://[::1"}, "http"),
        ({"url": "https://registry.test:many"}, "http"),
        ({"url": "https://registry.test/a b"}, "http"),
        ({"url": f"https://me:{HUSH}@registry.test"}, "basic"),
        ({"url": f"https://me:{HUSH}/5@registry.test"}, "http"),
        ({"url": f"https://registry.test?key={HUSH}"}, "query"),
        ({"basic": {"user": "a:b", "password": HUSH}}, "pattern"),
        ({"basic": {"user": "a", "password": ""}}, "at least 1 item"),
        ({"bearer": ""}, "at least 1 item"),
        ({"bearer": f"{HUSH}\r\nX-More: 1"}, "ASCII"),
        ({"headers": {"X-Key": f"{HUSH}\n"}}, "ASCII"),
        ({"headers": {"X Key": HUSH}}, "token"),
        ({"oauth": {**OAUTH, "token_url": "login"}}, "http"),
        ({"bearer": HUSH, "basic": {"user": "a", "password": HUSH}}, "basic and bearer are given"),
        ({"key": "key.pem"}, "certificate"),
        ({"timeout": 0}, "greater than 0"),
        ({"timeout": float("inf")}, "finite"),
        ({"attempts": 0}, "greater than or equal to 1"),
        ({"verify": False}, "Extra inputs"),
        ({"bearer": 123456789}, "string"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused_without_their_secrets(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RegistryOptions(**{"url": URL, **options})

    assert word in str(caught.value)
    assert HUSH not in str(caught.value)
    assert "123456789" not in str(caught.value)


@pytest.mark.parametrize("options", WITH_SECRETS, ids=str)
def test_no_secret_is_seen_or_travels(options: dict[str, Any]) -> None:
    """A plan, a log line, a manifest and a task must not carry what opens the registry."""
    registry = RegistryOptions(url=(URL,), **options)
    travelled = pickle.dumps(registry)

    shown = f"{registry!r} {registry} {registry.model_dump()} {registry.model_dump_json()} {make_login(registry)!r}"
    assert HUSH not in shown
    assert HUSH.encode() not in travelled
    assert registry.secrets == copy.deepcopy(registry).secrets == registry.model_copy(deep=True).secrets == (HUSH,)
    with pytest.raises(RegistryRefuses, match="driver"):
        make_login(pickle.loads(travelled))


@given(st.text(min_size=1))
def test_any_password_is_taken_as_it_is(password: str) -> None:
    registry = RegistryOptions(url=(URL,), basic={"user": "router", "password": password})

    assert registry.basic is not None
    assert registry.basic.password.get_secret_value() == password
    assert repr(registry.basic.password) == "Secret('**********')"


def test_files_are_looked_for_beside_the_configuration(tmp_path: Path) -> None:
    registry = RegistryOptions(url=(URL,), certificate="me.pem", ca="/etc/ssl/ca.pem")

    found = registry.resolve_paths(tmp_path)

    assert (found.certificate, found.key, found.ca) == (str(tmp_path / "me.pem"), None, "/etc/ssl/ca.pem")


def test_a_server_is_verified_unless_the_option_that_says_so_is_set() -> None:
    assert RegistryOptions(url=(URL,)).verify is True
    assert RegistryOptions(url=(URL,), ca="ca.pem").verify == "ca.pem"
    assert RegistryOptions(url=(URL,), insecure_skip_tls_verification=True).verify is False


def test_editors_offer_the_options_with_their_meaning() -> None:
    definitions = Decoder.model_json_schema()["$defs"]
    text, several, options = definitions["RegistryOptions"]["anyOf"]

    assert (text["type"], several["type"]) == ("string", "array")
    assert {"type": "string"} in options["properties"]["url"]["anyOf"]
    for model in (options, definitions["Basic"], definitions["OAuth"]):
        assert [name for name, field in model["properties"].items() if not field.get("description")] == []


def test_an_error_survives_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(RegistryAway(URL, "it answers 503", 503)))

    assert (str(error), error.status) == (f"schema registry {URL}: it answers 503", 503)
