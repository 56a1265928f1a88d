"""What tasks do when their credentials are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router_rest.credentials import TaskLogin, apply


class Driver:
    """The driver's side of a lease: one version after the other, or none."""

    def __init__(self, *versions: str | None) -> None:
        self.versions = list(versions)
        self.asked: list[str] = []

    async def credentials(self, refused: str = "") -> dict[str, Any]:
        self.asked.append(refused)
        await asyncio.sleep(0.01)
        version = self.versions.pop(0)
        if version is None:
            raise LookupError("the token server is away")
        return {"version": version, "headers": {}}


@pytest.mark.parametrize(("second", "got"), [("2", True), (None, False), ("1", False)], ids=["new", "none", "the same"])
def test_calls_that_are_refused_together_ask_once(second: str | None, got: bool) -> None:
    """Without it a token server that comes back is asked by every call that was in flight, and goes away again."""
    driver = Driver("1", second, "3")

    async def story() -> list[bool]:
        lease: Any = driver
        login = TaskLogin(lease, apply)
        await login.open()
        found = await asyncio.gather(*(login.renewed("1") for _ in range(8)))
        assert await login.renewed("1")  # later it is asked again, unless there is another one by now
        return found

    assert asyncio.run(story()) == [got] * 8
    assert driver.asked == ["", "1"] if got else ["", "1", "1"]
