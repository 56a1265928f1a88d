"""Log in at a registry: user and password, a fixed token, or tokens for client credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router_http.auth import BearerAuth, ClientCredentialsAuth, NoAuth, basic_auth
from router_http.tokens import Tokens
from router_schemas.connection import RegistryRefuses

if TYPE_CHECKING:
    from requests.auth import AuthBase

    from router_schemas.connection import Registry


def login(registry: Registry) -> AuthBase:
    """Return how requests to a registry are authorised; raise RegistryRefuses when its secrets were lost on a way."""
    if not all(registry.secrets):
        raise RegistryRefuses(registry.url[0], "secrets do not travel to other processes: ask it on the driver")
    if registry.basic is not None:
        return basic_auth(registry.basic)
    if registry.bearer is not None:
        return BearerAuth(registry.bearer.get_secret_value())
    if registry.oauth is not None:
        return ClientCredentialsAuth(Tokens(registry.oauth, seconds=registry.timeout, verify=registry.verify))
    return NoAuth()
