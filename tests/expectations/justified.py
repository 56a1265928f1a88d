"""Differences to what was saved that are meant, one by one, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Justified:
    """One difference that is meant: lines as the failing test shows them, without the sign before them."""

    scenario: str
    why: str
    gone: tuple[str, ...] = ()
    come: tuple[str, ...] = ()


WIDENED = {
    "auto": ("gold.poker", "gold.uno", "silver.all"),
    "avro_versions": ("gold.of_a_subject", "gold.poker", "gold.uno", "silver.all"),
    "evolve": ("gold.whole", "outbox.games__all__recording", "silver.old"),
    "freeze": ("gold.all",),
    "protobuf_versions": ("gold.of_a_subject", "gold.poker", "gold.uno", "silver.all"),
    "quarantine": ("gold.all", "silver.old"),
    "types": ("silver.poker", "silver.uno"),
    "upserts_evolve": ("outbox.games__profiles__upsert", "outbox.games__profiles__upsert_2", "silver.evolving"),
}
"""The tables of each scenario that had Delta's type widening and are rewritten now: types and rows are the same."""

# fmt: off
JUSTIFIED = (
    *(
        Justified(
            scenario,
            'A table of the router is rewritten with wider types, so that it needs no type widening (docs/decisions/0011).',
            gone=tuple(f'{table} | properties: {{"delta.enableTypeWidening": "true"}}' for table in tables),
        )
        for scenario, tables in WIDENED.items()
    ),
    Justified(
        'upserts_by_field',
        'A history is a function of its records: late ones take their place in it (docs/how-to/upserts-and-history.md).',
        gone=(
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 0, "_newest_1": 10, "game": "uno", "gamer": "a", "level": 1, "at": 10, "valid_from": "2026-01-01T12:00:01.123456+00:00", "valid_to": "2026-01-01T14:00:02.123456+00:00", "is_current": false}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 1, "_newest_1": 5, "game": "uno", "gamer": "a", "level": 2, "at": 5, "valid_from": "2026-01-01T12:00:01.123456+00:00", "valid_to": "2026-01-01T12:00:01.123456+00:00", "is_current": false}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 12, "_newest_1": 1, "game": "uno", "gamer": "d", "level": 5, "at": 1, "valid_from": "2026-01-01T13:00:03.123456+00:00", "is_current": true}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 4, "_newest_1": 1, "game": "poker", "gamer": "c", "level": 0, "at": 1, "valid_from": "2026-01-01T12:00:04.123456+00:00", "valid_to": "2026-01-01T12:00:05.123456+00:00", "is_current": false}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 6, "game": "uno", "gamer": "d", "level": 4, "valid_from": "2026-01-01T12:00:06.123456+00:00", "valid_to": "2026-01-01T13:00:03.123456+00:00", "is_current": false}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 8, "_newest_1": 3, "game": "uno", "gamer": "e", "level": 3, "at": 3, "gone": false, "valid_from": "2026-01-01T12:00:08.123456+00:00", "valid_to": "2026-01-01T13:00:04.123456+00:00", "is_current": false}',
        ),
        come=(
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 0, "_newest_1": 10, "game": "uno", "gamer": "a", "level": 1, "at": 10, "valid_from": "2026-01-01T13:00:00.123456+00:00", "valid_to": "2026-01-01T14:00:02.123456+00:00", "is_current": false}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 1, "_newest_1": 5, "game": "uno", "gamer": "a", "level": 2, "at": 5, "valid_from": "2026-01-01T12:00:01.123456+00:00", "valid_to": "2026-01-01T13:00:00.123456+00:00", "is_current": false}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 11, "_newest_1": 1, "game": "poker", "gamer": "c", "level": 6, "at": 1, "valid_from": "2026-01-01T13:00:02.123456+00:00", "valid_to": "2026-01-01T13:00:02.123456+00:00", "is_current": false}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 12, "_newest_1": 1, "game": "uno", "gamer": "d", "level": 5, "at": 1, "valid_from": "2026-01-01T14:00:04.123456+00:00", "is_current": true}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 17, "_newest_1": 2, "game": "uno", "gamer": "e", "level": 1, "at": 2, "valid_from": "2026-01-01T14:00:01.123456+00:00", "valid_to": "2026-01-01T14:00:01.123456+00:00", "is_current": false}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 20, "game": "uno", "gamer": "d", "valid_from": "2026-01-01T14:00:04.123456+00:00", "valid_to": "2026-01-01T14:00:04.123456+00:00", "is_current": false}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 4, "_newest_1": 1, "game": "poker", "gamer": "c", "level": 0, "at": 1, "valid_from": "2026-01-01T12:00:04.123456+00:00", "valid_to": "2026-01-01T13:00:02.123456+00:00", "is_current": false}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 6, "game": "uno", "gamer": "d", "level": 4, "valid_from": "2026-01-01T12:00:06.123456+00:00", "valid_to": "2026-01-01T14:00:04.123456+00:00", "is_current": false}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 8, "_newest_1": 3, "game": "uno", "gamer": "e", "level": 3, "at": 3, "gone": false, "valid_from": "2026-01-01T14:00:01.123456+00:00", "valid_to": "2026-01-01T14:00:01.123456+00:00", "is_current": false}',
            'silver.history | {"_topic": "events", "_partition": 0, "_offset": 9, "_newest_1": 9, "game": "uno", "gamer": "a", "level": 3, "at": 9, "valid_from": "2026-01-01T13:00:00.123456+00:00", "valid_to": "2026-01-01T13:00:00.123456+00:00", "is_current": false}',
        ),
    ),
    Justified(
        'quarantine',
        'Released rows leave the quarantine, so that it does not grow for ever.',
        gone=(
            'quarantine.games__all__tables | {"_table": "silver.old", "_query": "games:run-1", "_batch_id": 1, "_topic": "events", "_partition": 0, "_offset": 3, "_timestamp": "2026-01-01T13:00:01.123456+00:00", "_key": "b:key 1", "game": "old", "id": 3, "inner": {"x": 3, "z": "new"}}',
            'quarantine.games__all__tables | {"_table": "silver.old", "_query": "games:run-1", "_batch_id": 1, "_topic": "events", "_partition": 0, "_offset": 4, "_timestamp": "2026-01-01T13:00:02.123456+00:00", "_key": "b:key 2", "game": "old", "id": 4, "rounds": [{"n": 4, "card": null}, null, {"n": 5, "card": "new"}]}',
            'quarantine.games__all__tables | {"_table": "silver.old", "_query": "games:run-1", "_batch_id": 1, "_topic": "events", "_partition": 0, "_offset": 5, "_timestamp": "2026-01-01T13:00:03.123456+00:00", "_key": "b:key 3", "game": "old", "id": 1099511627776}',
            'quarantine.games__all__tables | {"_table": "silver.old", "_query": "games:run-1", "_batch_id": 1, "_topic": "events", "_partition": 0, "_offset": 7, "_timestamp": "2026-01-01T13:00:05.123456+00:00", "_key": "b:key 5", "game": "old", "id": 6, "bonus": 0.5}',
            'quarantine.games__all__tables | {"_table": "silver.old", "_query": "games:run-1", "_batch_id": 1, "_topic": "events", "_partition": 0, "_offset": 8, "_timestamp": "2026-01-01T13:00:06.123456+00:00", "_key": "b:key 6", "game": "old", "id": 1099511627777, "bonus": 8.5}',
            'quarantine.games__all__tables | {"_table": "silver.old", "_query": "games:run-1", "_batch_id": 2, "_topic": "events", "_partition": 0, "_offset": 9, "_timestamp": "2026-01-01T14:00:00.123456+00:00", "_key": "b:key 0", "game": "old", "id": 7, "bonus": 7.5}',
            'quarantine.games__all__tables | {"_table": "silver.old", "_query": "games:run-1", "_batch_id": 3, "_topic": "events", "_partition": 0, "_offset": 12, "_timestamp": "2026-01-01T15:00:01.123456+00:00", "_key": "b:key 1", "game": "old", "id": 9, "extra": "more"}',
            'quarantine.games__all__tables | {"_table": "silver.old", "_query": "games:run-1", "_batch_id": 4, "_topic": "events", "_partition": 0, "_offset": 14, "_timestamp": "2026-01-01T16:00:01.123456+00:00", "_key": "b:key 1", "game": "old", "id": 9, "extra": "more"}',
        ),
    ),
    Justified(
        'json_every_type',
        'A text that ends within a value is not JSON, one that is nested deeper than the limit is named as such: from_json told of what it had read before.',
        gone=(
            'ops.dead | {"stage": "decode", "reason": "does not fit the schema", "key": "b:key 78", "value": "b:{\\"game\\": \\"uno\\", \\"gamer\\": \\"g7... 419 characters, sha256 d89e9d2f5285", "topic": "events", "partition": 0, "offset": 207, "timestamp": "2026-01-01T13:01:18.123456+00:00", "timestamp_type": 0, "batch_id": 1}',
            'ops.dead | {"stage": "decode", "reason": "value has text after the object", "key": "b:key 126", "value": "b:{\\"inner\\":{\\"inner\\":{\\"inner\\":{... 10003 characters, sha256 06b9cf847a43", "topic": "events", "partition": 0, "offset": 126, "timestamp": "2026-01-01T12:02:06.123456+00:00", "timestamp_type": 0, "batch_id": 0}',
        ),
        come=(
            'ops.dead | {"stage": "decode", "reason": "value is nested more than 999 levels deep", "key": "b:key 126", "value": "b:{\\"inner\\":{\\"inner\\":{\\"inner\\":{... 10003 characters, sha256 06b9cf847a43", "topic": "events", "partition": 0, "offset": 126, "timestamp": "2026-01-01T12:02:06.123456+00:00", "timestamp_type": 0, "batch_id": 0}',
            'ops.dead | {"stage": "decode", "reason": "value is not JSON", "key": "b:key 78", "value": "b:{\\"game\\": \\"uno\\", \\"gamer\\": \\"g7... 419 characters, sha256 d89e9d2f5285", "topic": "events", "partition": 0, "offset": 207, "timestamp": "2026-01-01T13:01:18.123456+00:00", "timestamp_type": 0, "batch_id": 1}',
        ),
    ),
    Justified(
        'json_plain',
        'As json_every_type.',
        gone=(
            'ops.dead | {"stage": "decode", "reason": "does not fit the schema", "key": "b:key 78", "value": "b:{\\"game\\": \\"uno\\", \\"gamer\\": \\"g7... 419 characters, sha256 d89e9d2f5285", "topic": "events", "partition": 0, "offset": 207, "timestamp": "2026-01-01T13:01:18.123456+00:00", "timestamp_type": 0, "batch_id": 1}',
            'ops.dead | {"stage": "decode", "reason": "value has text after the object", "key": "b:key 126", "value": "b:{\\"inner\\":{\\"inner\\":{\\"inner\\":{... 10003 characters, sha256 06b9cf847a43", "topic": "events", "partition": 0, "offset": 126, "timestamp": "2026-01-01T12:02:06.123456+00:00", "timestamp_type": 0, "batch_id": 0}',
        ),
        come=(
            'ops.dead | {"stage": "decode", "reason": "value is nested more than 999 levels deep", "key": "b:key 126", "value": "b:{\\"inner\\":{\\"inner\\":{\\"inner\\":{... 10003 characters, sha256 06b9cf847a43", "topic": "events", "partition": 0, "offset": 126, "timestamp": "2026-01-01T12:02:06.123456+00:00", "timestamp_type": 0, "batch_id": 0}',
            'ops.dead | {"stage": "decode", "reason": "value is not JSON", "key": "b:key 78", "value": "b:{\\"game\\": \\"uno\\", \\"gamer\\": \\"g7... 419 characters, sha256 d89e9d2f5285", "topic": "events", "partition": 0, "offset": 207, "timestamp": "2026-01-01T13:01:18.123456+00:00", "timestamp_type": 0, "batch_id": 1}',
        ),
    ),
    Justified(
        'json_rescue',
        'What is rescued is the text that was sent; from_json wrote numbers in its own way, and lost digits of some.',
        gone=(
            'silver.all | {"_rescued": [["cost", "1.2345678901234512E14"]], "offset": 59}',
            'silver.all | {"_rescued": [["cost", "100.0"]], "offset": 63}',
            'silver.all | {"_rescued": [["price", "0.0"]], "offset": 54}',
            'silver.all | {"_rescued": [["price", "\\"Infinity\\""]], "offset": 53}',
            'silver.all | {"_rescued": [["ratio", "1.0E39"]], "offset": 57}',
            'silver.all | {"_rescued": [["small", "0"]], "offset": 47}',
        ),
        come=(
            'silver.all | {"_rescued": [["cost", "123456789012345.1234567"]], "offset": 59}',
            'silver.all | {"_rescued": [["cost", "1e2"]], "offset": 63}',
            'silver.all | {"_rescued": [["price", "1e-400"]], "offset": 54}',
            'silver.all | {"_rescued": [["price", "1e400"]], "offset": 53}',
            'silver.all | {"_rescued": [["ratio", "1e39"]], "offset": 57}',
            'silver.all | {"_rescued": [["small", "-0"]], "offset": 47}',
        ),
    ),
    Justified(
        'json_times',
        'A local time is ISO 8601 from 0001 to 9999 as any other time is; from_json took parts of dates, blanks and other years for it.',
        gone=(
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 116, "read": 117, "decoded": 38, "failed": 79, "bare": 0, "unmatched": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 116, "route": "all", "sink": "delta", "matched": 38, "landed": 38, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
            'silver.all | {"local": "2026-01-01T00:00:00", "offset": 52}',
            'silver.all | {"local": "2026-01-02T00:00:00", "offset": 103}',
            'silver.all | {"local": "2026-11-01T00:00:00", "offset": 49}',
            'silver.all | {"local": "2026-11-21T00:00:00", "offset": 97}',
            'silver.all | {"local": "timestamp[us] -62167219200000000", "offset": 64}',
            'silver.all | {"local": "timestamp[us] -62198755200000000", "offset": 76}',
            'silver.all | {"local": "timestamp[us] 253402300800000000", "offset": 73}',
        ),
        come=(
            'ops.dead | {"stage": "decode", "reason": "does not fit the schema: local", "key": "b:key 103", "value": "b:{\\"local\\": \\"2026-1-2\\"}", "topic": "events", "partition": 0, "offset": 103, "timestamp": "2026-01-01T12:01:43.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
            'ops.dead | {"stage": "decode", "reason": "does not fit the schema: local", "key": "b:key 49", "value": "b:{\\"local\\": \\"2026-11\\"}", "topic": "events", "partition": 0, "offset": 49, "timestamp": "2026-01-01T12:00:49.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
            'ops.dead | {"stage": "decode", "reason": "does not fit the schema: local", "key": "b:key 52", "value": "b:{\\"local\\": \\"2026\\"}", "topic": "events", "partition": 0, "offset": 52, "timestamp": "2026-01-01T12:00:52.123456+00:00", "timestamp_type": 0, "batch_id": 0}',
            'ops.dead | {"stage": "decode", "reason": "does not fit the schema: local", "key": "b:key 64", "value": "b:{\\"local\\": \\"0000-01-01\\"}", "topic": "events", "partition": 0, "offset": 64, "timestamp": "2026-01-01T12:01:04.123456+00:00", "timestamp_type": 0, "batch_id": 0}',
            'ops.dead | {"stage": "decode", "reason": "does not fit the schema: local", "key": "b:key 73", "value": "b:{\\"local\\": \\"10000-01-01\\"}", "topic": "events", "partition": 0, "offset": 73, "timestamp": "2026-01-01T12:01:13.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
            'ops.dead | {"stage": "decode", "reason": "does not fit the schema: local", "key": "b:key 76", "value": "b:{\\"local\\": \\"-0001-01-01\\"}", "topic": "events", "partition": 0, "offset": 76, "timestamp": "2026-01-01T12:01:16.123456+00:00", "timestamp_type": 0, "batch_id": 0}',
            'ops.dead | {"stage": "decode", "reason": "does not fit the schema: local", "key": "b:key 97", "value": "b:{\\"local\\": \\" 2026-11-21\\"}", "topic": "events", "partition": 0, "offset": 97, "timestamp": "2026-01-01T12:01:37.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 116, "read": 117, "decoded": 31, "failed": 86, "bare": 0, "unmatched": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 116, "route": "all", "sink": "delta", "matched": 31, "landed": 31, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
        ),
    ),
    Justified(
        'tombstones_by_text',
        'A key that is not UTF-8 names no row: it is a dead letter in place of bytes in a text column, which readers fail on.',
        gone=(
            'ops.ledger | {"batch_id": 1, "route": "profiles", "sink": "upsert", "applied": 4, "dead": 0, "backlog": 0, "parked": 0, "in_doubt": 0}',
            'ops.ledger | {"batch_id": 1, "route": "profiles", "sink": "upsert_2", "applied": 4, "dead": 0, "backlog": 0, "parked": 0, "in_doubt": 0}',
            'outbox.games__profiles__upsert | {"_topic": "events", "_partition": 0, "_offset": 11, "_timestamp": "2026-01-01T13:00:03.123456+00:00", "_key": "x:ff", "_table": "silver.profiles", "_deleted": true, "gamer": "x:ff"}',
            'outbox.games__profiles__upsert_2 | {"_topic": "events", "_partition": 0, "_offset": 11, "_timestamp": "2026-01-01T13:00:03.123456+00:00", "_key": "x:ff", "_table": "silver.history", "_deleted": true, "gamer": "x:ff"}',
        ),
        come=(
            'ops.dead | {"stage": "apply", "reason": "key gamer is null", "route": "profiles", "sink": "upsert", "key": "x:ff", "value": "b:{}", "topic": "events", "partition": 0, "offset": 11, "timestamp": "2026-01-01T13:00:03.123456+00:00", "batch_id": 1}',
            'ops.dead | {"stage": "apply", "reason": "key gamer is null", "route": "profiles", "sink": "upsert_2", "key": "x:ff", "value": "b:{}", "topic": "events", "partition": 0, "offset": 11, "timestamp": "2026-01-01T13:00:03.123456+00:00", "batch_id": 1}',
            'ops.ledger | {"batch_id": 1, "route": "profiles", "sink": "upsert", "applied": 3, "dead": 1, "backlog": 0, "parked": 0, "in_doubt": 0}',
            'ops.ledger | {"batch_id": 1, "route": "profiles", "sink": "upsert_2", "applied": 3, "dead": 1, "backlog": 0, "parked": 0, "in_doubt": 0}',
            'outbox.games__profiles__upsert | {"_topic": "events", "_partition": 0, "_offset": 11, "_timestamp": "2026-01-01T13:00:03.123456+00:00", "_key": "x:ff", "_table": "silver.profiles", "_deleted": true}',
            'outbox.games__profiles__upsert_2 | {"_topic": "events", "_partition": 0, "_offset": 11, "_timestamp": "2026-01-01T13:00:03.123456+00:00", "_key": "x:ff", "_table": "silver.history", "_deleted": true}',
        ),
    ),
    Justified(
        'raw_columns',
        'A text that is not UTF-8 is a dead letter: readers of its table failed on the whole file.',
        gone=(
            'gold.keys | {"key": "x:ff", "place": {"topic": "Logins", "partition": 1, "offset": 2}}',
            'gold.keys | {"key": "x:ff", "place": {"topic": "Logins", "partition": 1, "offset": 8}}',
            'gold.keys | {"key": "x:ff", "place": {"topic": "a.b", "partition": 0, "offset": 2}, "trace": "x:00"}',
            'gold.keys | {"key": "x:ff", "place": {"topic": "a.b", "partition": 0, "offset": 8}, "trace": "x:00"}',
            'gold.keys | {"key": "x:ff", "place": {"topic": "bets", "partition": 0, "offset": 14}, "trace": "x:00"}',
            'gold.keys | {"key": "x:ff", "place": {"topic": "bets", "partition": 0, "offset": 2}, "trace": "x:00"}',
            'gold.keys | {"key": "x:ff", "place": {"topic": "bets", "partition": 0, "offset": 8}, "trace": "x:00"}',
            'gold.keys | {"key": "x:ff", "place": {"topic": "other", "partition": 1, "offset": 2}, "trace": "x:00"}',
            'gold.keys | {"key": "x:ff", "place": {"topic": "other", "partition": 1, "offset": 8}, "trace": "x:00"}',
            'ops.ledger | {"batch_id": 0, "topic": "Logins", "partition": 1, "from_offset": 0, "to_offset": 11, "route": "keys", "sink": "delta", "matched": 10, "landed": 10, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "a.b", "partition": 0, "from_offset": 0, "to_offset": 11, "route": "keys", "sink": "delta", "matched": 10, "landed": 10, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "bets", "partition": 0, "from_offset": 0, "to_offset": 11, "route": "keys", "sink": "delta", "matched": 10, "landed": 10, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "other", "partition": 1, "from_offset": 0, "to_offset": 11, "route": "keys", "sink": "delta", "matched": 10, "landed": 10, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
            'ops.ledger | {"batch_id": 1, "topic": "bets", "partition": 0, "from_offset": 12, "to_offset": 14, "route": "keys", "sink": "delta", "matched": 3, "landed": 3, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
        ),
        come=(
            'ops.dead | {"stage": "schema", "reason": "table gold.keys: key: the text is not UTF-8", "route": "keys", "sink": "delta", "key": "x:ff", "value": "b:{\\"game\\": \\"poker\\", \\"amount\\": 32}", "topic": "bets", "partition": 0, "offset": 8, "timestamp": "2026-01-01T12:00:32.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00"}], "batch_id": 0}',
            'ops.dead | {"stage": "schema", "reason": "table gold.keys: key: the text is not UTF-8", "route": "keys", "sink": "delta", "key": "x:ff", "value": "b:{\\"game\\": \\"poker\\", \\"amount\\": 33}", "topic": "Logins", "partition": 1, "offset": 8, "timestamp": "2026-01-01T12:00:33.123456+00:00", "timestamp_type": 0, "batch_id": 0}',
            'ops.dead | {"stage": "schema", "reason": "table gold.keys: key: the text is not UTF-8", "route": "keys", "sink": "delta", "key": "x:ff", "value": "b:{\\"game\\": \\"poker\\", \\"amount\\": 34}", "topic": "a.b", "partition": 0, "offset": 8, "timestamp": "2026-01-01T12:00:34.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00"}], "batch_id": 0}',
            'ops.dead | {"stage": "schema", "reason": "table gold.keys: key: the text is not UTF-8", "route": "keys", "sink": "delta", "key": "x:ff", "value": "b:{\\"game\\": \\"poker\\", \\"amount\\": 35}", "topic": "other", "partition": 1, "offset": 8, "timestamp": "2026-01-01T12:00:35.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00"}], "batch_id": 0}',
            'ops.dead | {"stage": "schema", "reason": "table gold.keys: key: the text is not UTF-8", "route": "keys", "sink": "delta", "key": "x:ff", "value": "b:{\\"game\\": \\"uno\\", \\"amount\\": 10}", "topic": "a.b", "partition": 0, "offset": 2, "timestamp": "2026-01-01T12:00:10.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00"}], "batch_id": 0}',
            'ops.dead | {"stage": "schema", "reason": "table gold.keys: key: the text is not UTF-8", "route": "keys", "sink": "delta", "key": "x:ff", "value": "b:{\\"game\\": \\"uno\\", \\"amount\\": 11}", "topic": "other", "partition": 1, "offset": 2, "timestamp": "2026-01-01T12:00:11.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00"}], "batch_id": 0}',
            'ops.dead | {"stage": "schema", "reason": "table gold.keys: key: the text is not UTF-8", "route": "keys", "sink": "delta", "key": "x:ff", "value": "b:{\\"game\\": \\"uno\\", \\"amount\\": 8}", "topic": "bets", "partition": 0, "offset": 14, "timestamp": "2026-01-01T13:00:08.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00"}], "batch_id": 1}',
            'ops.dead | {"stage": "schema", "reason": "table gold.keys: key: the text is not UTF-8", "route": "keys", "sink": "delta", "key": "x:ff", "value": "b:{\\"game\\": \\"uno\\", \\"amount\\": 8}", "topic": "bets", "partition": 0, "offset": 2, "timestamp": "2026-01-01T12:00:08.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00"}], "batch_id": 0}',
            'ops.dead | {"stage": "schema", "reason": "table gold.keys: key: the text is not UTF-8", "route": "keys", "sink": "delta", "key": "x:ff", "value": "b:{\\"game\\": \\"uno\\", \\"amount\\": 9}", "topic": "Logins", "partition": 1, "offset": 2, "timestamp": "2026-01-01T12:00:09.123456+00:00", "timestamp_type": 0, "batch_id": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "Logins", "partition": 1, "from_offset": 0, "to_offset": 11, "route": "keys", "sink": "delta", "matched": 10, "landed": 8, "refused": 2, "dropped": 0, "frozen": 0, "quarantined": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "a.b", "partition": 0, "from_offset": 0, "to_offset": 11, "route": "keys", "sink": "delta", "matched": 10, "landed": 8, "refused": 2, "dropped": 0, "frozen": 0, "quarantined": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "bets", "partition": 0, "from_offset": 0, "to_offset": 11, "route": "keys", "sink": "delta", "matched": 10, "landed": 8, "refused": 2, "dropped": 0, "frozen": 0, "quarantined": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "other", "partition": 1, "from_offset": 0, "to_offset": 11, "route": "keys", "sink": "delta", "matched": 10, "landed": 8, "refused": 2, "dropped": 0, "frozen": 0, "quarantined": 0}',
            'ops.ledger | {"batch_id": 1, "topic": "bets", "partition": 0, "from_offset": 12, "to_offset": 14, "route": "keys", "sink": "delta", "matched": 3, "landed": 2, "refused": 1, "dropped": 0, "frozen": 0, "quarantined": 0}',
        ),
    ),
    Justified(
        'routes_of_every_type',
        'As json_every_type: nested deeper than the limit.',
        gone=(
            'ops.dead | {"stage": "decode", "reason": "value has text after the object", "key": "b:key 1", "value": "b:{\\"inner\\":{\\"inner\\":{\\"inner\\":{... 10003 characters, sha256 06b9cf847a43", "topic": "events", "partition": 1, "offset": 0, "timestamp": "2026-01-01T12:00:01.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
        ),
        come=(
            'ops.dead | {"stage": "decode", "reason": "value is nested more than 999 levels deep", "key": "b:key 1", "value": "b:{\\"inner\\":{\\"inner\\":{\\"inner\\":{... 10003 characters, sha256 06b9cf847a43", "topic": "events", "partition": 1, "offset": 0, "timestamp": "2026-01-01T12:00:01.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
        ),
    ),
    Justified(
        'routes_in_tasks',
        'As json_every_type: nested deeper than the limit.',
        gone=(
            'ops.dead | {"stage": "decode", "reason": "value has text after the object", "key": "b:key 1", "value": "b:{\\"inner\\":{\\"inner\\":{\\"inner\\":{... 10003 characters, sha256 06b9cf847a43", "topic": "events", "partition": 1, "offset": 0, "timestamp": "2026-01-01T12:00:01.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
        ),
        come=(
            'ops.dead | {"stage": "decode", "reason": "value is nested more than 999 levels deep", "key": "b:key 1", "value": "b:{\\"inner\\":{\\"inner\\":{\\"inner\\":{... 10003 characters, sha256 06b9cf847a43", "topic": "events", "partition": 1, "offset": 0, "timestamp": "2026-01-01T12:00:01.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
        ),
    ),
    Justified(
        'json_every_type',
        'A number of more digits than the limit is JSON, and the reason names the limit.',
        gone=('ops.dead | {"stage": "decode", "reason": "value is not JSON", "key": "b:key 128", "value": "b:9999999999999999999999999999... 2002 characters, sha256 9c71700f0e9d", "topic": "events", "partition": 0, "offset": 128, "timestamp": "2026-01-01T12:02:08.123456+00:00", "timestamp_type": 0, "batch_id": 0}',),
        come=('ops.dead | {"stage": "decode", "reason": "value has a number of more than 1000 digits", "key": "b:key 128", "value": "b:9999999999999999999999999999... 2002 characters, sha256 9c71700f0e9d", "topic": "events", "partition": 0, "offset": 128, "timestamp": "2026-01-01T12:02:08.123456+00:00", "timestamp_type": 0, "batch_id": 0}',),
    ),
    Justified(
        'json_plain',
        'A number of more digits than the limit is JSON, and the reason names the limit.',
        gone=('ops.dead | {"stage": "decode", "reason": "value is not JSON", "key": "b:key 128", "value": "b:9999999999999999999999999999... 2002 characters, sha256 9c71700f0e9d", "topic": "events", "partition": 0, "offset": 128, "timestamp": "2026-01-01T12:02:08.123456+00:00", "timestamp_type": 0, "batch_id": 0}',),
        come=('ops.dead | {"stage": "decode", "reason": "value has a number of more than 1000 digits", "key": "b:key 128", "value": "b:9999999999999999999999999999... 2002 characters, sha256 9c71700f0e9d", "topic": "events", "partition": 0, "offset": 128, "timestamp": "2026-01-01T12:02:08.123456+00:00", "timestamp_type": 0, "batch_id": 0}',),
    ),
    Justified(
        'routes_of_every_type',
        'A number of more digits than the limit is JSON, and the reason names the limit.',
        gone=('ops.dead | {"stage": "decode", "reason": "value is not JSON", "key": "b:key 45", "value": "b:9999999999999999999999999999... 2002 characters, sha256 9c71700f0e9d", "topic": "events", "partition": 0, "offset": 15, "timestamp": "2026-01-01T12:00:45.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',),
        come=('ops.dead | {"stage": "decode", "reason": "value has a number of more than 1000 digits", "key": "b:key 45", "value": "b:9999999999999999999999999999... 2002 characters, sha256 9c71700f0e9d", "topic": "events", "partition": 0, "offset": 15, "timestamp": "2026-01-01T12:00:45.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',),
    ),
    Justified(
        'routes_in_tasks',
        'A number of more digits than the limit is JSON, and the reason names the limit.',
        gone=('ops.dead | {"stage": "decode", "reason": "value is not JSON", "key": "b:key 45", "value": "b:9999999999999999999999999999... 2002 characters, sha256 9c71700f0e9d", "topic": "events", "partition": 0, "offset": 15, "timestamp": "2026-01-01T12:00:45.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',),
        come=('ops.dead | {"stage": "decode", "reason": "value has a number of more than 1000 digits", "key": "b:key 45", "value": "b:9999999999999999999999999999... 2002 characters, sha256 9c71700f0e9d", "topic": "events", "partition": 0, "offset": 15, "timestamp": "2026-01-01T12:00:45.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',),
    ),
    Justified(
        'json_every_type',
        'A byte order mark before an object is passed over, as RFC 8259 lets a parser do.',
        gone=(
            'ops.dead | {"stage": "decode", "reason": "value is not JSON", "key": "b:key 49", "value": "x:efbbbf7b7d", "topic": "events", "partition": 0, "offset": 49, "timestamp": "2026-01-01T12:00:49.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 128, "read": 129, "decoded": 71, "failed": 58, "bare": 0, "unmatched": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 128, "route": "all", "sink": "delta", "matched": 71, "landed": 71, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
        ),
        come=(
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 128, "read": 129, "decoded": 72, "failed": 57, "bare": 0, "unmatched": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 128, "route": "all", "sink": "delta", "matched": 72, "landed": 72, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
            'silver.all | {"offset": 49}',
        ),
    ),
    Justified(
        'json_plain',
        'As json_every_type: a byte order mark before an object is passed over.',
        gone=(
            'ops.dead | {"stage": "decode", "reason": "value is not JSON", "key": "b:key 49", "value": "x:efbbbf7b7d", "topic": "events", "partition": 0, "offset": 49, "timestamp": "2026-01-01T12:00:49.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 128, "read": 129, "decoded": 79, "failed": 50, "bare": 0, "unmatched": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 128, "route": "all", "sink": "delta", "matched": 79, "landed": 79, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
        ),
        come=(
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 128, "read": 129, "decoded": 80, "failed": 49, "bare": 0, "unmatched": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 128, "route": "all", "sink": "delta", "matched": 80, "landed": 80, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
            'silver.all | {"offset": 49}',
        ),
    ),
    Justified(
        'json_rescue',
        'As json_every_type: a byte order mark before an object is passed over.',
        gone=(
            'ops.dead | {"stage": "decode", "reason": "value is not JSON", "key": "b:key 13", "value": "x:efbbbf7b7d", "topic": "events", "partition": 0, "offset": 13, "timestamp": "2026-01-01T12:00:13.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 63, "read": 64, "decoded": 27, "failed": 37, "bare": 0, "unmatched": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 63, "route": "all", "sink": "delta", "matched": 27, "landed": 27, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
        ),
        come=(
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 63, "read": 64, "decoded": 28, "failed": 36, "bare": 0, "unmatched": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 0, "from_offset": 0, "to_offset": 63, "route": "all", "sink": "delta", "matched": 28, "landed": 28, "refused": 0, "dropped": 0, "frozen": 0, "quarantined": 0}',
            'silver.all | {"offset": 13}',
        ),
    ),
    Justified(
        'routes_in_tasks',
        'As json_every_type: a byte order mark before an object is passed over.',
        gone=(
            'ops.dead | {"stage": "decode", "reason": "value is not JSON", "key": "b:key 109", "value": "x:efbbbf7b7d", "topic": "events", "partition": 1, "offset": 36, "timestamp": "2026-01-01T12:01:49.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 1, "from_offset": 0, "to_offset": 49, "read": 50, "decoded": 31, "failed": 19, "bare": 0, "unmatched": 11}',
        ),
        come=(
            'ops.dead | {"stage": "match", "reason": "no route matches", "key": "b:key 109", "value": "x:efbbbf7b7d", "topic": "events", "partition": 1, "offset": 36, "timestamp": "2026-01-01T12:01:49.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 1, "from_offset": 0, "to_offset": 49, "read": 50, "decoded": 32, "failed": 18, "bare": 0, "unmatched": 12}',
        ),
    ),
    Justified(
        'routes_of_every_type',
        'As json_every_type: a byte order mark before an object is passed over.',
        gone=(
            'ops.dead | {"stage": "decode", "reason": "value is not JSON", "key": "b:key 109", "value": "x:efbbbf7b7d", "topic": "events", "partition": 1, "offset": 36, "timestamp": "2026-01-01T12:01:49.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 1, "from_offset": 0, "to_offset": 49, "read": 50, "decoded": 28, "failed": 22, "bare": 0, "unmatched": 8}',
        ),
        come=(
            'ops.dead | {"stage": "match", "reason": "no route matches", "key": "b:key 109", "value": "x:efbbbf7b7d", "topic": "events", "partition": 1, "offset": 36, "timestamp": "2026-01-01T12:01:49.123456+00:00", "timestamp_type": 0, "headers": [{"key": "trace", "value": "x:00ff"}, {"key": "empty", "value": null}], "batch_id": 0}',
            'ops.ledger | {"batch_id": 0, "topic": "events", "partition": 1, "from_offset": 0, "to_offset": 49, "read": 50, "decoded": 29, "failed": 21, "bare": 0, "unmatched": 9}',
        ),
    ),
)
# fmt: on
