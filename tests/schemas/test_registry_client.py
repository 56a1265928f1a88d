"""The registry's client against a registry that misbehaves, and against a real one."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote
from uuid import UUID

import pytest
import requests
import urllib3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router_http import client as exchange
from router_http.client import ClientCredentialsAuth, Tokens
from router_http.options import OAuth
from router_schemas.model import Reference, RegisteredSchema, ResolvedSchema
from router_schemas.registry_client import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, RegistryClient, _context_of_url
from router_schemas.registry_options import NotFound, RegistryAway, RegistryError, RegistryOptions, RegistryRefuses
from router_schemas.resolver import SchemaResolver
from tests.light import drawn
from tests.schemas.faulty import GUIDS, ID, VERSIONS_OF_ID, FaultyRegistry
from tests.schemas.folder_memory import FolderMemory

if TYPE_CHECKING:
    from pathlib import Path

    from router_demo.registry import EmbeddedRegistry

HUSH = "hush-hush"
OAUTH = {"client_id": "router", "client_secret": HUSH, "scope": "schemas"}
PROTO = 'syntax = "proto3"; message Event { string game = 1; }'
Ask = Callable[..., RegistryClient]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def ask(faulty: FaultyRegistry) -> Iterator[Ask]:
    """Make clients of the faulty registry; options are those of a configuration, and nobody really sleeps."""
    made: list[RegistryClient] = []

    def ask(**options: Any) -> RegistryClient:
        client = RegistryClient(
            RegistryOptions(**{"url": faulty.url, "timeout": 30, **options}), sleep=lambda seconds: None
        )
        made.append(client)
        return client

    yield ask
    for client in made:
        client.close()


def test_a_schema_is_read_with_its_references(faulty: FaultyRegistry, ask: Ask) -> None:
    faulty.book.add("player", PROTO)
    number = faulty.book.add("event", "import", references=[("player.proto", "player", 1)])

    expected = RegisteredSchema(number, "PROTOBUF", "import", (Reference("player.proto", "player", 1),))
    assert ask().by_id(number) == ask().version("event", 1) == expected
    assert ask().versions("event") == (1,)


def test_a_schema_without_a_type_is_avro(faulty: FaultyRegistry, ask: Ask) -> None:
    """The first registries had no other, and newer ones still leave it out."""
    number = faulty.book.add("event", '"string"', kind=None)

    assert ask().by_id(number).kind == "AVRO"


def test_a_schema_of_another_kind_is_of_no_use(faulty: FaultyRegistry, ask: Ask) -> None:
    number = faulty.book.add("event", "<xs:schema/>", kind="XML")

    with pytest.raises(NotFound, match="XML"):
        ask().by_id(number)


def test_all_subjects_of_an_id_are_told_the_deleted_ones_too(faulty: FaultyRegistry, ask: Ask) -> None:
    """Records keep the ids of deleted subjects, and their tables keep the version's column."""
    faulty.book.add("other", "first")
    numbers = {faulty.book.add("other", PROTO), faulty.book.add("event", PROTO)}
    faulty.book.deleted.add("event")

    assert ask().subjects_of(numbers.pop()) == (("event", 1), ("other", 2))


def test_a_registry_that_cannot_tell_subjects_is_served_without(faulty: FaultyRegistry, ask: Ask) -> None:
    number = faulty.book.add("event", PROTO)
    assert ask().subjects_of(number + 1) == ()
    faulty.lacks.add(VERSIONS_OF_ID)

    assert ask().subjects_of(number) == ()


def test_a_guid_has_an_id_in_the_context_of_the_url(faulty: FaultyRegistry, ask: Ask) -> None:
    """Ids differ from context to context; the schema of another one would be asked for under a wrong number."""
    number = faulty.book.add("event", PROTO)
    guid = faulty.book.guid(number)

    assert ask().id_of(guid) == number
    with pytest.raises(NotFound, match=r"none in the context \.$"):
        ask().id_of(UUID(int=1))
    faulty.context = ".games"
    with pytest.raises(NotFound, match=r"context \., only in \.games"):
        ask().id_of(guid)


