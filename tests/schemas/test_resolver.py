"""Ids resolved once with all that they refer to, and remembered across restarts."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryAway, RegistryOptions, RegistryRefuses
from router_schemas.resolver import (
    MAX_IMPORT_DEPTH,
    MAX_IMPORTS,
    NEAR_ID_DISTANCE,
    POLL_PAUSE_SECONDS,
    REQUESTS_AT_ONCE,
    RETRY_PAUSES_SECONDS,
    UNKNOWN_HOLD_SECONDS,
    SchemaResolver,
    Unknown,
)
from tests.schemas.faulty import Book, FaultyRegistry
from tests.schemas.folder_memory import FolderMemory

if TYPE_CHECKING:
    from router import Memory

QUICK = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@dataclass
class Time:
    """Let time pass without waiting; `awake` runs in every pause."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list)
    awake: Callable[[], object] = lambda: None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        self.awake()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def memory(tmp_path: Path) -> FolderMemory:
    return FolderMemory(tmp_path / "schemas")


Start = Callable[..., SchemaResolver]


@pytest.fixture
def start(faulty: FaultyRegistry, time: Time, memory: FolderMemory) -> Iterator[Start]:
    """Start as a new process would, with the memory that the last one left."""
    made: list[RegistryClient] = []

    def start(memory: Memory = memory, url: str = faulty.url, subject: str = "") -> SchemaResolver:
        options = RegistryOptions(url=(url,), attempts=2, timeout=30)
        client = RegistryClient(options, subject=subject, sleep=lambda seconds: None)
        made.append(client)
        return SchemaResolver(client, memory, clock=time.clock, sleep=time.sleep)

    yield start
    for client in made:
        client.close()


def closed(schemas: SchemaResolver, number: int) -> ResolvedSchema:
    """Return a schema that is known."""
    found = schemas.resolve_ids([number])[number]
    assert isinstance(found, ResolvedSchema), found
    return found


def unknown(schemas: SchemaResolver, number: int) -> Unknown:
    """Return an id that is of no use."""
    found = schemas.resolve_ids([number])[number]
    assert isinstance(found, Unknown), found
    return found


def test_a_schema_comes_with_all_that_it_refers_to_dependencies_first(faulty: FaultyRegistry, start: Start) -> None:
    faulty.book.add("money", "the money")
    faulty.book.add("player", "the player", references=[("money.proto", "money", 1)])
    refers = [("player.proto", "player", 1), ("money.proto", "money", 1)]
    number = faulty.book.add("event", "the event", references=refers)

    found = closed(start(), number)

    assert found.schema.text == "the event"
    assert found.schema.subjects == (("event", 1),)
    assert list(found.imports.items()) == [("money.proto", "the money"), ("player.proto", "the player")]


def test_an_id_is_asked_for_once(faulty: FaultyRegistry, start: Start) -> None:
    """Every batch asks for its ids; a registry must not see every batch."""
    number = faulty.book.add("event", "the event")
    schemas = start()

    assert closed(schemas, number) is closed(schemas, number)
    assert faulty.paths.count(f"/schemas/ids/{number}") == 1


def test_threads_that_ask_at_once_share_one_answer(faulty: FaultyRegistry, start: Start) -> None:
    numbers = [faulty.book.add("event", f"event {index}") for index in range(5)]
    schemas, found = start(), []
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait()
        found.append(schemas.resolve_ids(numbers))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert all(one == found[0] for one in found)
    assert sorted(faulty.paths) == sorted(set(faulty.paths))


def test_a_restart_with_the_registry_down_knows_every_id_it_has_seen(faulty: FaultyRegistry, start: Start) -> None:
    """Good rows must not wait for a registry that has nothing new to say."""
    faulty.book.add("player", "the player", references=[("../../x", "x", 1)])
    faulty.book.subjects["x"] = {1: faulty.book.add("y", "ümläut \x00 \U0001f0a1")}
    number = faulty.book.add("event", "the event", references=[("player.proto", "player", 1)])
    first = start()
    before, ids = closed(first, number), first.poll_subjects(["event", "player"])
    faulty.stop()

    again = start()

    assert again.resolve_ids([number]) == {number: before}
    assert list(closed(again, number).imports) == ["../../x", "player.proto"]
    assert again.poll_subjects(["event", "player"]) == ids


