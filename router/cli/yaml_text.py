"""Write YAML as people do: lists stand inside of their key, chosen mappings on one line, long texts line by line."""

from __future__ import annotations

from typing import Any

import yaml
from typing_extensions import override


class Inline(dict[str, Any]):
    """A mapping that is written on one line."""


class _Dumper(yaml.SafeDumper):
    @override
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_inline(dumper: _Dumper, mapping: Inline) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", mapping, flow_style=True)


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    # Without quotes some readers of YAML take `007` as a number.
    style = "|" if "\n" in text else "'" if text[:1].isdigit() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(Inline, _represent_inline)
_Dumper.add_representer(str, _represent_text)


def write_yaml(value: Any) -> str:
    """Return a value as YAML, its keys in their order; characters that nobody sees are escaped."""
    text = yaml.dump(value, Dumper=_Dumper, width=2**31, allow_unicode=True, sort_keys=False)
    if text.replace("\n", "").isprintable():
        return text
    return yaml.dump(value, Dumper=_Dumper, width=2**31, sort_keys=False)