@pytest.mark.parametrize(
    ("path", "context"),
    [("", "."), ("/api", "."), ("/contexts/.games", ".games"), ("/contexts/:.games:", ".games"), ("/contexts/.", ".")],
)
def test_the_context_is_that_of_the_url(path: str, context: str) -> None:
    assert _context_of_url(f"http://registry.test{path}") == context


def test_a_registry_without_guids_is_told_from_a_wrong_url(faulty: FaultyRegistry, ask: Ask) -> None:
    """The one makes dead letters that say what to do; the other must not touch good records."""
    faulty.lacks.add(GUIDS)
    with pytest.raises(NotFound, match="does not know GUIDs"):
        ask().id_of(UUID(int=1))

    faulty.lacks.add(ID)
    with pytest.raises(RegistryRefuses, match="path of the url"):
        ask().id_of(UUID(int=1))


def test_a_version_of_a_deleted_subject_can_still_be_referred_to(faulty: FaultyRegistry, ask: Ask) -> None:
    faulty.book.add("player", PROTO)
    faulty.book.deleted.add("player")

    assert ask().version("player", 1).text == PROTO
    with pytest.raises(NotFound):
        ask().versions("player")


@pytest.mark.parametrize(
    "question",
    [lambda client: client.by_id(5), lambda client: client.versions("no"), lambda client: client.version("event", 9)],
    ids=["schema", "subject", "version"],
)
def test_what_is_not_there_is_not_asked_for_twice(
    faulty: FaultyRegistry, ask: Ask, question: Callable[[RegistryClient], Any]
) -> None:
    faulty.book.add("event", PROTO)

    with pytest.raises(NotFound) as caught:
        question(ask())

    assert caught.value.status == 404
    assert len(faulty.seen) == 1


def test_a_404_of_something_that_is_no_registry_dead_letters_nothing(faulty: FaultyRegistry, ask: Ask) -> None:
    """A wrong path or a proxy says 404 to every id; taken for an answer, every good row would be a dead letter."""
    faulty.lacks.add(ID)

    with pytest.raises(RegistryRefuses, match="path"):
        ask().by_id(1)