def test_an_id_never_seen_waits_for_a_registry_that_is_away(faulty: FaultyRegistry, start: Start) -> None:
    """Nobody knows whether such rows are good: they are no dead letters."""
    known, new = faulty.book.add("event", "the event"), faulty.book.add("event", "the next event")
    schemas = start()
    closed(schemas, known)
    faulty.fails("503")

    with pytest.raises(RegistryAway):
        schemas.resolve_ids([known, new])
    assert closed(schemas, known).schema.text == "the event"
    faulty.fails("")
    assert closed(schemas, new).schema.text == "the next event"


def test_a_registry_that_refuses_stops_the_stream(faulty: FaultyRegistry, start: Start) -> None:
    faulty.fails("401")

    with pytest.raises(RegistryRefuses):
        start().resolve_ids([1])
    with pytest.raises(RegistryRefuses):
        start().poll_subjects(["event"])


GARBAGE = 2**31 - 1


def test_an_id_far_from_all_known_ones_is_asked_for_once_a_minute(
    faulty: FaultyRegistry, start: Start, time: Time
) -> None:
    """Garbage looks like ids: no batch may wait for it, and no registry hear of it from every batch."""
    number = faulty.book.add("event", "the event")
    schemas = start()
    closed(schemas, number)
    faulty.seen.clear()

    for _ in range(3):
        found = unknown(schemas, GARBAGE)
        assert found.is_absent
        time.now += UNKNOWN_HOLD_SECONDS / 3 - 0.1
    assert faulty.paths == [f"/schemas/ids/{GARBAGE}"]
    assert time.pauses == []

    time.now += 1
    unknown(schemas, GARBAGE)
    assert len(faulty.seen) == 2


@pytest.mark.parametrize(("distance", "again"), [(1, True), (NEAR_ID_DISTANCE, True), (NEAR_ID_DISTANCE + 1, False)])
def test_an_id_near_the_largest_known_one_is_asked_for_again_within_a_second(
    faulty: FaultyRegistry, start: Start, time: Time, distance: int, again: bool
) -> None:
    """A producer may be ahead of the registry's replica: its good records must not become dead letters."""
    number = faulty.book.add("event", "the event")
    schemas = start()
    closed(schemas, number)
    late = number + distance

    def register() -> None:
        faulty.book.schemas[late] = {"schema": "the next event"}

    time.awake = register
    found = schemas.resolve_ids([late])[late]

    assert isinstance(found, ResolvedSchema) == again
    assert sum(time.pauses) <= 1


def test_an_id_near_the_largest_known_one_is_found_by_a_later_batch(
    faulty: FaultyRegistry, start: Start, time: Time
) -> None:
    """A replica may be behind for longer than a second; only the first batch waits for it."""
    number = faulty.book.add("event", "the event")
    schemas = start()
    closed(schemas, number)
    unknown(schemas, number + 1)
    assert sum(time.pauses) == pytest.approx(1)

    time.now += 2
    unknown(schemas, number + 1)
    faulty.book.add("event", "the next event")
    time.now += 2
    assert closed(schemas, number + 1).schema.text == "the next event"
    assert sum(time.pauses) == pytest.approx(1)


REFUSALS = [400, 401, 403, 404, 405, 410, 414, 422]


@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("route", ["", "/versions"], ids=["schema", "versions"])
def test_an_id_that_is_refused_is_unknown_while_others_are_answered(
    faulty: FaultyRegistry, start: Start, time: Time, status: int, route: str
) -> None:
    """Without it one record whose id is refused ends the stream, at every start."""
    known, refused, new = (faulty.book.add("event", f"event {index}") for index in range(3))
    first = start()
    closed(first, known)
    faulty.refused[f"/schemas/ids/{refused}{route}"] = status
    if route and status in {404, 405}:
        assert closed(start(), refused).schema.subjects == ()
        return

    for schemas in (first, start()):  # the second one has the known id beside the checkpoint only
        closed(schemas, known)
        found = unknown(schemas, refused)
        assert not found.is_absent
        assert f"it answers {status}" in found.reason
    asked = len(faulty.seen)
    unknown(first, refused)
    assert len(faulty.seen) == asked
    assert closed(start(), new).schema.text == "event 2"  # without a known id, the one that is found counts
    together = start().resolve_ids([refused, new])
    assert isinstance(together[refused], Unknown)
    assert isinstance(together[new], ResolvedSchema)

    faulty.refused.clear()
    time.now += UNKNOWN_HOLD_SECONDS
    assert closed(first, refused).schema.text == "event 1"


