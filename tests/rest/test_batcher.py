"""How rows are cut into calls: the same whatever comes, and never in a wrong order."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_rest.delivery.batcher import MAX_OPEN_CALLS, Batcher, Call, CallQueue, CallSize

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(0, 2),
        st.integers(0, 99),
        st.binary(max_size=20),
        st.sampled_from(["", "x", "y"]),
        st.none() | st.sampled_from([b"k", b"l", b"m"]),
    ),
    max_size=60,
    unique_by=lambda row: row[:3],
).map(lambda rows: sorted(rows, key=lambda row: row[:3]))
CUTS = st.builds(CallSize, rows=st.integers(1, 7), bytes=st.integers(1, 60), orders=st.integers(0, 3))
GROUPED = st.builds(CallSize, st.integers(1, 7), st.integers(1, 60), st.integers(1, 3), groups=st.integers(1, 4))


def calls_of(rows: list[Any], cut: CallSize) -> list[Call]:
    batcher = Batcher(cut)
    made = [call for *place, row, url, key in rows for call in batcher.add_row(tuple(place), row, url, key)]
    return [*made, *batcher.flush_calls()]


@given(ROWS, CUTS | GROUPED)
def test_every_row_is_in_one_call_that_is_within_its_bounds(rows: list[Any], cut: CallSize) -> None:
    """Without it rows are lost or doubled, or an API refuses what it said it would not take."""
    made = calls_of(rows, cut)

    sent = sorted(
        (call.topic, call.partition, *both) for call in made for both in zip(call.offsets, call.rows, strict=True)
    )
    assert sent == sorted((topic, partition, offset, row) for topic, partition, offset, row, *_ in rows)
    urls = {(topic, partition, offset): url for topic, partition, offset, _, url, _ in rows}
    for call in made:
        assert call.offsets == sorted(call.offsets)
        assert len(call) <= cut.rows
        assert len(call) == 1 or sum(map(len, call.rows)) + len(call) <= cut.bytes
        assert {urls[call.topic or "", call.partition, offset] for offset in call.offsets} == {call.url}


@given(ROWS, CUTS | GROUPED)
def test_calls_of_a_partition_do_not_depend_on_others(rows: list[Any], cut: CallSize) -> None:
    """Without it a replay in other tasks makes other calls, and the API takes their rows twice."""
    alone = [row for row in rows if row[:2] == ("a", 1)]

    made = [call for call in calls_of(rows, cut) if (call.topic, call.partition) == ("a", 1)]

    assert calls_of(alone, cut) == made


@given(ROWS, CUTS | GROUPED)
def test_rows_with_a_key_keep_their_order_within_a_lane(rows: list[Any], cut: CallSize) -> None:
    """Without it an older state of a key arrives after a newer one."""
    made = list(enumerate(calls_of(rows, cut)))
    sent = {(call.topic, call.partition, at): (call.order, turn) for turn, call in made for at in call.offsets}

    for key in (None, b"k", b"l", b"m"):
        places = [sent[row[:3]] for row in rows if row[-1] == key]
        orders = {order for order, _ in places}
        if key is None or not cut.orders:
            assert orders <= {None}
        else:
            assert places == sorted(places)
            assert len(orders) <= 1
            assert orders <= set(range(cut.orders))


@given(ROWS, GROUPED)
def test_a_call_has_rows_of_one_key(rows: list[Any], cut: CallSize) -> None:
    """Without it the body for one account holds what belongs to another."""
    keys = {row[:3]: row[-1] for row in rows}

    for call in calls_of(rows, cut):
        assert len({keys[call.topic or "", call.partition, at] for at in call.offsets}) == 1


def test_keys_fill_calls_of_their_own_whatever_order_they_share() -> None:
    """Without it two keys with one order close each other's calls, and each call has one row."""
    rows = [("t", 0, at, b"x", "", b"key %d" % (at % 50)) for at in range(1000)]

    made = calls_of(rows, CallSize(rows=20, orders=2, groups=100))

    assert Counter(map(len, made)) == {20: 50}