FAULTS = ["500", "503", "429", "garbage", "wrong", "cut", "hangup"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_is_not_noticed(faulty: FaultyRegistry, ask: Ask, fault: str) -> None:
    number = faulty.book.add("event", PROTO)
    faulty.fails(fault, times=2)

    assert ask(attempts=3).by_id(number).text == PROTO
    assert len(faulty.seen) == 3


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_says_nothing_about_the_schema(faulty: FaultyRegistry, ask: Ask, fault: str) -> None:
    faulty.fails(fault)

    with pytest.raises(RegistryAway) as caught:
        ask(attempts=3).by_id(1)

    assert len(faulty.seen) == 3
    assert caught.value.where == f"{faulty.url}/schemas/ids/1"


def test_attempts_are_apart_by_chance_and_longer_each_time(faulty: FaultyRegistry) -> None:
    """Routers that lost a registry together must not come back to it together."""
    faulty.fails("503")
    pauses: list[list[float]] = [[], []]
    for slept in pauses:
        with RegistryClient(RegistryOptions(url=(faulty.url,), attempts=8), sleep=slept.append) as client:
            with pytest.raises(RegistryAway):
                client.by_id(1)

    assert pauses[0] != pauses[1]
    for slept in pauses:
        assert len(slept) == 7
        assert all(
            0 <= pause <= min(FIRST_RETRY_SECONDS * 2**round_, LONGEST_RETRY_SECONDS)
            for round_, pause in enumerate(slept)
        )


@pytest.mark.parametrize("fault", ["silent", "drip"])
def test_a_slow_registry_does_not_hold_a_batch_for_ever(faulty: FaultyRegistry, ask: Ask, fault: str) -> None:
    faulty.fails(fault)

    with pytest.raises(RegistryAway, match=r"within 0\.2 s"):
        ask(attempts=1, timeout=0.2).by_id(1)


def test_an_endless_answer_does_not_fill_the_memory(
    faulty: FaultyRegistry, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MAX_ANSWER_BYTES", 10_000_000)
    faulty.fails("endless")

    with pytest.raises(RegistryAway, match="10000000 bytes"):
        ask(attempts=1).by_id(1)


def test_a_schema_of_10_megabytes_is_legal(faulty: FaultyRegistry, ask: Ask) -> None:
    text = '"' * 10_000_000  # twice as long in JSON
    number = faulty.book.add("event", text)

    assert ask().by_id(number).text == text


def test_a_registry_that_is_down_is_away(faulty: FaultyRegistry, ask: Ask) -> None:
    faulty.stop()

    with pytest.raises(RegistryAway, match="refused"):
        ask().by_id(1)


def test_several_urls_are_tried_in_turn_and_the_one_that_answers_is_kept(faulty: FaultyRegistry, ask: Ask) -> None:
    number = faulty.book.add("event", PROTO)
    with FaultyRegistry() as second:
        second.book = faulty.book
        client = ask(url=[faulty.url, second.url], attempts=1)
        faulty.fails("503")
        assert client.by_id(number).text == client.by_id(number).text == PROTO
        assert (len(faulty.seen), len(second.seen)) == (1, 2)

        faulty.fails("")
        second.stop()
        assert client.by_id(number).text == PROTO

    faulty.stop()
    with pytest.raises(RegistryAway) as caught:
        client.by_id(number)
    assert faulty.url in str(caught.value)
    assert second.url in str(caught.value)


@pytest.mark.parametrize("status", ["400", "401", "403", "406", "422"])
def test_a_refusal_is_a_matter_of_configuration(faulty: FaultyRegistry, ask: Ask, status: str) -> None:
    """Waiting would not help, and a dead letter would be wrong: the stream stops and says why."""
    faulty.fails(status)

    with pytest.raises(RegistryRefuses) as caught:
        ask().by_id(1)

    assert caught.value.status == int(status)
    assert len(faulty.seen) == 1


def test_a_redirect_to_another_host_gets_no_login(faulty: FaultyRegistry, ask: Ask) -> None:
    with FaultyRegistry() as thief:
        faulty.fails("redirect")
        faulty.elsewhere = thief.url
        with pytest.raises(RegistryRefuses) as caught:
            ask(bearer=HUSH).by_id(1)

        assert thief.url in str(caught.value)
        assert thief.seen == []


def test_a_redirect_on_the_same_server_is_followed_but_not_in_circles(faulty: FaultyRegistry, ask: Ask) -> None:
    number = faulty.book.add("event", PROTO)
    faulty.elsewhere = faulty.url
    faulty.fails("redirect", times=1)
    assert ask().by_id(number).text == PROTO

    faulty.fails("redirect")
    with pytest.raises(RegistryRefuses, match="more than 5"):
        ask().by_id(number)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=drawn(50))
@given(subject=st.text(min_size=1, max_size=30) | st.sampled_from([".", "..", "../../x", "a/b?c#d%2e", ":.ctx:a b"]))
def test_a_subject_is_never_a_path(faulty: FaultyRegistry, ask: Ask, subject: str) -> None:
    """A subject from the data must not lead to another route of the registry."""
    before = len(faulty.seen)
    with pytest.raises(NotFound):
        ask().version(subject, 1)

    if subject in {".", ".."}:
        assert len(faulty.seen) == before
    else:
        (empty, subjects, name, *rest) = faulty.paths[-1].split("/")
        assert (empty, subjects, unquote(name), *rest) == ("", "subjects", subject, "versions", "1?deleted=true")


@pytest.mark.parametrize("status", ["400", "404", "414", "422"])
def test_a_name_that_a_server_cannot_take_is_not_found(faulty: FaultyRegistry, ask: Ask, status: str) -> None:
    """References come from whoever registered a schema: one bad name must not stop the stream."""
    faulty.fails(status)

    with pytest.raises(NotFound):
        ask().version("../../x", 1)


def test_user_and_password_are_sent_as_utf_8(faulty: FaultyRegistry, ask: Ask) -> None:
    number = faulty.book.add("event", PROTO)
    faulty.logins = {"Basic " + base64.b64encode("jürgen:päss:wörd€".encode()).decode()}

    assert ask(basic={"user": "jürgen", "password": "päss:wörd€"}).by_id(number).text == PROTO
    with pytest.raises(RegistryRefuses, match="login"):
        ask().by_id(number)


def test_a_login_of_the_machine_is_not_borrowed(
    faulty: FaultyRegistry, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login me password {HUSH}\n")
    monkeypatch.setenv("NETRC", str(netrc))

    ask().by_id(faulty.book.add("event", PROTO))

    assert "Authorization" not in faulty.seen[0].headers


def test_a_token_and_further_headers_are_sent(faulty: FaultyRegistry, ask: Ask) -> None:
    ask(bearer=HUSH, headers={"target-sr-cluster": "lsrc-1"}).by_id(faulty.book.add("event", PROTO))

    sent = faulty.seen[0].headers
    assert (sent["Authorization"], sent["target-sr-cluster"]) == (f"Bearer {HUSH}", "lsrc-1")


def test_a_token_that_is_refused_is_renewed_once(faulty: FaultyRegistry, ask: Ask) -> None:
    number = faulty.book.add("event", PROTO)
    faulty.granted = [{"access_token": "old", "expires_in": 3600}, {"access_token": "new", "expires_in": 3600}]
    faulty.logins = {"Bearer new"}
    client = ask(oauth={"token_url": f"{faulty.url}/token", **OAUTH})

    assert client.by_id(number) == client.by_id(number)
    assert faulty.paths == ["/token", "/schemas/ids/1", "/token", "/schemas/ids/1", "/schemas/ids/1"]
    asked = faulty.seen[0]
    assert parse_qs(asked.body.decode()) == {"grant_type": ["client_credentials"], "scope": ["schemas"]}
    assert base64.b64decode(asked.headers["Authorization"].removeprefix("Basic ")) == f"router:{HUSH}".encode()

    faulty.logins = set()
    with pytest.raises(RegistryRefuses, match="401"):
        client.by_id(number)


def test_a_token_is_renewed_before_it_expires(faulty: FaultyRegistry) -> None:
    faulty.granted = [{"access_token": "first", "expires_in": 100}, {"access_token": "second"}]
    options = OAuth(token_url=f"{faulty.url}/token", **OAUTH)
    now = [0.0]
    auth = ClientCredentialsAuth(Tokens(options, seconds=30, verify=True, clock=lambda: now[0]))
    tokens = []
    for now[0] in (1000.0, 1079.0, 1081.0, 9999.0):
        client = RegistryClient(RegistryOptions(url=(faulty.url,)))
        client._session.auth = auth
        with client:
            client.set_compatibility("event", "NONE")
        tokens.append(faulty.seen[-1].headers["Authorization"])

    assert tokens == ["Bearer first", "Bearer first", "Bearer second", "Bearer second"]


@pytest.mark.parametrize(
    ("granted", "error"),
    [
        ({"status": 503}, RegistryAway),
        ({"status": 401, "error": "invalid_client"}, RegistryRefuses),
        ({"status": 302}, RegistryRefuses),
        ({"token": "x"}, RegistryAway),
        ({"access_token": "a\r\nX-More: 1"}, RegistryAway),
    ],
    ids=str,
)
def test_a_token_server_without_a_token_is_told_from_the_registry(
    faulty: FaultyRegistry, ask: Ask, granted: dict[str, Any], error: type[RegistryError]
) -> None:
    faulty.granted = [granted]

    with pytest.raises(error) as caught:
        ask(oauth={"token_url": f"{faulty.url}/token", **OAUTH}).by_id(1)

    assert caught.value.where == f"{faulty.url}/token"
    assert HUSH not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"basic": {"user": "router", "password": HUSH}},
        {"bearer": HUSH},
        {"headers": {"X-Api-Key": HUSH}},
    ],
    ids=str,
)
def test_a_registry_that_repeats_secrets_does_not_bring_them_into_a_log(
    faulty: FaultyRegistry, ask: Ask, options: dict[str, Any]
) -> None:
    encoded = base64.b64encode(f"router:{HUSH}".encode()).decode()
    faulty.repeats = f"{HUSH} and Basic {encoded}" if "basic" in options else HUSH
    faulty.fails("403")

    with pytest.raises(RegistryRefuses) as caught:
        ask(**options).by_id(1)

    assert "is what I got" in str(caught.value)
    assert HUSH not in str(caught.value)
    assert encoded not in str(caught.value)


