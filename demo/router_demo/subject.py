"""Register the versions of a schema with a registry when they begin."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from router import StartError
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router_schemas.model import Kind


class Subject:
    """Be a subject of a registry. `on_register` gets the id of each schema that is registered through this."""

    def __init__(self, client: RegistryClient, name: str, on_register: Callable[[int], None] | None = None) -> None:
        self._client = client
        self._name = name
        self._on_register = on_register

    def register(self, kind: Kind, text: str) -> int:
        """Register a schema and return its id. Raises RegistryError when the registry does not take it."""
        number = self._client.register(self._name, kind, text)
        if self._on_register:
            self._on_register(number)
        return number


@contextmanager
def subject_in(url: str, name: str, on_register: Callable[[int], None] | None = None) -> Iterator[Subject]:
    """Hold a connection to a registry. Raises StartError for what is not the URL of one."""
    try:
        registry = RegistryOptions(url=(url,))
    except ValueError:
        raise StartError(f"{url!r} is not the URL of a registry: write http(s)://host[:port][/path]") from None
    with RegistryClient(registry) as client:
        yield Subject(client, name, on_register)