def test_a_hot_key_and_thousands_of_others_are_held_within_bounds() -> None:
    """Without it each key that is seen once stays in memory until the batch ends, or a hot key's calls are not full."""
    batcher = Batcher(CallSize(rows=100, orders=256, open=1 << 20, groups=64))
    made: list[Call] = []

    for at in range(40_000):
        key = b"hot" if at % 2 else b"key %d" % at
        made += batcher.add_row(("t", 0, at), b"hot" if at % 2 else b"x", "", key)
        assert len(batcher._open) <= 64
    made += batcher.flush_calls()

    hot = [call for call in made if call.rows[0] == b"hot"]
    assert sum(map(len, made)) == 40_000
    assert [at for call in hot for at in call.offsets] == list(range(1, 40_000, 2))
    assert {len(call) for call in made if call.rows[0] == b"x"} == {1}
    assert {len(call) for call in hot} == {100}


def test_a_row_beyond_the_bytes_goes_alone() -> None:
    """Without it one large row takes its neighbours with it, or is never sent."""
    rows = [("t", 0, at, b"x" * size, "", None) for at, size in enumerate([3, 50, 3, 3, 4])]

    assert [call.offsets for call in calls_of(rows, CallSize(rows=10, bytes=10))] == [[0], [1], [2, 3], [4]]


def test_rows_for_different_addresses_fill_calls_of_their_own() -> None:
    """Without it a URL that changes from row to row makes every call one of one row."""
    rows = [("t", 0, at, b"x", f"{at % 2}", None) for at in range(8)]

    assert [call.offsets for call in calls_of(rows, CallSize(rows=3))] == [[0, 2, 4], [1, 3, 5], [6], [7]]


def test_calls_that_wait_for_rows_are_bounded() -> None:
    """Without it a URL of its own for every row keeps all rows of a task in memory."""
    batcher = Batcher(CallSize(rows=10))

    made = [call for at in range(1000) for call in batcher.add_row(("t", 0, at), b"x", str(at))]

    assert len(made) == 1000 - MAX_OPEN_CALLS
    assert [call.offsets for call in made[:2]] == [[0], [1]]


def test_a_call_is_named_by_its_place_and_its_body() -> None:
    """Without it an API cannot tell an attempt from a new call, or takes another body for the same call."""
    call = Call("games", 3, [17, 19], [b"{}", b"{}"])
    body = b"[{},{}]"

    assert call.call_id(body) == f"games/3/17-19/{hashlib.sha256(body).hexdigest()[:16]}"
    assert (
        len(
            {one.call_id(body) for one in (call, *call.split_halves())}
            | {call.call_id(b"other"), call.call_id(body, b"b")}
        )
        == 5
    )


def test_a_topic_with_any_characters_makes_a_name_for_a_header() -> None:
    """Without it the name of a folder splits a header in two."""
    name = Call('a"b\r\nc/d é\\', 0, [1], [b""]).call_id(b"")

    assert name.startswith("a%22b%0D%0Ac%2Fd%20%C3%A9%5C/0/1-1/")


def test_halves_keep_what_is_known_of_their_rows() -> None:
    """Without it rows of a call that is taken apart lose what happened to them before."""
    call = Call("t", 0, [1, 5, 7], [b"a", b"b", b"c"], "x", 2, 4, frozenset({1, 7}))

    first, second = call.split_halves()

    assert first == Call("t", 0, [1], [b"a"], "x", 2, 4, frozenset({1}))
    assert second == Call("t", 0, [5, 7], [b"b", b"c"], "x", 2, 4, frozenset({7}))


@given(ROWS, CUTS.filter(lambda cut: cut.rows > 1), CUTS.filter(lambda cut: cut.rows > 1), st.randoms())
def test_rows_of_former_calls_are_the_same_calls_again(
    rows: list[Any], cut: CallSize, other: CallSize, random: Any
) -> None:
    """Without it a call that may have arrived takes effect again under another key when its rows are sent again."""
    former = [call for call in calls_of(rows, cut) if random.random() < 0.7]
    texts = {(call.topic, call.partition, offset): call for call in former for offset in call.offsets}
    again = [row for row in rows if row[:3] in texts]
    named = [(texts[row[:3]].offsets[0], str(texts[row[:3]].offsets), *row) for row in again]
    batcher, made = Batcher(CallSize(other.rows, other.bytes, cut.orders)), []

    for _, name, *place, row, url, key in sorted(named, key=lambda one: (one[2], one[3], one[0], one[4])):
        made += batcher.add_row(tuple(place), row, url, key, name)
    made += batcher.flush_calls()

    assert sorted(call.call_id(b"".join(call.rows)) for call in made) == sorted(
        call.call_id(b"".join(call.rows)) for call in former
    )