def test_a_guid_that_is_refused_is_unknown_while_ids_are_answered(faulty: FaultyRegistry, start: Start) -> None:
    known = faulty.book.add("event", "the event")
    schemas = start()
    closed(schemas, known)
    guid = UUID(int=7)
    faulty.refused[f"/schemas/guids/{guid}"] = 422

    found = schemas.resolve_ids([guid])[guid]

    assert isinstance(found, Unknown)
    assert "it answers 422" in found.reason


@pytest.mark.parametrize("status", REFUSALS)
def test_a_registry_that_also_refuses_a_known_id_is_waited_for(
    faulty: FaultyRegistry, start: Start, status: int
) -> None:
    """A proxy in front, or a right that is gone: good records must not become dead letters, nor the stream end."""
    known, new = faulty.book.add("event", "the event"), faulty.book.add("event", "the next event")
    schemas = start()
    closed(schemas, known)
    faulty.fails(str(status))

    with pytest.raises(RegistryAway, match=f"it answers {status}"):
        schemas.resolve_ids([new, GARBAGE])
    assert closed(schemas, known).schema.text == "the event"
    faulty.fails("")
    assert closed(schemas, new).schema.text == "the next event"


@pytest.mark.parametrize("status", REFUSALS)
def test_a_refused_poll_holds_nothing_up_once_a_schema_is_known(
    faulty: FaultyRegistry, start: Start, time: Time, status: int
) -> None:
    """Known schemas need no registry, whatever it answers, and one refused subject hides no other."""
    number = faulty.book.add("event", "the event")
    start().poll_subjects(["event"])
    closed(start(), number)
    faulty.refused["/subjects/event/"] = status

    schemas = start()
    assert schemas.poll_subjects(["event"]) == {number}
    faulty.seen.clear()
    other = faulty.book.add("other", "the other")
    assert schemas.poll_subjects(["event", "other"]) == {number, other}
    assert not [path for path in faulty.paths if path.startswith("/subjects/event/")]

    faulty.refused.clear()
    second = faulty.book.add("event", "the next event")
    time.now += POLL_PAUSE_SECONDS
    assert schemas.poll_subjects(["event"]) == {number, second}


def test_a_reason_says_first_what_is_missing(faulty: FaultyRegistry, start: Start) -> None:
    """Dead letters are read in columns, and those that begin with the same long URL cannot be told apart."""
    reason = unknown(start(), 2**31 - 1).reason

    assert reason.startswith("the registry does not give schema 2147483647: it answers 404")
    assert reason.endswith(f"({faulty.url}/schemas/ids/2147483647)")


def test_a_guid_is_resolved_once_and_remembered(faulty: FaultyRegistry, start: Start) -> None:
    """A restart with the registry down reads what was read before, in whichever way schemas are named."""
    faulty.book.add("event", "the event")
    number = faulty.book.add("event", "the next event")
    guid = faulty.book.guid(number)
    schemas = start()
    before = schemas.resolve_ids([guid, number])

    assert before[guid] == before[number] == closed(schemas, number)
    schemas.resolve_ids([guid])
    assert faulty.paths.count(f"/schemas/guids/{guid}/ids") == faulty.paths.count(f"/schemas/ids/{number}") == 1
    faulty.stop()
    assert start().resolve_ids([guid, number]) == before


def test_a_guid_that_is_not_there_is_unknown_for_a_while(faulty: FaultyRegistry, start: Start, time: Time) -> None:
    guid, schemas = UUID(int=7), start()

    found = schemas.resolve_ids([guid])[guid]

    assert isinstance(found, Unknown)
    assert found.reason.startswith(f"the registry does not give schema {guid}: there is none in the context .")
    assert time.pauses == list(RETRY_PAUSES_SECONDS)
    asked = len(faulty.seen)
    schemas.resolve_ids([guid])
    assert len(faulty.seen) == asked
    assert not found.is_absent


def test_a_guid_never_seen_waits_for_a_registry_that_is_away(faulty: FaultyRegistry, start: Start) -> None:
    guid = faulty.book.guid(faulty.book.add("event", "the event"))
    schemas = start()
    faulty.fails("503")

    with pytest.raises(RegistryAway):
        schemas.resolve_ids([guid])
    faulty.fails("")
    assert isinstance(schemas.resolve_ids([guid])[guid], ResolvedSchema)


