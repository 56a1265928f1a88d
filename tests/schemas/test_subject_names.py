"""Two topics share a schema id and diverge later: each learns the versions of its own subject alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from router_decoders import Protobuf
from router_schemas.avro.library import Writers
from router_schemas.json_schema.library import Documents
from router_schemas.library import AnyFormat, RegistryLibrary
from router_schemas.protobuf.library import Messages
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryOptions
from router_schemas.resolver import SchemaResolver
from router_schemas.subject_names import CountedSubjects
from tests.schemas.folder_memory import FolderMemory

if TYPE_CHECKING:
    from pathlib import Path

    from router_schemas.model import Kind
    from tests.schemas.faulty import FaultyRegistry

OURS, THEIRS = "orders-value", "bills-value"
TYPES: dict[str, dict[str, str]] = {
    "AVRO": {"string": "string", "long": "long"},
    "PROTOBUF": {"string": "string", "long": "int64"},
    "JSON": {"string": "string", "long": "integer"},
}


def schema(kind: str, **fields: str) -> str:
    """Return the text of the record shop.Sale with these fields."""
    types = {name: TYPES[kind][field_type] for name, field_type in fields.items()}
    if kind == "PROTOBUF":
        lines = [f"optional {field_type} {name} = {len(name)};" for name, field_type in types.items()]
        return f'syntax = "proto3"; package shop; message Sale {{ {" ".join(lines)} }}'
    if kind == "JSON":
        properties = {name: {"type": field_type} for name, field_type in types.items()}
        return json.dumps({"title": "shop.Sale", "type": "object", "properties": properties})
    columns = [{"name": name, "type": ["null", field_type], "default": None} for name, field_type in types.items()]
    return json.dumps({"type": "record", "namespace": "shop", "name": "Sale", "fields": columns})


@pytest.fixture(params=["AVRO", "PROTOBUF", "JSON"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return the format of the records."""
    chosen: Kind = request.param
    return chosen


Opened = Callable[..., RegistryLibrary[Any, Any]]


@pytest.fixture
def opened(faulty: FaultyRegistry, tmp_path: Path) -> Iterator[Opened]:
    """Open the library of a format as a start does, with the memory of the start before."""
    clients: list[RegistryClient] = []

    def opened(kind: Kind, counted: CountedSubjects) -> RegistryLibrary[Any, Any]:
        client = RegistryClient(RegistryOptions(url=(faulty.url,), attempts=1), sleep=lambda seconds: None)
        clients.append(client)
        memory = FolderMemory(tmp_path / "memory")
        formats: dict[str, type[RegistryLibrary[Any, Any]]] = {
            "AVRO": Writers,
            "PROTOBUF": Messages,
            "JSON": Documents,
        }
        schemas = SchemaResolver(client, memory, sleep=lambda seconds: None)
        return formats[kind](schemas, memory, counted.named, counted)

    yield opened
    for client in clients:
        client.close()


def reads(*topics: str) -> Callable[[str], bool]:
    return lambda topic: topic in topics


BY_SUBJECT = CountedSubjects((OURS,))
BY_TOPIC = CountedSubjects(reads_topic=reads("orders"))
either = pytest.mark.parametrize("counted", [BY_SUBJECT, BY_TOPIC], ids=["subjects", "topic"])


@either
def test_a_topic_has_the_versions_of_its_own_subject(
    faulty: FaultyRegistry, kind: Kind, opened: Opened, counted: CountedSubjects
) -> None:
    """Without it the other topic's columns come into this one's table, and its own records become dead letters."""
    shared = faulty.book.add(OURS, schema(kind, id="long"), kind)
    assert faulty.book.add(THEIRS, schema(kind, id="long"), kind) == shared
    faulty.book.add(THEIRS, schema(kind, id="long", note="long", bonus="long"), kind)
    own = faulty.book.add(OURS, schema(kind, id="long", note="string"), kind)
    library = opened(kind, counted)

    library.refresh_schemas([f"schema {shared}"])
    made = library.refresh_schemas()  # as before the next batch

    assert set(made.origins) == {"id", "note"}
    assert set(library.uses) == {f"schema {shared}", f"schema {own}"}
    assert not any(info.reason for info in made.written.values())
    assert {info.subject for info in made.written.values()} == {OURS}
    assert not any(THEIRS in path for path in faulty.paths)


def test_without_a_match_nothing_is_polled(faulty: FaultyRegistry, kind: Kind, opened: Opened) -> None:
    """A record still has its schema, and another subject's next version is nobody's business here."""
    number = faulty.book.add("elsewhere", schema(kind, id="long"), kind)
    faulty.book.add("elsewhere", schema(kind, id="long", note="long"), kind)

    library = opened(kind, BY_TOPIC)
    library.refresh_schemas([f"schema {number}"])
    made = library.refresh_schemas()

    assert set(made.origins) == {"id"}
    assert not any(path.startswith("/subjects") for path in faulty.paths)


@either
def test_what_an_older_start_has_learnt_of_others_is_forgotten(
    faulty: FaultyRegistry, kind: Kind, opened: Opened, counted: CountedSubjects, tmp_path: Path
) -> None:
    shared = faulty.book.add(OURS, schema(kind, id="long"), kind)
    faulty.book.add(THEIRS, schema(kind, id="long"), kind)
    foreign = faulty.book.add(THEIRS, schema(kind, id="long", bonus="long"), kind)
    before = [f"schema {shared}", f"schema {foreign}"]
    FolderMemory(tmp_path / "memory").write(f"{kind.lower()}-places.json", json.dumps(before).encode())

    made = opened(kind, counted).refresh_schemas()

    assert set(made.origins) == {"id"}


