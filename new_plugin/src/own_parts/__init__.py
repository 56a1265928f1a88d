"""Parts of our own: the router calls the hooks that stand here."""

from own_parts.decoder import router_decoders  # if decoder
from own_parts.encoder import router_encoders  # if encoder
from own_parts.rule import router_rules  # if rule
from own_parts.sink import router_sinks  # if sink
from own_parts.view import router_views  # if view

__all__ = [
    "router_decoders",  # if decoder
    "router_encoders",  # if encoder
    "router_rules",  # if rule
    "router_sinks",  # if sink
    "router_views",  # if view
]