def test_a_long_answer_is_not_quoted_whole(faulty: FaultyRegistry, ask: Ask) -> None:
    faulty.repeats = "\x1b[31m" + "x" * 5000
    faulty.fails("403")

    with pytest.raises(RegistryRefuses) as caught:
        ask().by_id(1)

    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


def test_a_schema_is_registered_and_has_its_id_again(faulty: FaultyRegistry, ask: Ask) -> None:
    references = (Reference("player.proto", "player", 1),)
    first = ask().register("event", "PROTOBUF", PROTO, references)

    assert ask().register("event", "PROTOBUF", PROTO, references) == first
    assert ask().by_id(first) == RegisteredSchema(first, "PROTOBUF", PROTO, references)


def test_an_incompatible_schema_is_refused_with_the_registrys_reason(faulty: FaultyRegistry, ask: Ask) -> None:
    with pytest.raises(RegistryRefuses, match="field 3 changed") as caught:
        ask().register("event", "PROTOBUF", "incompatible")

    assert caught.value.status == 409


def test_compatibility_is_set_for_one_subject(faulty: FaultyRegistry, ask: Ask) -> None:
    ask().set_compatibility("a/b", "FULL")

    (seen,) = faulty.seen
    assert (seen.method, seen.path, json.loads(seen.body)) == ("PUT", "/config/a%2Fb", {"compatibility": "FULL"})


