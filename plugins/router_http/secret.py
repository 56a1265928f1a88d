"""Hold what opens a service, and show it to nobody."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, SecretStr


class Secret(SecretStr):
    """A text that is shown nowhere and stays in this process: a pickle of it is empty.

    Only the driver logs in, so plans and tasks, which travel, need no secret.
    """

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, ("",)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self


class SecretOptions(BaseModel):
    """Options that may hold secrets: no message shows what was given."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
