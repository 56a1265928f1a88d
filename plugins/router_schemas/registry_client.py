"""Ask a Confluent-compatible schema registry: the few requests that decoding needs, and registering.

The requests and error codes are those of https://docs.confluent.io/platform/current/schema-registry/develop/api.html.
It logs in with user and password, a fixed token, or tokens for client credentials. Of a response only the fields that
are needed here are read; any others are ignored.

For tests of configurations `OfflineRegistry` offers files as the subjects of a registry: nothing goes over a network.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, get_args
from urllib.parse import quote, urljoin, urlsplit

import requests
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from requests.adapters import HTTPAdapter
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from router import Server, StartError
from router_http.client import (
    Away,
    BearerAuth,
    ClientCredentialsAuth,
    NoAuth,
    Refuses,
    Tokens,
    basic_auth,
    is_busy,
    printable_excerpt,
    send_request,
)
from router_schemas.model import LARGEST_ID, Kind, Reference, RegisteredSchema, schema_file
from router_schemas.registry_options import NotFound, RegistryAway, RegistryError, RegistryRefuses, WrongKind
from router_schemas.subject_names import context_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from uuid import UUID

    from requests.auth import AuthBase

    from router_http.client import Answer
    from router_schemas.registry_options import RegistryOptions


# confluent-kafka's client is of no use here: its cache by id grows without end and ignores the format asked for, its
# latest version is cached for ever, it asks without a time-out, it refuses bearer tokens without a logical cluster,
# and its extras (httpx2, Authlib, certifi) do not always resolve. These are six requests.


T = TypeVar("T")

REQUESTS_AT_ONCE = 20
"""Requests that a registry gets at the same time: garbage can look like prefixes with as many ids as there are rows.
With 16 a hundred ids are seven rounds, 14 s with a registry that takes two."""
MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
UNKNOWN_CODES = {40401, 40402, 40403}
"""Codes for no such subject, version, schema. A 404 without one comes from a proxy or a wrong path, not from a registry
that looked."""
UNADDRESSABLE_STATUSES = {400, 404, 414, 422, 431}
"""What servers answer when a name cannot be part of a URL there."""
MISSING_ROUTE_STATUSES = {404, 405}
"""What servers answer to a route that they do not have."""
REDIRECT_STATUSES = {301, 302, 303, 307, 308}
MOST_REDIRECTS = 5
FIRST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 5.0
"""Seconds: a pause between two rounds is random, between none and twice the last one's most."""