@pytest.mark.parametrize("option", ["certificate", "ca"])
def test_a_file_that_is_not_there_is_told_at_the_start(ask: Ask, option: str) -> None:
    with pytest.raises(RegistryRefuses, match=r"nowhere\.pem"):
        ask(**{option: "nowhere.pem"})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate for 127.0.0.1 that nobody trusts, and its key in the same file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, made = folder / "key.pem", folder / "certificate.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=registry", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(made)], check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text(key.read_text() + made.read_text())
    return both


def test_a_server_with_an_unknown_certificate_gets_nothing(certificate: Path, ask: Ask) -> None:
    with FaultyRegistry(certificate) as registry:
        number = registry.book.add("event", PROTO)
        with pytest.raises(RegistryRefuses, match="`ca`"):
            ask(url=registry.url, bearer=HUSH).by_id(number)

        assert registry.seen == []
        assert ask(url=registry.url, ca=str(certificate)).by_id(number).text == PROTO
        with pytest.warns(urllib3.exceptions.InsecureRequestWarning):
            ask(url=registry.url, insecure_skip_tls_verification=True).by_id(number)


def test_a_client_shows_its_certificate(certificate: Path, ask: Ask) -> None:
    with FaultyRegistry(certificate, ask_for_certificate=True) as registry:
        number = registry.book.add("event", PROTO)
        options = {"url": registry.url, "ca": str(certificate)}
        with pytest.raises(RegistryAway):
            ask(**options, attempts=1).by_id(number)

        assert ask(**options, certificate=str(certificate)).by_id(number).text == PROTO


@pytest.fixture
def real(schema_registry: EmbeddedRegistry) -> Iterator[RegistryClient]:
    with RegistryClient(
        RegistryOptions(url=(schema_registry.url,), timeout=120)
    ) as client:  # it parses the 10 MB it is given
        yield client


PLAYER = 'syntax = "proto3"; package games; message Player { string id = 1; }'
EVENT = (
    'syntax = "proto3"; package games; import "player.proto"; import "google/protobuf/timestamp.proto";'
    "message Event { Player player = 1; google.protobuf.Timestamp at = 2; }"
)


def test_a_real_registry_gives_what_was_registered(real: RegistryClient) -> None:
    real.register("real-player", "PROTOBUF", PLAYER)
    references = (Reference("player.proto", "real-player", 1),)
    number = real.register("real-event", "PROTOBUF", EVENT, references)

    assert real.by_id(number) == RegisteredSchema(number, "PROTOBUF", EVENT, references)
    assert real.version("real-event", 1) == real.by_id(number)
    assert real.versions("real-event") == (1,)
    assert real.subjects_of(number) == (("real-event", 1),)
    assert real.register("real-event", "PROTOBUF", EVENT, references) == number


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AVRO", '{"type":"record","name":"Event","fields":[{"name":"game","type":"string"}]}'),
        ("JSON", '{"type":"object","properties":{"game":{"type":"string"}}}'),
    ],
)
def test_a_real_registry_tells_the_kind(real: RegistryClient, kind: Any, text: str) -> None:
    number = real.register(f"real-{kind}", kind, text)

    found = real.by_id(number)
    assert (found.kind, json.loads(found.text)) == (kind, json.loads(text))