def test_a_poll_that_is_to_wait_says_that_the_registry_is_away(faulty: FaultyRegistry, start: Start) -> None:
    """What can be found among the versions of subjects only is unknown when these were looked at, not before."""
    schemas = start()
    faulty.fails("503")

    assert schemas.poll_subjects(["event"]) == frozenset()
    with pytest.raises(RegistryAway):
        schemas.poll_subjects(["event"], wait=True)


def test_a_schema_registered_just_now_is_found(faulty: FaultyRegistry, start: Start, time: Time) -> None:
    time.awake = lambda: faulty.book.add("event", "the event") if len(time.pauses) == 2 else None

    assert closed(start(), 1).schema.text == "the event"


def test_many_unknown_ids_share_one_wait(start: Start, time: Time) -> None:
    """Garbage can look like frames with as many ids as there are rows."""
    found = start().resolve_ids(range(1, 101))

    assert all(isinstance(one, Unknown) for one in found.values())
    assert time.pauses == list(RETRY_PAUSES_SECONDS)


def test_many_ids_are_asked_for_at_once_but_not_all(faulty: FaultyRegistry, start: Start) -> None:
    """A start with hundreds of schemas takes seconds and not minutes, and is no attack on the registry."""
    numbers = [faulty.book.add("event", f"event {index}") for index in range(4 * REQUESTS_AT_ONCE)]
    faulty.gathering = threading.Barrier(REQUESTS_AT_ONCE)  # asked one by one, nobody would be answered

    found = start().resolve_ids(numbers)

    assert [one.schema.text for one in found.values() if isinstance(one, ResolvedSchema)] == [
        f"event {n}" for n in range(4 * REQUESTS_AT_ONCE)
    ]
    assert max(faulty.at_once) == REQUESTS_AT_ONCE
    faulty.gathering = None
    assert start().poll_subjects(["event"]) == set(numbers)
    assert max(faulty.at_once) <= REQUESTS_AT_ONCE


def test_a_shared_referent_is_fetched_once(faulty: FaultyRegistry, start: Start) -> None:
    """Every version of an event refers to the same definitions."""
    faulty.book.add("player", "the player")
    refers = [("player.proto", "player", 1)]
    numbers = [faulty.book.add("event", f"event {index}", references=refers) for index in range(20)]

    found = start().resolve_ids(numbers)

    assert all(
        isinstance(one, ResolvedSchema) and one.imports == {"player.proto": "the player"} for one in found.values()
    )
    assert sorted(faulty.paths) == sorted(set(faulty.paths))


def test_a_registry_that_goes_away_is_not_asked_for_the_rest(faulty: FaultyRegistry, start: Start) -> None:
    """A batch of garbage with a thousand ids would hold the stream for a thousand time-outs."""
    faulty.fails("503")

    with pytest.raises(RegistryAway):
        start().resolve_ids(range(1, 1001))
    assert len(faulty.seen) <= 2 * REQUESTS_AT_ONCE  # the attempts of those under way


@pytest.mark.parametrize("number", [-1, -(2**31), 2**31, 2**32 - 1])
def test_an_id_that_no_registry_can_have_is_not_asked_for(faulty: FaultyRegistry, start: Start, number: int) -> None:
    assert str(number) in unknown(start(), number).reason
    assert faulty.seen == []


def test_the_answer_is_in_the_order_of_the_question(faulty: FaultyRegistry, start: Start) -> None:
    for index in range(3):
        faulty.book.add("event", f"event {index}")

    assert list(start().resolve_ids([3, 9, 1, 3, 2])) == [3, 9, 1, 2]


def test_a_circle_of_references_is_refused(faulty: FaultyRegistry, start: Start) -> None:
    faulty.book.add("a", "a", references=[("b.proto", "b", 1)])
    faulty.book.add("b", "b", references=[("a.proto", "a", 1)])
    number = faulty.book.add("event", "event", references=[("a.proto", "a", 1)])

    assert "circle: " in unknown(start(), number).reason


def test_a_schema_that_refers_to_itself_is_refused(faulty: FaultyRegistry, start: Start) -> None:
    number = faulty.book.add("a", "a", references=[("a.proto", "a", 1)])

    assert "circle: " in unknown(start(), number).reason


