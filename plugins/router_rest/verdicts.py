"""Judge what came of a call by its status: what is to be done next."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """Say what is to be done about a call."""

    DONE = "it is delivered"
    AGAIN = "send it again later, with the same key"
    LOGIN = "get new credentials and send it again; if they are refused as well, wait"
    REFUSED = "one of its rows, or all, will never be taken"
    SPLIT = "it is too large: send it in two"
    WRONG = "no call can succeed until somebody changes a setting"


AGAIN = frozenset({408, 423, 425, 429, *range(500, 600)} - {501})
"""The server did not get all of it, has too much to do, or is out of order."""
REFUSED = frozenset({400, 406, 409, 416, 422, 424, 451})
OF_THE_URL = frozenset({403, 404, 410, 414})
"""A verdict on the URL: on the row where its values make it, else on the configuration."""
NOT_DONE = frozenset({501, 503})
"""A server that fails so has not done what it was asked to; of every other failure of its own nobody knows."""


def verdict(status: int, *, keyed: bool, url_of_data: bool = False, again: frozenset[int] | None = None) -> Verdict:
    """Return what an answer of this status means.

    `keyed`: calls carry an idempotency key, so that 409 says that the first attempt is still running; else it is a
    conflict, which another attempt does not solve. `again` are the statuses that are tried again in place of the usual;
    the others of these say that it is the row.
    """
    if 200 <= status < 300:
        return Verdict.DONE
    if status in (AGAIN if again is None else again) or (keyed and status == 409):
        return Verdict.AGAIN
    if status in REFUSED or status in AGAIN or (url_of_data and status in OF_THE_URL):
        return Verdict.REFUSED
    return {401: Verdict.LOGIN, 413: Verdict.SPLIT}.get(status, Verdict.WRONG)


def throttles(status: int, paused: bool) -> bool:
    """Return whether an answer says that there were too many calls; `paused`: it says when to come again."""
    return status == 429 or (status == 503 and paused)


def doubtful(status: int) -> bool:
    """Return whether a failed call may have been processed in spite of its status."""
    return status >= 500 and status not in NOT_DONE