@given(ROWS, st.integers(1, 40))
def test_calls_that_are_filled_at_once_are_bounded_and_cut_alike(rows: list[Any], most: int) -> None:
    """Without it rows for many URLs fill the memory of a task; or a call that comes again has a new key."""
    cut = CallSize(rows=5, bytes=60, open=most)
    batcher, made = Batcher(cut), []
    for *place, row, url, key in rows:
        made += list(batcher.add_row(tuple(place), row, url, key))
        assert sum(one.size for one in batcher._open.values()) <= most
    made += batcher.flush_calls()

    assert batcher._held == 0
    assert sorted(at for call in made for at in call.offsets) == sorted(row[2] for row in rows)
    assert [one.offsets for one in made] == [one.offsets for one in calls_of(rows, cut)]


@pytest.mark.parametrize("drops", [(True, False), (False, False), (False, True), (True, True)])
def test_a_queue_that_ends_twice_ends_for_all(drops: tuple[bool, bool]) -> None:
    """Without it a task that was stopped while it read its last rows never ends."""

    async def story() -> list[Call | None]:
        queue = CallQueue(10)
        ordered = [Call("a", 0, [at], [b"x"], order=1) for at in range(3)]
        for call in ordered:
            await queue.put(call)
        first = await queue.take()
        assert first is ordered[0]
        takers = [asyncio.ensure_future(queue.take()) for _ in range(3)]
        await asyncio.sleep(0)
        for drop in drops:
            queue.end_queue(drop=drop)
        assert await asyncio.gather(*takers) == [None] * 3
        queue.on_finished(first, whole=True)
        taken = []
        while (call := await queue.take()) is not None:
            queue.on_finished(call, whole=True)
            taken.append(call)
        assert taken == ([] if any(drops) else ordered[1:])
        return taken

    asyncio.run(asyncio.wait_for(story(), 10))


@pytest.mark.parametrize("seed", range(60))
def test_every_call_of_a_queue_goes_out_in_its_order(seed: int) -> None:
    """Without it a task whose calls have an order and limits of keys waits for ever, at the cost of a core."""
    chance = random.Random(seed)

    async def story() -> None:
        queue = CallQueue(chance.choice([2, 8, 50]), of_key=chance.choice([0, 1, 2]))
        done: dict[int | None, list[int]] = {}

        async def work() -> None:
            while (call := await queue.take()) is not None:
                for admit in chance.choice([(True,), (False,), (False, True)]):
                    await asyncio.sleep(0)
                    if admit:
                        queue.on_admitted(call)
                done.setdefault(call.order, []).append(call.offsets[0])
                queue.on_finished(call, whole=True)

        tasks = [asyncio.ensure_future(work()) for _ in range(chance.randint(1, 6))]
        count = chance.randint(1, 60)
        for at in range(count):
            order = chance.choice([None, 0, 1, 2])
            await queue.put(Call("t", 0, [at], [b"x"], order=order, limit=str(chance.randrange(3))))
        queue.end_queue()
        await asyncio.gather(*tasks)
        assert sum(map(len, done.values())) == count or queue.stuck
        assert all(offsets == sorted(offsets) for order, offsets in done.items() if order is not None)

    asyncio.run(story())


def test_the_calls_of_a_queue_have_so_many_bytes_together() -> None:
    """Without it a task with calls of 1 MiB grows by hundreds of them."""

    async def story() -> list[tuple[int, int]]:
        queue, seen = CallQueue(1000, most_bytes=100, times=2), []
        offered = [Call("a", 0, [at], [b"x" * size]) for at, size in enumerate([20, 20, 20, 300, 10])]
        putting = asyncio.ensure_future(_put(queue, offered))
        taken = 0
        while taken < 5:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            call = await queue.take()
            assert call is not None
            taken += 1
            seen.append((call.offsets[0], queue.bytes))
            queue.on_finished(call, whole=True)
        await putting
        assert queue.bytes == 0
        return seen

    async def _put(queue: CallQueue, calls: list[Call]) -> None:
        for call in calls:
            await queue.put(call)

    seen = asyncio.run(story())

    assert [at for at, _ in seen] == [0, 1, 2, 3, 4]
    assert all(held <= 100 or at == 3 for at, held in seen)
    assert dict(seen)[3] == 600
