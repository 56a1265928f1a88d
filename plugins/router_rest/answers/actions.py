"""The next steps for a call and its rows, and which of them a status of HTTP means."""

from __future__ import annotations

from enum import Enum


class Action(Enum):
    """The next step for a call."""

    DONE = "it is delivered"
    AGAIN = "send it again later, with the same key"
    LOGIN = "get new credentials and send it again; if they are refused as well, wait"
    REFUSED = "one of its rows, or all, will never be taken"
    SPLIT = "it is too large: send it in two"
    WRONG = "no call can succeed until a setting is changed"
    LATER = "the API's answer cannot be read: leave it for the next round"
    PARK = "the API says nothing of the rows: park them, in doubt"
    DEAD = "a rule says that its rows will never be taken"
    SET_ASIDE = "a rule says to park its rows"


RETRY_STATUSES = frozenset({408, 423, 425, 429, *range(500, 600)} - {501})
"""The server did not get the whole call, has too much to do, or is out of order."""
REFUSED_STATUSES = frozenset({400, 406, 409, 416, 422, 424, 451})
URL_STATUSES = frozenset({403, 404, 410, 414})
"""Statuses about the URL: the row is wrong where its values make the URL, else the configuration is."""
GONE_STATUSES = frozenset({404, 410})
"""Statuses by which a DELETE that may have arrived before is done: nothing is there any more (RFC 9110, 9.2.2)."""
NOT_PROCESSED_STATUSES = frozenset({501, 503})
"""Failures of a server that has not processed the call; after every other 5xx it is unknown."""


SERVER_STATUSES = frozenset({401, 408, 425, 502, 503, 504})
"""Answers about the server, what stands before it, or the login, which say nothing of the call."""


def action_for(status: int, *, doubt: bool, url_of_data: bool = False, again: frozenset[int] | None = None) -> Action:
    """Return the next step after an answer of this status.

    `doubt`: the rows may have arrived before, so 409 says that this is so, or that the first attempt is still running;
    else it is a conflict, which another attempt does not solve. `again` are the statuses after which a call is sent
    again, in place of RETRY_STATUSES; one of these that is not among them says that the row is wrong.
    """
    if 200 <= status < 300:
        return Action.DONE
    if status in (RETRY_STATUSES if again is None else again) or (doubt and status == 409):
        return Action.AGAIN
    if status in REFUSED_STATUSES or status in RETRY_STATUSES or (url_of_data and status in URL_STATUSES):
        return Action.REFUSED
    return {401: Action.LOGIN, 413: Action.SPLIT}.get(status, Action.WRONG)


def is_throttling(status: int, paused: bool) -> bool:
    """Return whether an answer says that there were too many calls; `paused`: it says when to come again."""
    return status == 429 or (status == 503 and paused)


def is_doubtful(status: int) -> bool:
    """Return whether a failed call may have been processed in spite of its status."""
    return status >= 500 and status not in NOT_PROCESSED_STATUSES


FAILED_ACTIONS = frozenset({Action.AGAIN, Action.LOGIN, Action.WRONG, Action.LATER})
"""Answers that say that the API is not well, or that it is not called as it wants."""
UNDONE_ACTIONS = frozenset({Action.AGAIN, Action.SPLIT, Action.SET_ASIDE, Action.WRONG})
"""Decisions of rules after which rows may be sent again: after a 2xx these may have arrived."""