class RegistryClient:
    """A client of one registry; it keeps only which of its URLs responded. For the driver; any thread may use it.

    `subject` goes along with every request for an id: if it is of a context (`:.games:orders-value`), ids are those of
    that context. In another one the same id means another schema.

    Every method raises NotFound, RegistryAway (after the rounds of `registry.attempts`) or RegistryRefuses; no message
    holds a secret. `sleep` takes the seconds between two rounds.
    """

    def __init__(
        self, registry: RegistryOptions, *, subject: str = "", sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._registry = registry
        self._subject = subject
        self.context = context_of(subject)
        """What qualifies the subjects of the context that ids are of, `:.games:`; empty if the URL decides."""
        self._answering = 0
        self._session = requests.Session()
        self._session.auth = make_login(registry)
        # Without room for all connections requests would close and open some for each answer.
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=REQUESTS_AT_ONCE))
        # not compressed: a few bytes could grow to any length
        self._session.headers.update({"Accept": f"{MEDIA_TYPE}, application/json", "Accept-Encoding": "identity"})
        self._session.headers.update({name: value.get_secret_value() for name, value in registry.headers.items()})
        certificate = _client_certificate(registry)
        # Proxies and authorities of the environment are looked up once for each URL: `requests` would go through all
        # variables with every request, which is a quarter of what it costs.
        self._settings = {
            url: self._session.merge_environment_settings(url, {}, True, registry.verify, certificate)
            for url in registry.url
        }
        self._session.trust_env = False
        self._retrying = Retrying(
            retry=retry_if_exception_type(RegistryAway),
            stop=stop_after_attempt(registry.attempts),
            wait=wait_random_exponential(multiplier=FIRST_RETRY_SECONDS, max=LONGEST_RETRY_SECONDS),
            sleep=sleep,
            reraise=True,
        )

    def __enter__(self) -> RegistryClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Return the first URL, and the context of the subject: the name under which ids can be remembered."""
        return self._registry.url[0] + (f" in the context {self.context.strip(':')}" if self.context else "")

    @property
    def absence(self) -> str:
        """Return why the registry does not give an id that it does not have, with `{id}` in the place of the id."""
        return f"it answers 404 ({self._registry.url[0]}/schemas/ids/{{id}})"

    def _of_subject(self, separator: str) -> str:
        """Return the parameter of a request for an id that names the context; nothing without one."""
        return f"{separator}subject={quote(self._subject, safe='')}" if self.context else ""

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        self._session.close()

    def check_login(self) -> None:
        """Ask for something small that every registry has: does it respond, and take this login?"""
        self._ask_registry("/subjects", NAMES_ANSWER)

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id, without its subjects."""
        return _registered_schema(
            schema_id,
            self._ask_registry(f"/schemas/ids/{schema_id:d}{self._of_subject('?')}", SCHEMA_ANSWER),
            self.name,
        )

    def subjects_of(self, schema_id: int) -> tuple[tuple[str, int], ...]:
        """Return every (subject, version) of an id, also deleted ones; none if the registry has no such route."""
        try:
            route = f"/schemas/ids/{schema_id:d}/versions?deleted=true{self._of_subject('&')}"
            pairs = self._ask_registry(route, SUBJECT_VERSIONS_ANSWER)
        except NotFound:
            return ()
        except RegistryRefuses as refusal:
            if refusal.status in MISSING_ROUTE_STATUSES:
                return ()
            raise
        return tuple(sorted((pair.subject, pair.version) for pair in pairs))

    def id_of(self, guid: UUID) -> int:
        """Return the id that a GUID has in the context of the subject, or of the url.

        Raises NotFound if it has none, and for a registry that does not know GUIDs.
        """
        route = f"/schemas/guids/{guid}/ids"
        try:
            answer = self._ask_registry(route, CONTEXT_IDS_ANSWER)
        except RegistryRefuses as refusal:
            if refusal.status not in MISSING_ROUTE_STATUSES:
                raise
            # A registry without this route, or a wrong url? The second one is a fault of the configuration.
            self._check_api()
            problem = (
                f"it does not know GUIDs (it answers {refusal.status}); let producers send ids in the value's prefix"
            )
            raise NotFound(refusal.where, problem, refusal.status) from None
        ids = {pair.context: pair.id for pair in answer}
        context = self.context.strip(":") or _context_of_url(self._registry.url[0])
        if context not in ids:
            others = f", only in {', '.join(sorted(ids))[:200]}" if ids else ""
            raise NotFound(self._registry.url[0] + route, f"there is none in the context {context}{others}", 404)
        return ids[context]

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the versions of a subject in their order, without deleted ones."""
        numbers = self._ask_registry(f"/subjects/{_quote_subject(subject, self.name)}/versions", VERSIONS_ANSWER)
        return tuple(sorted(numbers))

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """Return one version of a subject, also a deleted one: others may still refer to it."""
        route = f"/subjects/{_quote_subject(subject, self.name)}/versions/{version:d}?deleted=true"
        try:
            answer = self._ask_registry(route, VERSION_ANSWER)
        except RegistryRefuses as refusal:
            if refusal.status not in UNADDRESSABLE_STATUSES:
                raise
            # Subjects are chosen by whoever registers a schema: a bad one is no fault of the configuration.
            raise NotFound(refusal.where, refusal.what, refusal.status) from None
        return _registered_schema(answer.id, answer, self.name)

    def register(self, subject: str, kind: Kind, text: str, references: Iterable[Reference] = ()) -> int:
        """Register a schema and return its id; the id it has, when it is registered already."""
        body = _schema_body(kind, text, references)
        return self._ask_registry(
            f"/subjects/{_quote_subject(subject, self.name)}/versions", ID_ANSWER, "POST", body
        ).id

    def lookup(self, subject: str, kind: Kind, text: str, references: Iterable[Reference] = ()) -> int:
        """Return the id of a schema under a subject; raise NotFound if it is not registered there."""
        return self._ask_registry(
            f"/subjects/{_quote_subject(subject, self.name)}", ID_ANSWER, "POST", _schema_body(kind, text, references)
        ).id

    def set_compatibility(self, subject: str, level: str) -> None:
        """Set which changes a subject takes: NONE, BACKWARD, FORWARD, FULL, or one of them with _TRANSITIVE."""
        self._ask_registry(f"/config/{_quote_subject(subject, self.name)}", ANY_ANSWER, "PUT", {"compatibility": level})

    def _check_api(self) -> None:
        """Raise RegistryRefuses if the url leads to a server that does not answer as a registry does."""
        with suppress(NotFound):
            self.by_id(LARGEST_ID)

    def _ask_registry(self, route: str, kind: TypeAdapter[T], method: str = "GET", body: Any = None) -> T:
        answer: T = self._retrying(self._ask_in_turn, route, kind, method, body)
        return answer

    def _ask_in_turn(self, route: str, kind: TypeAdapter[T], method: str, body: Any) -> T:
        """Ask the URLs one after the other, starting with the one that answered last."""
        urls = self._registry.url
        faults: list[RegistryAway] = []
        first = self._answering
        for index in (*range(first, len(urls)), *range(first)):
            try:
                answer = self._ask_url(urls[index], route, kind, method, body)
            except RegistryAway as fault:  # any other error would be the same at the other URLs
                faults.append(fault)
            else:
                self._answering = index
                return answer
        if len(faults) == 1:
            raise faults[0]
        problem = "; ".join(f"{_origin_of(fault.where)}: {fault.what}" for fault in faults)
        raise RegistryAway(self._registry.url[0] + route, f"none of {len(urls)} URLs answers: {problem}")

    def _ask_url(self, server: str, route: str, kind: TypeAdapter[T], method: str, body: Any) -> T:
        url = server + route
        answer = self._send_request(method, url, body, self._settings[server])
        if not 200 <= answer.status < 300:
            raise self._answer_fault(url, answer)
        try:
            return kind.validate_json(answer.body)
        except ValidationError:
            problem = (
                f"the answer is not that of a registry: {self._body_excerpt(answer)}; is the path of the url right?"
            )
            raise RegistryAway(url, problem, answer.status) from None

    def _send_request(self, method: str, url: str, body: Any, settings: Mapping[str, Any]) -> Answer:
        """Send one request; follow redirects within one server only, so that no login goes to another."""
        place = url
        for _ in range(MOST_REDIRECTS):
            answer = _read_answer(
                self._session,
                method,
                place,
                seconds=self._registry.timeout,
                json=body,
                headers=None if body is None else {"Content-Type": MEDIA_TYPE},
                proxies=settings["proxies"],
                verify=settings["verify"],
                cert=settings["cert"],
            )
            if answer.status not in REDIRECT_STATUSES:
                return answer
            target = urljoin(place, answer.location)
            if method != "GET" or _origin_of(target) != _origin_of(place):
                problem = (
                    f"it redirects to {_origin_of(target)}, which is not followed; if that is right, make it the url"
                )
                raise RegistryRefuses(url, problem, answer.status)
            place = target
        raise RegistryRefuses(url, f"it redirects more than {MOST_REDIRECTS} times", answer.status)

    def _answer_fault(self, url: str, answer: Answer) -> RegistryError:
        problem = f"it answers {answer.status}: {self._body_excerpt(answer)}"
        if answer.status == 404 and _error_code(answer.body) in UNKNOWN_CODES:
            return NotFound(url, problem, answer.status)
        if is_busy(answer.status) or answer.status < 400:
            return RegistryAway(url, problem, answer.status)
        # A 404 without a registry's own code is that of a proxy or of a wrong path.
        hints = {401: "check the login", 403: "this login may not do that", 404: "is the path of the url right?"}
        hint = hints.get(answer.status, "see the registry's log")
        return RegistryRefuses(url, f"{problem}; {hint}", answer.status)

    def _body_excerpt(self, answer: Answer) -> str:
        """Return the beginning of a body in one printable line, without any secret that it repeats."""
        text = answer.body[:2000].decode("utf-8", "replace")
        return printable_excerpt(text, (*self._registry.secrets, answer.login.rpartition(" ")[2]))


def _read_answer(session: requests.Session, method: str, url: str, **arguments: Any) -> Answer:
    try:
        return send_request(session, method, url, **arguments)
    except Away as fault:
        raise RegistryAway(fault.where, fault.what, fault.status) from None
    except Refuses as fault:
        raise RegistryRefuses(fault.where, fault.what, fault.status) from None


def _schema_body(kind: Kind, text: str, references: Iterable[Reference]) -> dict[str, Any]:
    return {"schema": text, "schemaType": kind, "references": [asdict(reference) for reference in references]}


def _quote_subject(subject: str, url: str) -> str:
    """Return a subject as one segment of a path; `.` and `..` cannot be one, however they are written."""
    if subject in {"", ".", ".."}:
        raise NotFound(url, f"no subject can be named {subject!r}")
    return quote(subject, safe="")


def _context_of_url(url: str) -> str:
    """Return the context that a URL leads to: `.../contexts/.games`; one dot is the default."""
    match = re.search(r"/contexts/:?(\.[^/:]*):?(?:/|$)", url)
    return match[1] if match else "."


def _origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"[:200]


def servers_of(options: RegistryOptions | None, folder: Path) -> Iterator[Server]:
    """Yield the servers of a registry for `router doctor`, each with a check that it accepts this login; none for None.

    `folder` is that of the configuration.
    """
    if options is None:
        return
    registry = options.resolve_paths(folder)
    for url in registry.url:
        of_url = registry.model_copy(update={"url": (url,), "attempts": 1})
        yield Server("schema registry", url, of_url.verify, partial(_check_registry, of_url))


def _check_registry(registry: RegistryOptions) -> None:
    with RegistryClient(registry) as client:
        client.check_login()


def _client_certificate(registry: RegistryOptions) -> Any:
    """Return the client's certificate as `requests` takes it, None if there is none; check that the files are there."""
    if registry.missing_file:
        raise RegistryRefuses(registry.url[0], registry.missing_file)
    return registry.cert or None


