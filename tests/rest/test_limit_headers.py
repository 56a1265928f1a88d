"""What an API tells of its limits, in every form that is about, and in forms that are wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests.structures import CaseInsensitiveDict

from router_rest.rate_limit.headers import LONGEST, Remaining, left, pause

NOW = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        pytest.param({"Retry-After": "7"}, 7, id="seconds"),
        pytest.param({"retry-after": " 7 "}, 7, id="in small letters, with blanks"),
        pytest.param({"Retry-After": "0"}, 0, id="at once"),
        pytest.param({"Retry-After": "1.5"}, 1.5, id="a fraction"),
        pytest.param({"Retry-After": "Sun, 06 Nov 1994 08:49:47 GMT"}, 10, id="a date"),
        pytest.param({"Retry-After": "Sunday, 06-Nov-94 08:49:47 GMT"}, 10, id="a date of RFC 850"),
        pytest.param({"Retry-After": "Sun Nov  6 08:49:47 1994"}, 10, id="a date of asctime"),
        pytest.param(
            {"Retry-After": "Sun, 06 Nov 1994 09:00:10 GMT", "Date": "Sun, 06 Nov 1994 09:00:00 GMT"},
            10,
            id="a date by the server's own clock",
        ),
        pytest.param({"Retry-After": "Sun, 06 Nov 1994 08:00:00 GMT"}, 0, id="a date in the past"),
        pytest.param({"retry-after-ms": "250"}, 0.25, id="milliseconds"),
        pytest.param({"Retry-After": "3599"}, 3599, id="nearly an hour"),
        pytest.param({"Retry-After": "99999999999"}, 3600, id="absurd"),
        pytest.param({"Retry-After": "9" * 29}, 3600, id="more than absurd"),
        pytest.param({"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, LONGEST, id="an absurd date"),
        pytest.param({"Retry-After": "-5"}, None, id="negative"),
        pytest.param({"Retry-After": "soon"}, None, id="a word"),
        pytest.param({"Retry-After": ""}, None, id="nothing"),
        pytest.param({"Retry-After": "nan"}, None, id="not a number"),
        pytest.param({"Retry-After": "1e9"}, None, id="an exponent"),
        pytest.param({"Retry-After": "Sun, 99 Nov 1994 08:49:47 GMT"}, None, id="a day that is none"),
        pytest.param({"Retry-After": "9" * 5000}, None, id="endless"),
        pytest.param({}, None, id="not said"),
    ],
)
def test_an_api_is_left_alone_for_as_long_as_it_says(headers: dict[str, str], seconds: float | None) -> None:
    """Without it calls go on against a limit, or one header stops them for ever."""
    assert pause(CaseInsensitiveDict(headers), NOW) == seconds


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        pytest.param({"RateLimit": '"default";r=50;t=30'}, Remaining(50, 30), id="draft 11"),
        pytest.param({"ratelimit": '"a";r=50;t=30,"b";r=1;t=60'}, Remaining(1, 60), id="the tightest of several"),
        pytest.param(
            {"RateLimit": '"day";r=5', "RateLimit-Policy": '"hour";q=9;w=3600, "day";q=10;w=60'},
            Remaining(5, 60),
            id="the window of the policy, where it does not say when",
        ),
        pytest.param(
            {
                "RateLimit": '"bytes";r=1;t=1, "calls";r=9;t=3',
                "RateLimit-Policy": '"bytes";q=5;w=1;qu="content-bytes", "calls";q=9;w=1;qu="requests"',
            },
            Remaining(9, 3),
            id="bytes are no calls",
        ),
        pytest.param({"RateLimit": '"a;r=1";r=7;t=2;pk=:c2VjcmV0:'}, Remaining(7, 2), id="a name like parameters"),
        pytest.param({"RateLimit": "limit=100, remaining=4, reset=50"}, Remaining(4, 50), id="draft 7"),
        pytest.param({"RateLimit-Remaining": "3", "RateLimit-Reset": "9"}, Remaining(3, 9), id="three headers"),
        pytest.param({"X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "9"}, Remaining(3, 9), id="X, seconds"),
        pytest.param(
            {"X-RateLimit-Remaining": "3", "X-RateLimit-Reset": f"{NOW + 3e8 + 9:.0f}"}, Remaining(3, 9), id="X, a time"
        ),
        pytest.param(
            {"X-RateLimit-Remaining": "3", "X-RateLimit-Reset": f"{(NOW + 3e8 + 9) * 1000:.0f}"},
            Remaining(3, 9),
            id="X, a time in milliseconds",
        ),
        pytest.param(
            {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset-After": "0.5"}, Remaining(0, 0.5), id="X, after"
        ),
        pytest.param({"X-Rate-Limit-Remaining": "3", "X-Rate-Limit-Reset": "9"}, Remaining(3, 9), id="X, three words"),
        pytest.param({"RateLimit": '"a";r=5;t=3599'}, Remaining(5, 3599), id="a limit of an hour"),
        pytest.param({"RateLimit": '"a";r=5;t=99999999'}, Remaining(5, 3600), id="absurd"),
        pytest.param({"RateLimit": '"default";r=-1;t=30'}, None, id="negative"),
        pytest.param({"RateLimit": '"default;r=50;t=30'}, None, id="no closing quote"),
        pytest.param({"RateLimit": '"a";r=5;t=3 "b";r=1;t=3'}, None, id="no comma"),
        pytest.param({"RateLimit": '"a";r=5'}, None, id="no time"),
        pytest.param({"X-RateLimit-Remaining": "3"}, None, id="no reset"),
        pytest.param({"X-RateLimit-Remaining": "many", "X-RateLimit-Reset": "9"}, None, id="a word"),
        pytest.param({}, None, id="not said"),
    ],
)
def test_what_an_api_still_takes_is_read(headers: dict[str, str], found: Remaining | None) -> None:
    """Without it an API has to refuse calls before they become fewer."""
    now = NOW + 3e8  # past 1e9 seconds, as any time is by now

    assert left(CaseInsensitiveDict(headers), now) == found


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_header_of_a_stranger_raises(one: str, other: str) -> None:
    """Without it a server stops the stream with a header."""
    names = ("Retry-After", "Date", "RateLimit", "X-RateLimit-Remaining", "retry-after-ms")
    headers = CaseInsensitiveDict(
        {**dict.fromkeys(names, one), "RateLimit-Policy": other, "X-RateLimit-Reset": other, "Date": other}
    )

    seconds = pause(headers, NOW)
    still = left(headers, NOW)

    assert seconds is None or 0 <= seconds <= LONGEST
    assert still is None or (still.calls >= 0 and 0 <= still.seconds <= LONGEST)
