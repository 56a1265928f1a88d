"""Process a request that passed every check: its rows take effect, at once or one by one."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from router_demo.api_server.bodies import value
from router_demo.api_server.messages import JSON, Reply

if TYPE_CHECKING:
    from router_demo.api_server.messages import Request
    from router_demo.api_server.record import Record
    from router_demo.api_server.script import Items, Script


class Whole:
    """Take a call as one."""

    def __init__(self, script: Script, record: Record) -> None:
        self._record = record
        self._echo = script.answer == "echo"

    def __call__(self, request: Request) -> Reply:
        self._record.process(request.number)
        return Reply(200, request.body if self._echo else b'{"call": %d}' % request.number, [JSON])


class ItemByItem:
    """Take the rows of a call that can be taken, and answer for each."""

    def __init__(self, script: Script, record: Record, items: Items) -> None:
        self._items = items
        self._poison = script.poison
        self._wrapped = script.rows
        self._record = record
        self._dice = random.Random(script.seed)

    def __call__(self, request: Request) -> Reply:
        every = request.rows(self._wrapped)
        statuses = [self._status(row) for row in every]
        taken = tuple(index for index, status in enumerate(statuses) if status < 300)
        self._record.process(request.number, taken)
        results = [self._result(row, status) for row, status in zip(every, statuses, strict=True)]
        if self._items.shuffled:
            self._dice.shuffle(results)
        return Reply(self._items.status, json.dumps({"items": results}).encode(), [JSON])

    def _status(self, row: Any) -> int:
        bad = next((poison for poison in self._poison if value(row, poison.field) in poison.values), None)
        if bad is not None:
            return bad.status
        return 429 if self._items.busy and self._dice.random() < self._items.busy else 201

    def _result(self, row: Any, status: int) -> dict[str, Any]:
        result: dict[str, Any] = {"id": value(row, self._items.id)} if self._items.id else {}
        result["status"] = status
        return result if status < 300 else {**result, "error": "busy" if status == 429 else "refused"}