def make_login(registry: RegistryOptions) -> AuthBase:
    """Return the authorisation of requests to a registry; raise RegistryRefuses if the options lost their secrets."""
    if not all(registry.secrets):
        raise RegistryRefuses(registry.url[0], "secrets do not travel to other processes: ask it on the driver")
    if registry.basic is not None:
        return basic_auth(registry.basic)
    if registry.bearer is not None:
        return BearerAuth(registry.bearer.get_secret_value())
    if registry.oauth is not None:
        return ClientCredentialsAuth(Tokens(registry.oauth, seconds=registry.timeout, verify=registry.verify))
    return NoAuth()


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Schema(_Record):
    text: str = Field(alias="schema")
    kind: str | None = Field(default=None, alias="schemaType")
    references: tuple[Reference, ...] | None = None


class _Version(_Schema):
    id: int


class _Pair(_Record):
    subject: str
    version: int


class _Id(_Record):
    id: int


class _ContextId(_Record):
    context: str
    id: int


class _Error(_Record):
    error_code: int = 0


SCHEMA_ANSWER = TypeAdapter(_Schema)
VERSION_ANSWER = TypeAdapter(_Version)
ID_ANSWER = TypeAdapter(_Id)
SUBJECT_VERSIONS_ANSWER = TypeAdapter(tuple[_Pair, ...])
VERSIONS_ANSWER = TypeAdapter(tuple[int, ...])
ANY_ANSWER = TypeAdapter(Any)
NAMES_ANSWER: TypeAdapter[list[str]] = TypeAdapter(list[str])
CONTEXT_IDS_ANSWER = TypeAdapter(tuple[_ContextId, ...])