@pytest.mark.parametrize("depth", [MAX_IMPORT_DEPTH, MAX_IMPORT_DEPTH + 1])
def test_references_may_be_deep_but_not_bottomless(faulty: FaultyRegistry, start: Start, depth: int) -> None:
    number = faulty.book.add("0", "bottom")
    for level in range(1, depth + 1):
        number = faulty.book.add(f"{level}", f"level {level}", references=[(f"{level - 1}", f"{level - 1}", 1)])

    if depth <= MAX_IMPORT_DEPTH:
        assert list(closed(start(), number).imports) == [str(level) for level in range(depth)]
    else:
        assert f"more than {MAX_IMPORT_DEPTH} deep" in unknown(start(), number).reason


def test_references_may_be_many_but_not_without_end(faulty: FaultyRegistry, start: Start) -> None:
    refers = [(f"{index}", "event", index) for index in range(MAX_IMPORTS + 1)]
    number = faulty.book.add("event", "event", references=refers)

    assert f"more than {MAX_IMPORTS}" in unknown(start(), number).reason


def test_a_referent_that_is_gone_makes_the_id_unknown(faulty: FaultyRegistry, start: Start) -> None:
    number = faulty.book.add("event", "event", references=[("player.proto", "player", 1)])

    assert "/subjects/player/versions/1" in unknown(start(), number).reason


def test_a_referent_of_a_deleted_subject_is_found(faulty: FaultyRegistry, start: Start) -> None:
    faulty.book.add("player", "the player")
    faulty.book.deleted.add("player")
    number = faulty.book.add("event", "event", references=[("player.proto", "player", 1)])

    assert closed(start(), number).imports == {"player.proto": "the player"}


@pytest.mark.parametrize("subject", ["../../x", "..", "a/b", ""])
def test_a_name_that_looks_like_a_path_is_only_a_name(
    faulty: FaultyRegistry, start: Start, memory: FolderMemory, tmp_path: Path, subject: str
) -> None:
    faulty.book.add("../../x", "x")
    faulty.book.add("a/b", "x")
    number = faulty.book.add("event", "event", references=[("../../x", subject, 1)])
    schemas = start()

    found = schemas.resolve_ids([number])[number]

    if subject in {"..", ""}:  # no URL can hold them
        assert isinstance(found, Unknown)
    else:
        assert isinstance(found, ResolvedSchema)
        assert found.imports == {"../../x": "x"}
        schemas.poll_subjects([subject])
        assert all(re.fullmatch(r"(id|subject|guid)-[0-9a-f]{32}\.json", one.name) for one in memory.path.iterdir())
    assert set(tmp_path.iterdir()) <= {memory.path}


def test_two_versions_of_a_shared_schema_meet_in_the_newer_one(faulty: FaultyRegistry, start: Start) -> None:
    """Shared definitions grow while those who refer to them stay: refused, the commonest layout would not decode."""
    faulty.book.add("money", "old money")
    faulty.book.add("coin", "coin")
    faulty.book.add("money", "new money", references=[("coin.proto", "coin", 1)])
    faulty.book.add("player", "player", references=[("money.proto", "money", 1)])
    refers = [("money.proto", "money", 2), ("player.proto", "player", 1)]
    first = faulty.book.add("event", "event", references=refers)
    second = faulty.book.add("event", "another event", references=refers[::-1])
    schemas = start()

    for number in (first, second):
        imports = closed(schemas, number).imports
        assert imports["money.proto"] == "new money"
        assert list(imports).index("coin.proto") < list(imports).index("money.proto")
        assert list(imports).index("money.proto") < list(imports).index("player.proto")


def test_one_name_for_two_schemas_is_refused(faulty: FaultyRegistry, start: Start) -> None:
    faulty.book.add("a", "a", references=[("types.proto", "mine", 1)])
    faulty.book.add("mine", "my types")
    faulty.book.add("yours", "your types")
    number = faulty.book.add("event", "event", references=[("a.proto", "a", 1), ("types.proto", "yours", 1)])

    assert "'types.proto'" in unknown(start(), number).reason


