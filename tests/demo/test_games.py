"""Changes of profiles: what the simulator remembers is what it sent."""

from __future__ import annotations

import json

from router_demo.games import Profiles


def test_what_is_left_is_what_was_sent_last() -> None:
    """The demo holds tables against it: if it is wrong, a wrong table looks right."""
    profiles, kept = Profiles(games=2, gamers=5), {}
    sent = list(profiles.changes(2000))
    for key, value, _ in sent:
        player = tuple(json.loads(key).values())
        if value is None:
            kept.pop(player, None)
        else:
            kept[player] = json.loads(value)["level"]
            assert json.loads(value).items() >= json.loads(key).items()

    assert profiles.levels == kept
    assert profiles.records == len(sent) == 2000
    assert profiles.states == sum(value is not None for _, value, _ in sent) < 2000
