"""What a configuration can name: `router plugins` lists the parts, `router schema` prints the schema for editors."""

from __future__ import annotations

import inspect
import json
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic_core import PydanticUndefined
from typing_extensions import override

from router.cli import plugin_option
from router.cli.documents import json_option, show_json
from router.cli.listing import Listing, ListingField, show_listing
from router.cli.new_plugin import new
from router.config.json_schema import json_schema
from router.registry import Entry, Registry, load_registry, options_of, suggest_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic.fields import FieldInfo


class _Plugins(click.Group):
    """`router plugins`, whose command `show` need not be written."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, *self.get_help_option_names(ctx)}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Plugins)
def plugins() -> None:
    """List decoders, rules, sinks, encoders and views, show the manual page of one, or write a package for your own.

    Without a command it is `show`: `router plugins`, `router plugins NAME`.
    """


plugins.add_command(new)


@plugins.command(short_help="List all parts, or show the page of NAME.")
@click.argument("name", required=False)
@json_option
@plugin_option
def show(name: str | None, as_json: bool, plugin_files: tuple[Path, ...]) -> None:
    """List every available decoder, rule, sink, encoder and view with its provider, or show the manual page of NAME."""
    registry = load_registry(plugin_files)
    if name is None:
        rows = list(_part_rows(registry))
        if as_json:
            show_json({"parts": rows})
        else:
            show_listing(Listing("parts", "", PART_FIELDS, rows))
        return
    if as_json:
        raise click.UsageError("--json lists all parts: it goes without NAME")
    # A decoder and a rule may have one name: each has its page.
    pages = []
    names: list[str] = []
    for family in registry.entries.values():
        names += family
        if name in family:
            pages.append("\n".join(_page_lines(family[name])))
    if not pages:
        raise click.BadParameter(f"there is no part `{name}`; {suggest_names(name, names)}", param_hint="NAME")
    click.echo("\n\n".join(pages))


def _part_rows(registry: Registry) -> Iterator[dict[str, Any]]:
    for kind, family in registry.entries.items():
        for name, entry in family.items():
            summary, _, _ = _manual_text(entry).partition("\n")
            yield {"kind": kind, "name": name, "summary": summary, "provider": entry.provider}


PART_FIELDS = (
    ListingField("kind"),
    ListingField("name"),
    ListingField("summary", "sentence", "what it does"),
    ListingField("provider"),
)


def _page_lines(entry: Entry) -> Iterator[str]:
    yield f"{entry.name} - {entry.kind} of {entry.provider}"
    yield ""
    yield _manual_text(entry)
    yield ""
    yield "Options:" if entry.part.model_fields else "No options."
    for name, field in options_of(entry.part).items():
        line = f"  {name}: {kind_text(field.annotation)}{_default_text(field)}"
        if name == entry.part.main_option:
            line += "; the main option, for a bare value"
        yield line
        if field.description:
            yield f"      {field.description}"


def _manual_text(entry: Entry) -> str:
    return inspect.cleandoc(entry.part.__doc__ or "")


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return ", required"
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return ""
    return f", default {default!r}"


def kind_text(annotation: object) -> str:
    """Return a type in a few words."""
    if get_origin(annotation) is Annotated:
        return kind_text(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return " | ".join(map(repr, get_args(annotation)))
    if get_origin(annotation) in {Union, UnionType}:
        return " | ".join(map(kind_text, get_args(annotation)))
    name = getattr(get_origin(annotation) or annotation, "__name__", "...").replace("NoneType", "None")
    inner = ", ".join(map(kind_text, get_args(annotation)))
    return f"{name}[{inner}]" if inner else name


@click.command()
@plugin_option
def schema(plugin_files: tuple[Path, ...]) -> None:
    """Print the JSON Schema of configuration files, with every available part.

    Save it and name it in the first line of a file: # yaml-language-server: $schema=router.schema.json
    """
    click.echo(json.dumps(json_schema(load_registry(plugin_files)), indent=2))
