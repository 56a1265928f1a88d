"""Be the option of a sink that says what its values are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from router_encoders.avro_records import Avro
from router_encoders.json_texts import Json
from router_encoders.protobuf_messages import Protobuf

if TYPE_CHECKING:
    from typing_extensions import Self

    from router_encoders.encoding import Encoder


class Value(BaseModel):
    """Name one format and its options: `{json: {}}`, `{avro: {registry: ...}}` or `{protobuf: {registry: ...}}`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    # `json` is a method that every model has, so the option of that name is an alias
    texts: Json | None = Field(default=None, alias="json", description="a JSON object")
    avro: Avro | None = Field(default=None, description="an Avro record in the frame of a schema registry")
    protobuf: Protobuf | None = Field(default=None, description="a Protobuf message in the frame of a schema registry")

    @model_validator(mode="before")
    @classmethod
    def _without_options(cls, value: Any) -> Any:
        """Take `{json: }`, which YAML reads as null, for no options."""
        return {**value, "json": {}} if isinstance(value, dict) and value.get("json", 0) is None else value

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self._given) != 1:
            raise ValueError("a value has one format; write one of json, avro, protobuf")
        return self

    @property
    def encoder(self) -> Encoder:
        """Return the format."""
        return self._given[0]

    @property
    def _given(self) -> list[Encoder]:
        return [one for one in (self.texts, self.avro, self.protobuf) if one is not None]
