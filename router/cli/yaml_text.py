"""Write YAML as people do: lists stand inside of their key, what has only plain values stands on one line."""

from __future__ import annotations

from typing import Any

import yaml
from typing_extensions import override

LIKE_NUMBERS = "+-.0123456789"
"""The beginnings of texts that some readers of YAML take as numbers, as `1e5` and `007`, unless they are quoted."""


class _Dumper(yaml.SafeDumper):
    @override
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else "'" if text[:1] in LIKE_NUMBERS else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def write_yaml(value: Any) -> str:
    """Return a value as YAML, its keys in their order; characters that nobody sees are escaped."""
    options: dict[str, Any] = {"Dumper": _Dumper, "width": 2**31, "sort_keys": False, "default_flow_style": None}
    text: str = yaml.dump(value, allow_unicode=True, **options)
    return text if text.replace("\n", "").isprintable() else str(yaml.dump(value, **options))
