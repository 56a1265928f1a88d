"""Topics that `router init` has never seen, with what an oracle knows of their columns."""

from __future__ import annotations

import json
import random
import string
from dataclasses import dataclass, field
from typing import Any

SECRETS = ("ann.lee@shop.example", "Margaret Hamilton", "tok_9f8e7d6c5b4a", "4111 1111 1111 1111", "4111111111111111")
"""Values that must stand in no file."""


@dataclass
class Topic:
    """Values of a topic, how many are well-formed, and the columns that they have, in Spark DDL by name."""

    values: list[bytes]
    good: int
    columns: dict[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()


def draw_topic(kinds: int, records: int, seed: int, *, signs: str = "_") -> Topic:
    """Return a topic of so many kinds, with 2 % garbage.

    Fields are nested, optional, of drifting types, and late; one object has data for names. `signs` join the two words
    of a kind.
    """
    rng = random.Random(seed)
    names = [f"{_word(rng)}{rng.choice(signs)}{number}" for number in range(kinds)]
    own = {name: f"only_{number}" for number, name in enumerate(names)}
    columns = {
        "kind": "string",
        "id": "string",
        "player_id": "string",
        "amount": "double",
        "at": "timestamp",
        "drifting": "string",
        "card": "string",
        "person": "struct<email: string, name: string>",
        "payload": "",
        "scores": "map<string, bigint>",
        "big": "bigint",
        "flags": "array<boolean>",
    }
    values, good = [], 0
    for number in range(records):
        # A twentieth of the kinds come in the second half only.
        there = names if number > records / 2 else names[: max(1, kinds - kinds // 20)]
        kind = rng.choice(there)
        event: dict[str, Any] = {
            "kind": kind,
            "id": f"{seed}-{number}",
            "player_id": f"p-{rng.randrange(records // 5)}",
            "amount": rng.choice([5, 12.25, 0.1]),
            "at": f"2026-03-{1 + number % 28:02}T10:{number % 60:02}:00Z",
            "drifting": rng.choice([1, "one", {"n": 1}]),
            "card": rng.choice(SECRETS),
            "person": {"email": SECRETS[0], "name": SECRETS[1]},
            "payload": {own[kind]: rng.randrange(9)},
            "scores": {f"{_word(rng)}{rng.randrange(10**6)}": 1 for _ in range(3)},
            "big": 2**60 + number,
        }
        if rng.random() < 0.3:
            event["flags"] = [True, False]
        if rng.random() < 0.02:
            values.append(rng.choice([b"garbage", b"{", b"[1]", b'{"a":', b"\xff\xfe"]))
            continue
        good += 1
        values.append(json.dumps(event).encode())
    return Topic(values, good, columns, tuple(names))


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=5))
