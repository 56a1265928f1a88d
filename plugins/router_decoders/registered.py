"""Be a decoder whose schemas are in a registry: open it, look for new versions, fetch what is wanted."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from router import Decoder, Preparation, StartError
from router_schemas.connection import Registry, RegistryAway

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

    from router_schemas.library import Library
    from router_schemas.schemas import Schemas

SAMPLE = 1000


class Registered(Decoder):
    """Decode values whose schemas are in a registry. A format opens a library and reads with what it makes."""

    main_option: ClassVar[str | None] = "registry"

    registry: Registry = Field(description="the registry; a bare URL is enough")
    subjects: tuple[str, ...] = Field(
        default=(),
        description="subjects whose schemas are known before their first record; those of records that came are found "
        "by their id",
    )

    _library: Any = PrivateAttr(default=None)
    _known: Any = PrivateAttr(default=None)
    _sampled: frozenset[str] = PrivateAttr(default=frozenset())

    @abstractmethod
    def library(self, schemas: Schemas, preparation: Preparation) -> Library[Any, Any]:
        """Return what learns the schemas of this format."""

    @abstractmethod
    def places(self, values: pa.Array) -> frozenset[str]:
        """Return the places that values name in their frames."""

    def prepare(self, preparation: Preparation) -> Self:
        """Return this decoder with what it learnt in former runs; where that is nothing, with what a sample needs."""
        from router_schemas.client import Client
        from router_schemas.schemas import Schemas

        schemas = Schemas(Client(self.registry.beside(preparation.folder)), preparation.memory)
        prepared = self.model_copy()
        prepared._library = self.library(schemas, preparation)
        if not prepared._library.uses and not self.subjects:
            values = preparation.sample(SAMPLE).select("value").toArrow().column("value").combine_chunks()
            prepared._sampled = self.places(values)
        return prepared

    def refresh(self, wanted: frozenset[str]) -> Self:
        """Return this decoder with new versions of known subjects and with what is wanted."""
        if self._library is None:
            raise StartError("the registry is not open: call prepare() before refresh()")
        try:
            known = self._library.refreshed(wanted | self._sampled)
        except RegistryAway as away:
            raise ConnectionError(f"waiting for the schema registry: {away}") from away
        if not self._library.uses:
            raise StartError("no schema is known: name the `subjects` of the records, or look at what the source holds")
        if known is self._known:
            return self
        refreshed = self.model_copy()
        refreshed._known = known
        refreshed._sampled = frozenset()
        return refreshed

    @property
    def known(self) -> Any:
        """Return what the library made last."""
        if self._known is None:
            raise StartError("no schema is known: call refresh() before decode()")
        return self._known