def test_other_subjects_than_before_count_from_the_next_start_on(
    faulty: FaultyRegistry, kind: Kind, opened: Opened
) -> None:
    faulty.book.add(OURS, schema(kind, id="long"), kind)
    faulty.book.add(THEIRS, schema(kind, id="long", bonus="long"), kind)
    assert set(opened(kind, CountedSubjects((OURS, THEIRS))).refresh_schemas().origins) == {"id", "bonus"}

    assert set(opened(kind, BY_SUBJECT).refresh_schemas().origins) == {"id"}


@either
def test_a_record_may_name_a_schema_of_another_subject_and_changes_no_column(
    faulty: FaultyRegistry, kind: Kind, opened: Opened, counted: CountedSubjects
) -> None:
    """It is read, also after a restart without the registry; where types do not go together, the own ones stay."""
    shared = faulty.book.add(OURS, schema(kind, id="long"), kind)
    own = faulty.book.add(OURS, schema(kind, id="long", note="string"), kind)
    stray = faulty.book.add(THEIRS, schema(kind, id="long", bonus="long"), kind)
    clash = faulty.book.add(THEIRS, schema(kind, id="long", note="long"), kind)
    wanted = [f"schema {number}" for number in (stray, clash, shared)]
    before = opened(kind, counted)
    before.refresh_schemas(wanted)
    before.refresh_schemas()
    faulty.stop()

    made = opened(kind, counted).refresh_schemas()

    assert set(made.origins) == {"id", "note", "bonus"}
    reasons = {info.schema_id: info.reason for info in made.written.values()}
    assert set(reasons) == {shared, own, stray, clash}
    assert "note" in str(reasons.pop(clash))
    assert set(reasons.values()) == {None}


def test_formats_of_one_topic_have_the_versions_of_its_own_subject(
    faulty: FaultyRegistry, opened: Opened, tmp_path: Path
) -> None:
    shared = faulty.book.add(OURS, schema("AVRO", id="long"), "AVRO")
    faulty.book.add(THEIRS, schema("AVRO", id="long"), "AVRO")
    faulty.book.add(THEIRS, schema("JSON", bonus="long"), "JSON")
    own = faulty.book.add(OURS, schema("JSON", id="long", note="string"), "JSON")
    memory = FolderMemory(tmp_path / "memory")
    client = RegistryClient(RegistryOptions(url=(faulty.url,), attempts=1), sleep=lambda seconds: None)
    schemas = SchemaResolver(client, memory)

    def fields(kind: Kind, made: Any) -> dict[str, Any]:
        event = made.struct if kind == "JSON" else made.event
        return {column.name: (column.dataType, kind) for column in event}

    with client:
        library = AnyFormat(schemas, memory, (), "header", lambda kind: opened(kind, BY_TOPIC), fields)
        library.refresh_schemas([f"schema {shared}"])
        made = library.refresh_schemas()

    assert {kind: set(fields(kind, one)) for kind, one in made.made.items()} == {"AVRO": {"id"}, "JSON": {"id", "note"}}
    assert {info.message for info in made.written.values()} == {"AVRO", "JSON"}
    assert own in {info.schema_id for info in made.made["JSON"].written.values()}


@pytest.mark.parametrize(
    ("counted", "subject", "counts"),
    [
        (CountedSubjects(("a", "b")), "b", True),
        (CountedSubjects(("a",), reads_topic=reads("t")), "t-value", False),
        (BY_TOPIC, "orders-value", True),
        (BY_TOPIC, ":.staging:orders-value", True),
        (BY_TOPIC, "orders-key", False),
        (BY_TOPIC, "orders", False),
        (BY_TOPIC, "more-orders-value", False),
        (CountedSubjects(reads_topic=reads("orders"), part="key"), "orders-key", True),
        (CountedSubjects(reads_topic=reads("orders"), part="key"), "orders-value", False),
        (CountedSubjects(strategy="record_name"), "shop.Sale", True),
        (CountedSubjects(strategy="record_name"), "shop.Sale2", False),
        (CountedSubjects((), "topic_record_name", reads("orders")), "orders-shop.Sale", True),
        (CountedSubjects((), "topic_record_name", reads("orders")), "bills-shop.Sale", False),
        (CountedSubjects((), "topic_record_name", reads("orders")), "orders-value", False),
    ],
)
def test_which_subjects_count(counted: CountedSubjects, subject: str, counts: bool) -> None:
    assert counted.is_counted(subject, "shop.Sale") == counts


def test_a_record_without_a_name_has_no_subject_of_that_name() -> None:
    assert not CountedSubjects(strategy="record_name").is_counted("None", None)
    assert not CountedSubjects((), "topic_record_name", reads("orders")).is_counted("orders-", "")


@pytest.mark.parametrize(
    "options", [{}, {"wrapper": {"payload": "data", "schema_id": "number"}}], ids=["plain", "inside"]
)
def test_subjects_of_two_contexts_are_refused(options: dict[str, Any]) -> None:
    """A record has an id and no context: one of the two would be read with the other one's schemas."""
    subjects = [":.games:bets-value", "bets-value"]
    where = {"subjects": subjects}
    if options:
        where = {"wrapper": {**options["wrapper"], "subjects": subjects}}

    with pytest.raises(ValidationError, match=r"one context of the registry, and these are of :\.games: and none"):
        Protobuf.model_validate({"registry": "http://registry.test", **where})