@settings(suppress_health_check=QUICK, max_examples=25)
@given(st.lists(st.sets(st.integers(0, 11), max_size=4), min_size=1, max_size=12))
def test_whatever_refers_to_what_dependencies_come_first(
    faulty: FaultyRegistry, start: Start, drawn: list[set[int]]
) -> None:
    """A compiler reads the files in their order."""
    base = len(faulty.book.schemas)
    needs = [{one for one in those if one < index} for index, those in enumerate(drawn)]
    for index, those in enumerate(needs):
        references = [(f"{one}.proto", f"{base}-{one}", 1) for one in sorted(those)]
        number = faulty.book.add(f"{base}-{index}", f"{base}-{index}", references=references)

    names = [int(name.removesuffix(".proto")) for name in closed(start(), number).imports]

    reached, open_ = set(), set(needs[-1])
    while open_:
        one = open_.pop()
        reached.add(one)
        open_ |= needs[one] - reached
    assert set(names) == reached
    assert all(names.index(need) < names.index(one) for one in names for need in needs[one])


@pytest.mark.parametrize("damage", [b"", b"\xff\x00", b"{}", b'{"schema": {"id": 99, "kind": "AVRO", "text": ""}}'])
def test_a_damaged_file_is_fetched_again(
    faulty: FaultyRegistry, start: Start, memory: FolderMemory, damage: bytes
) -> None:
    number = faulty.book.add("event", "the event")
    before = closed(start(), number)
    (file,) = memory.path.iterdir()
    file.write_bytes(damage)

    assert closed(start(), number) == before
    assert closed(start(), number) == before
    assert len([path for path in faulty.paths if path == f"/schemas/ids/{number}"]) == 2


def test_two_registries_share_a_memory_without_mixing_their_ids(faulty: FaultyRegistry, start: Start) -> None:
    with FaultyRegistry() as other:
        assert faulty.book.add("event", "the event") == other.book.add("event", "something else")

        assert closed(start(), 1).schema.text == "the event"
        assert closed(start(url=other.url), 1).schema.text == "something else"
        assert closed(start(), 1).schema.text == "the event"


def in_games(faulty: FaultyRegistry) -> Book:
    """Return the book of the context .games, whose ids mean other schemas than those of the default context."""
    return faulty.contexts.setdefault(".games", Book())


def test_an_id_has_the_schema_of_its_subjects_context(faulty: FaultyRegistry, start: Start) -> None:
    """Without it records are decoded with another context's schema: wrong rows, and nobody notices."""
    number = faulty.book.add("event", "of the default context")
    assert in_games(faulty).add(":.games:event", "of games") == number

    for subject, text in (("", "of the default context"), (":.games:event", "of games"), ("event", "of the default")):
        schemas = start(subject=subject)
        assert closed(schemas, number).schema.text.startswith(text)
    of_games = start(subject=":.games:event")
    assert of_games.poll_subjects([":.games:event"]) == {number}
    assert closed(of_games, number).schema.subjects == ((":.games:event", 1),)
    faulty.stop()
    assert closed(start(subject=":.games:other"), number).schema.text == "of games"
    assert closed(start(), number).schema.text == "of the default context"


def test_a_guid_has_the_id_of_its_subjects_context(faulty: FaultyRegistry, start: Start) -> None:
    faulty.book.add("event", "first")
    faulty.book.add("event", "of games")
    number = in_games(faulty).add(":.games:event", "of games")
    guid = in_games(faulty).guid(number)

    found = start(subject=":.games:event").resolve_ids([guid])[guid]

    assert isinstance(found, ResolvedSchema)
    assert (found.schema.id, found.schema.text) == (number, "of games")
    assert closed(start(), 2).schema.text == "of games"
    other = start().resolve_ids([guid])[guid]
    assert isinstance(other, ResolvedSchema)
    assert other.schema.id == 2


@pytest.mark.parametrize("subject", ["money", ":.games:money"])
def test_a_reference_is_of_the_context_of_what_refers_to_it(faulty: FaultyRegistry, start: Start, subject: str) -> None:
    """References are kept as they were registered: mostly without the context."""
    faulty.book.add("money", "money of the default context")
    in_games(faulty).add(":.games:money", "money of games")
    number = in_games(faulty).add(":.games:event", "event", references=[("money.proto", subject, 1)])

    assert closed(start(subject=":.games:event"), number).imports == {"money.proto": "money of games"}