def _registered_schema(schema_id: int, answer: _Schema, url: str) -> RegisteredSchema:
    """Return the schema of an answer; raise WrongKind, with the registry's `url`, for one of another type."""
    kind = answer.kind or "AVRO"  # the first registries knew nothing else, and still leave it out
    if kind not in get_args(Kind):
        raise WrongKind(url, f"schema {schema_id} is of the type {kind[:40]!r}; {', '.join(get_args(Kind))} are read")
    return RegisteredSchema(schema_id, kind, answer.text, answer.references or ())  # type: ignore[arg-type]


def _error_code(body: bytes) -> int:
    """Return the error code in a body, 0 if there is none."""
    try:
        return _Error.model_validate_json(body).error_code
    except ValidationError:
        return 0


KIND_BY_SUFFIX: dict[str, Kind] = {".proto": "PROTOBUF", ".avsc": "AVRO", ".json": "JSON"}


class OfflineRegistry:
    """A registry of files of one kind, with those methods of RegistryClient that read.

    `subjects`: subject -> its versions, the oldest first. Without a kind, a file's kind follows from its name, by
    KIND_BY_SUFFIX. Ids count from 1 in the order of the files. `imports` has, for a kind, what returns the texts of the
    files that a file with some text refers to, by the names it uses.
    """

    name = "the files of the test"
    context = ""
    absence = f"none has the id {{id}} ({name})"

    def __init__(
        self,
        kind: Kind | None,
        subjects: Mapping[str, Sequence[Path]],
        imports: Mapping[Kind, Callable[[Path, str], Mapping[str, str]]] = MappingProxyType({}),
    ) -> None:
        self._ids: dict[Path, int] = {}
        self._texts: dict[int, RegisteredSchema] = {}
        self._imported: dict[str, RegisteredSchema] = {}
        self._subjects = {subject: list(files) for subject, files in subjects.items()}
        for path in dict.fromkeys(chain.from_iterable(self._subjects.values())):
            number = len(self._ids) + 1
            self._ids[path] = number
            file_kind = kind or kind_of(path)
            references = []
            with schema_file(path):
                text = path.read_text(encoding="utf-8")
                if file_kind in imports:
                    for name, imported in imports[file_kind](path, text).items():
                        self._imported[name] = RegisteredSchema(0, file_kind, imported)
                        references.append(Reference(name, name, 1))
            self._texts[number] = RegisteredSchema(number, file_kind, text, tuple(references))

    def choose_file(self, path: Path | None) -> tuple[int, Path]:
        """Return a file, or the newest version of the only subject, with its id; raise ValueError."""
        if path is None:
            newest = {files[-1] for files in self._subjects.values() if files}
            if len(newest) != 1:
                raise ValueError("several subjects have schemas: say which file with `schema`")
            (path,) = newest
        if path not in self._ids:
            names = ", ".join(file.name for file in self._ids)
            raise ValueError(f"{path.name} is not among the test's `schemas`; there are {names or 'none'}")
        return self._ids[path], path

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id, without its subjects."""
        if schema_id not in self._texts:
            raise NotFound(self.name, f"none has the id {schema_id}")
        return self._texts[schema_id]

    def subjects_of(self, schema_id: int) -> tuple[tuple[str, int], ...]:
        """Return every (subject, version) of an id."""
        pairs = []
        for subject, files in self._subjects.items():
            pairs += [(subject, version) for version, file in enumerate(files, 1) if self._ids[file] == schema_id]
        return tuple(pairs)

    def id_of(self, guid: UUID) -> int:
        """Raise NotFound: files have no GUIDs."""
        raise NotFound(self.name, f"files have no GUIDs, so none has {guid}")

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the versions of a subject in their order."""
        if subject not in self._subjects:
            raise NotFound(self.name, f"no subject {subject!r}; the test's `schemas` have {', '.join(self._subjects)}")
        return tuple(range(1, len(self._subjects[subject]) + 1))

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """Return one version of a subject, or the file that others import under that name."""
        files = self._subjects.get(subject, [])
        if 1 <= version <= len(files):
            return self._texts[self._ids[files[version - 1]]]
        if subject in self._imported:
            return self._imported[subject]
        raise NotFound(self.name, f"no version {version} of {subject!r}")


def kind_of(path: Path) -> Kind:
    """Return the format of a schema file, by the ending of its name."""
    if path.suffix not in KIND_BY_SUFFIX:
        raise StartError(f"schema file {path.name}: its name has to end in one of {', '.join(KIND_BY_SUFFIX)}")
    return KIND_BY_SUFFIX[path.suffix]
