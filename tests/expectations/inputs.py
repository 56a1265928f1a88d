"""Records of all kinds, the same in every run."""

from __future__ import annotations

import json
import random
from typing import Any

EVERY_TYPE = (
    "game string, gamer string, at timestamp, local timestamp_ntz, day date, amount bigint, price double, ratio float, "
    "cost decimal(20,6), flag boolean, blob binary, small smallint, tags array<string>, "
    "inner struct<x: int, deep: struct<y: string, at: timestamp>>, scores map<string, int>, "
    "rounds array<struct<n: int, cards: array<string>>>"
)
"""Every type that JSON is decoded to but variant and void."""
PLAIN = (
    "game string, gamer string, at timestamp, day date, amount bigint, price double, flag boolean, small smallint, "
    "tags array<string>, inner struct<x: int, deep: struct<y: string, at: timestamp>>, rounds array<struct<n: int>>"
)
"""Those without maps, decimals, floats, binary and times without a zone."""
GARBAGE: tuple[bytes | None, ...] = (
    *[None, b"", b" ", b" \r\n\t", b"\n", b"\0", b"\xff\xfe\xfd", b"\xc3(", b"\xed\xa0\x80", b"\xef\xbb\xbf{}"],
    *[b'{"game": "\xff\xfe"}', "{}".encode("utf-16"), b"null", b"true", b"-", b"[]", b'"text"', b"17", b'"', b"["],
    *[b"{", b'{"game": "poker"', b'{"game": "poker"}}', b'{"game": "poker"} trailing', b"{}{}", b"{}", b'{"":null}'],
    *[b"{'a':1}", b'{"game": 5}', b'{"game": {"a": 1}}', b'{"game": ["a"]}', b'{"game": "\\ud800"}', b"1e999999999"],
    *[b'{"amount": "many"}', b'{"amount": 1e400}', b'{"amount": 1.0}', b'{"amount": 1e3}', b'{"amount": "5"}'],
    *[b'{"amount": 9223372036854775807}', b'{"amount": 9223372036854775808}', b'{"amount": -9223372036854775808}'],
    *[b'{"small": 32767}', b'{"small": 32768}', b'{"small": -0}', b'{"price": 1}', b'{"price": "1"}',],
    b'{"price": -0.0}',
    *[b'{"price": NaN}', b'{"price": Infinity}', b'{"price": 1e400}', b'{"price": 1e-400}', b'{"price": 0.1}'],
    *[b'{"price": 123456789012345678901234567890}', b'{"ratio": 1e39}', b'{"ratio": 0.1}'],
    *[b'{"cost": 123456789012345.1234567}', b'{"cost": "1.5"}', b'{"cost": "x"}', b'{"cost": 0.1234565}',],
    b'{"cost": 1e2}',
    *[b'{"flag": "true"}', b'{"flag": 1}', b'{"blob": "not base64!"}', b'{"blob": "AA=="}', b'{"blob": 1}'],
    *[b'{"inner": []}', b'{"inner": {"x": "1"}}', b'{"inner": {"deep": 1}}', b'{"inner": {}}', b'{"inner": null}'],
    *[b'{"tags": {"a": 1}}', b'{"tags": [1, true, null, {"a": [1]}]}', b'{"tags": []}', b'{"rounds": [1]}'],
    *[b'{"rounds": [{"n": "1"}]}', b'{"rounds": [{"n": 1}, null, {}]}', b'{"scores": [1]}', b'{"scores": {"a": "1"}}'],
    *[b'{"scores": {"a": 1, "a": 2}}', b'{"scores": {}}', b'{"game": "poker", "game": "uno"}', b'{"a":1,"a":2}'],
    *[b'{"amount": 1, "amount": "x"}', b'{"GAME": "poker"}', b'{"game": "uno", "unknown": {"deep": [1, 2]}}'],
    *[b'{"gamer": "' + b"x" * 100_000 + b'"}', b'{"inner":' * 1000 + b"1" + b"}" * 1000, b"[" * 5000, b"9" * 2000],
)  # fmt: skip
TIMES = (
    *["2026-11-21T10:00:00Z", "2026-11-21 10:00:00", "2026-11-21T10:00:00", "2026-11-21T10:00:00+02:00"],
    *["2026-11-21T10:00:00-0530", "2026-11-21T10:00:00+02", "2026-11-21T10:00:00 Europe/Berlin"],
    *["2026-11-21T10:00:00[Europe/Berlin]", "2026-11-21T10:00:00Europe/Berlin", "2026-11-21T10:00:00.1Z"],
    *["2026-11-21T10:00:00.123456Z", "2026-11-21T10:00:00.123456789Z", "2026-11-21T10:00:00.1234567890Z"],
    *["2026-11-21T10:00Z", "2026-11-21T10Z", "2026-11-21", "2026-11", "2026", "2026-02-30", "2026-11-21T24:00:00Z"],
    *["2026-11-21T23:59:60Z", "0000-01-01", "0001-01-01", "9999-12-31", "10000-01-01", "-0001-01-01", "yesterday"],
    *["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "1582-10-10", "1900-01-01T00:00:00Z", "", " 2026-11-21"],
    *["2026-11-21 ", "2026-1-2", "20261121", "1763719200", "2026-11-21t10:00:00z", "2026-11-21T10:00:00+19:00"],
)  # fmt: skip
NAMES = (
    *["../../x", "con", "\U0001f600", "x" * 300, "po\nker", "poker\n", "po\u212aer", "", " ", "a.b", "_hidden", "9"],
    *["Uno", "uNO", "uno", "\0", "a/b", "a\\b", "a b", "a;b", "a=b", "a%2fb", "a'b", 'a"b', "{event.game}", "été"],
    *["x" * 128, "x" * 129, "..", ".", "null", "_delta_log", "\u0130stanbul", "1_2", "9999999999", "-", "A_B"],
)  # fmt: skip


def event(i: int) -> dict[str, Any]:
    """Return an event with every type; each field is missing in some, and null in some."""
    found: dict[str, Any] = {
        "game": ["poker", "Rummy", "uno", "hidden"][i % 4],
        "gamer": f"g{i}",
        "at": f"2026-01-{i % 28 + 1:02d}T23:59:59.{i:06d}Z",
        "local": f"2026-01-01T12:00:{i % 60:02d}.{i:06d}",
        "day": f"19{i % 90 + 10}-02-03",
        "amount": i % 11 - 1,
        "price": round(i * 1.1, 3),
        "ratio": i / 4,
        "cost": f"{i * 7919}.{i:06d}",
        "flag": i % 3 == 0,
        "blob": "AP+A",
        "small": i - 20,
        "tags": ["a", None, "é" * (i % 3)],
        "inner": {"x": i, "deep": {"y": f"y{i}", "at": f"2026-01-01T00:00:{i % 60:02d}Z"}},
        "scores": {"first": i, "second": None},
        "rounds": [{"n": i, "cards": ["7♠", "K♦"]}, {"n": None, "cards": []}, None],
    }
    for k, name in enumerate(list(found)):
        if i % 19 == k:
            del found[name]
        elif i % 23 == k:
            found[name] = None
    return found


def texts(count: int) -> list[bytes]:
    """Return events as JSON, of which some are broken at a place."""
    return [broken(json.dumps(event(i), ensure_ascii=False).encode(), i) for i in range(count)]


def broken(value: bytes, seed: int) -> bytes:
    """Return a value with a byte changed, cut off, or added."""
    noise = random.Random(seed)
    place = noise.randrange(len(value))
    return [
        value[:place],
        value[:place] + noise.randbytes(1) + value[place + 1 :],
        value[:place] + value[place + 1 :],
        value[:place] + noise.choice([b"{", b"}", b'"', b",", b"\0", b"\xff", b"1", b"null"]) + value[place:],
    ][seed % 4]


def shuffled(values: list[Any]) -> list[Any]:
    """Return values in an order of chance, the same in every run."""
    random.Random(7).shuffle(values)
    return values