@pytest.mark.parametrize("number", [0, 1_000_000, 2**31 - 1])
def test_a_real_registry_says_that_an_id_is_not_there(real: RegistryClient, number: int) -> None:
    with pytest.raises(NotFound):
        real.by_id(number)
    assert real.subjects_of(number) == ()


def test_a_real_registry_that_knows_no_guids_is_told_from_a_wrong_url(
    real: RegistryClient, schema_registry: EmbeddedRegistry
) -> None:
    with pytest.raises(NotFound, match="does not know GUIDs"):
        real.id_of(UUID(int=1))
    with (
        RegistryClient(RegistryOptions(url=(f"{schema_registry.url}/elsewhere",))) as lost,
        pytest.raises(RegistryRefuses),
    ):
        lost.id_of(UUID(int=1))


@pytest.mark.parametrize("subject", ["real-nobody", "../../x", "a/b", "ä b?#%", "x" * 3000])
def test_a_real_registry_says_that_a_referent_is_not_there(real: RegistryClient, subject: str) -> None:
    with pytest.raises(NotFound):
        real.version(subject, 1)


@pytest.mark.parametrize("size", [1000, pytest.param(10_000_000, marks=pytest.mark.slow)])
def test_a_real_registry_takes_hostile_names_and_large_schemas(real: RegistryClient, tmp_path: Path, size: int) -> None:
    real.register("real-x", "PROTOBUF", PLAYER)
    text = f"{PROTO} // {'x' * size}"
    number = real.register("a/../b?", "PROTOBUF", text, [Reference("../../x", "real-x", 1)])

    found = SchemaResolver(real, FolderMemory(tmp_path / "schemas")).resolve_ids([number])[number]

    subjects = (("a/../b?", real.versions("a/../b?")[-1]),)
    references = (Reference("../../x", "real-x", 1),)
    assert found == ResolvedSchema(
        RegisteredSchema(number, "PROTOBUF", text, references, subjects), {"../../x": PLAYER}
    )
    assert [path.name for path in tmp_path.iterdir()] == ["schemas"]


def test_ids_of_a_real_registry_outlive_it_and_its_subjects(
    schema_registry: EmbeddedRegistry, real: RegistryClient, tmp_path: Path
) -> None:
    """The first URL, the name of a registry, is one where nobody answers: alone, it is a registry that is down."""
    with FaultyRegistry() as gone:
        nobody = gone.url
    numbers = [real.register("real-outlived", "PROTOBUF", PLAYER.replace("id", f"id{index}")) for index in range(3)]
    with RegistryClient(RegistryOptions(url=(nobody, schema_registry.url))) as client:
        schemas = SchemaResolver(client, FolderMemory(tmp_path))
        assert schemas.poll_subjects(["real-outlived", "real-never"]) == set(numbers)
        before = schemas.resolve_ids(numbers)
        requests.delete(f"{schema_registry.url}/subjects/real-outlived", timeout=30).raise_for_status()
        assert schemas.poll_subjects(["real-outlived"]) == frozenset()

    with RegistryClient(RegistryOptions(url=(nobody,), attempts=1)) as client:
        schemas = SchemaResolver(client, FolderMemory(tmp_path))
        assert schemas.resolve_ids(numbers) == before
        with pytest.raises(RegistryAway):
            schemas.resolve_ids([max(numbers) + 1])


def test_a_real_registry_refuses_an_incompatible_schema_once_told_to(real: RegistryClient) -> None:
    real.register("real-strict", "PROTOBUF", PROTO)
    real.set_compatibility("real-strict", "FULL_TRANSITIVE")

    with pytest.raises(RegistryRefuses):
        real.register("real-strict", "PROTOBUF", PROTO.replace("string game", "double game"))
