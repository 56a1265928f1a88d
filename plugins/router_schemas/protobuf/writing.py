"""Write one message from plain data, as a producer does that has the schema. For tests of configurations."""

from __future__ import annotations

from typing import Any

from google.protobuf import message_factory  # type: ignore[import-untyped]
from google.protobuf.json_format import ParseDict, ParseError  # type: ignore[import-untyped]

from router_schemas.protobuf.messages import message_of


def written(event: Any, files: bytes, message: str) -> bytes:
    """Return the bytes of a message given as in ProtoJSON (protobuf.dev): times as text, bytes in base64.

    `files` is a FileDescriptorSet, `message` a full name in it. Raises ValueError for what the message has not.
    """
    made = message_factory.GetMessageClass(message_of(files, message))()
    try:
        return bytes(ParseDict(event, made).SerializeToString(deterministic=True))
    except (ParseError, TypeError) as error:
        raise ValueError(f"not a {message}: {error}") from None
