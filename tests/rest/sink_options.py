"""Options of the REST sink, as a configuration gives them."""

from __future__ import annotations

from typing import Any

from router_rest.sink import Rest

URL = "https://api.test/wins"


def read_sink_options(**options: Any) -> Rest:
    """Read options as a configuration does; `url` is set if they have none."""
    return Rest.model_validate({"url": URL, **options})