def test_a_schema_of_10_megabytes_is_remembered(faulty: FaultyRegistry, start: Start) -> None:
    number = faulty.book.add("event", "é" * 10_000_000)
    before = closed(start(), number)
    faulty.stop()

    assert closed(start(), number) == before


def test_a_new_version_is_seen_by_the_next_poll_and_old_ones_are_not_fetched(
    faulty: FaultyRegistry, start: Start
) -> None:
    """Evolution needs no restart, and a subject with hundreds of versions costs one request a batch."""
    schemas = start()
    assert schemas.poll_subjects(["event"]) == frozenset()
    first, second = faulty.book.add("event", "event 1"), faulty.book.add("event", "event 2")
    assert schemas.poll_subjects(["event"]) == {first, second}
    third = faulty.book.add("event", "event 3")
    faulty.seen.clear()

    assert schemas.poll_subjects(["event", "event"]) == {first, second, third}
    assert faulty.paths == ["/subjects/event/versions", "/subjects/event/versions/3?deleted=true"]
    faulty.seen.clear()
    assert start().poll_subjects(["event"]) == {first, second, third}
    assert faulty.paths == ["/subjects/event/versions"]


def test_a_poll_of_a_registry_that_is_away_holds_nothing_up(faulty: FaultyRegistry, start: Start, time: Time) -> None:
    """Known ids go on; the registry's time-outs are not paid in every batch."""
    number = faulty.book.add("event", "the event")
    schemas = start()
    schemas.poll_subjects(["event"])
    faulty.fails("503")
    faulty.seen.clear()

    assert schemas.poll_subjects(["event", "other"]) == schemas.poll_subjects(["event"]) == {number}
    assert len(faulty.seen) == 2  # the two attempts of one request
    faulty.fails("")
    second = faulty.book.add("event", "the next event")
    time.now += POLL_PAUSE_SECONDS
    assert schemas.poll_subjects(["event"]) == {number, second}


def test_a_deleted_subject_has_no_versions_but_its_ids_still_decode(faulty: FaultyRegistry, start: Start) -> None:
    number = faulty.book.add("event", "the event")
    schemas = start()
    schemas.poll_subjects(["event"])
    faulty.book.deleted.add("event")

    assert schemas.poll_subjects(["event"]) == frozenset()
    assert closed(schemas, number).schema.subjects == (("event", 1),)


def test_a_poll_makes_an_unknown_id_known(faulty: FaultyRegistry, start: Start) -> None:
    schemas = start()
    unknown(schemas, 1)
    faulty.book.add("event", "the event")

    assert schemas.poll_subjects(["event"]) == {1}
    assert closed(schemas, 1).schema.text == "the event"


def test_a_schema_of_no_use_is_not_fetched_for_every_batch(faulty: FaultyRegistry, start: Start, time: Time) -> None:
    number = faulty.book.add("event", "event", references=[("gone.proto", "gone", 1)])
    schemas = start()
    schemas.poll_subjects(["event"])
    unknown(schemas, number)
    faulty.seen.clear()

    schemas.poll_subjects(["event"])
    unknown(schemas, number)

    assert faulty.paths == ["/subjects/event/versions"]
    assert time.pauses == []


def test_an_id_that_a_second_subject_shares_later_has_both(faulty: FaultyRegistry, start: Start) -> None:
    """The same text has the same id in every subject; a topic that joins later must find its version."""
    number = faulty.book.add("cards-value", "the event")
    schemas = start()
    closed(schemas, number)
    faulty.book.add("dice-value", "the event")
    both = (("cards-value", 1), ("dice-value", 1))

    schemas.poll_subjects(["dice-value"])

    assert closed(schemas, number).schema.subjects == both
    faulty.stop()
    assert closed(start(), number).schema.subjects == both


def test_what_is_known_cannot_be_changed(faulty: FaultyRegistry, start: Start) -> None:
    found = closed(start(), faulty.book.add("event", "the event"))

    with pytest.raises(AttributeError):
        found.schema = RegisteredSchema(1, "AVRO", "other")  # type: ignore[misc]


def test_a_crash_while_writing_leaves_no_half_file(memory: FolderMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.write("id-1.json", b"old")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("power cut")))

    with pytest.raises(OSError, match="power cut"):
        memory.write("id-1.json", b"new and longer")

    assert memory.read("id-1.json") == b"old"
    assert memory.read("id-2.json") is None
