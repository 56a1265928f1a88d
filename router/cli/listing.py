"""What commands print of facts: tables for people, one JSON document for programs.

In a terminal no name and no number is split: a table that is too wide loses its columns without content, and if it is
still too wide each row becomes a block of lines. In a pipe a row is one line, however long it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from router.cli import configuration_file
from router.cli.documents import in_utc, show_json
from router.errors import commands_with_file, to_printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from router.config.models import Config

UNLIMITED_WIDTH = 1_000_000
"""The width of what is no terminal, in characters."""
SENTENCE_WIDTH = 24
"""Characters that a column of sentences has at least; longer ones continue on the next line."""


@dataclass(frozen=True)
class ListingField:
    """A column of a listing. `name` is its key in the rows, and in JSON; `title` is its header, if that is another.

    A `number` stands to the right. A `sentence` may continue in the next line, a `name` and a `number` never do. A
    number that counts nothing, such as an offset, has no commas: it is not `counted`. `shown` returns the text of a
    row's cell, if that is not the usual one of its value. A row in which only cells that are not `compared` are new,
    such as a time, is no change to who watches it.
    """

    name: str
    kind: Literal["name", "number", "sentence"] = "name"
    title: str = ""
    counted: bool = True
    shown: Callable[[dict[str, Any]], Any] | None = None
    compared: bool = True

    @property
    def header(self) -> str:
        """Return the heading of the column."""
        return self.title or self.name

    def text_of(self, row: dict[str, Any]) -> str:
        """Return the text of a row's cell, of which a terminal obeys nothing; a list has a line for each item."""
        value = row[self.name] if self.shown is None else self.shown(row)
        if value is None:
            return ""
        file = configuration_file()
        if isinstance(value, list | tuple):
            return "\n".join(to_printable(commands_with_file(str(item), file)) for item in value)
        if isinstance(value, datetime):
            return f"{in_utc(value):%Y-%m-%d %H:%M:%SZ}"
        if isinstance(value, int) and self.counted:
            return f"{value:,}"
        return to_printable(commands_with_file(str(value), file))

    def sort_key(self, row: dict[str, Any]) -> tuple[int, Any]:
        """Return the sort key of a row: cells without content first, then numbers and times, then texts."""
        value = row.get(self.name)
        if isinstance(value, int | float | datetime):
            return 1, value
        text = self.text_of(row).lower()
        return (2 if text else 0), text


@dataclass(frozen=True)
class Listing:
    """Rows to print. `name` is their key in JSON, which has all values of a row, also those that no field shows.

    `keys` name the values that tell one row from another, for who watches them; without any, rows do not change.
    """

    name: str
    title: str
    fields: tuple[ListingField, ...]
    rows: Sequence[dict[str, Any]]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class ListOptions:
    """What a user wants to see of a list: whether it is watched, the order of its rows, and a text that they have."""

    watch: bool = False
    sort: str = ""
    only: str = ""

    def choose_rows(self, listings: Sequence[Listing]) -> list[Listing]:
        """Return listings with the chosen rows in order. Raises UsageError if none has the column to sort by."""
        # Only the first hyphen means descending.
        column = self.sort.removeprefix("-")
        chosen = []
        headers = []
        for listing in listings:
            rows = [row for row in listing.rows if self._has_text(listing, row)]
            for field in listing.fields:
                headers.append(field.header)
                if column == field.header:
                    rows.sort(key=field.sort_key, reverse=self.sort.startswith("-"))
            chosen.append(replace(listing, rows=rows))
        if column and column not in headers:
            raise click.UsageError(f"--sort {self.sort}: the columns are {', '.join(dict.fromkeys(headers))}")
        return chosen

    def _has_text(self, listing: Listing, row: dict[str, Any]) -> bool:
        wanted = self.only.lower()
        return any(wanted in field.text_of(row).lower() for field in listing.fields)


watch_option = click.option(
    "--watch", is_flag=True, help="Show it again and again until Ctrl-C; in a pipe print a line for each change."
)
"""`--watch`; the command gets it as `watch`."""


def list_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that prints a list `--watch`, `--sort` and `--only`: it gets them as `list_options`."""

    @watch_option
    @click.option("--sort", default="", metavar="COLUMN", help="Sort rows by this column; -COLUMN: the largest first.")
    @click.option("--only", default="", metavar="TEXT", help="Only rows that have this text, in any column.")
    @wraps(command)
    def with_options(*arguments: Any, watch: bool, sort: str, only: str, **others: Any) -> None:
        command(*arguments, **others, list_options=ListOptions(watch, sort, only))

    return with_options


def number_fields(*names: str) -> tuple[ListingField, ...]:
    """Return fields for numbers."""
    return tuple(ListingField(name, "number") for name in names)


def show_list(
    config: Config,
    read: Callable[[], Sequence[Listing]],
    options: ListOptions,
    *,
    as_json: bool = False,
    nothing: str = "",
) -> None:
    """Print listings about a configuration as its user wants to see them: once, or again and again."""
    if options.only:
        nothing = f"no row has {options.only!r}"
    if not options.watch:
        show_listings(config.name, options.choose_rows(read()), as_json=as_json, nothing=nothing)
        return
    from router.cli.watch import watch_stream

    watch_stream(config, lambda: options.choose_rows(read()), as_json=as_json, nothing=nothing)


def show_listings(
    about: str,
    listings: Sequence[Listing],
    *,
    as_json: bool = False,
    nothing: str = "",
    console: Console | None = None,
) -> None:
    """Print listings as tables, or all of them as one JSON document with the name of what they are about.

    `nothing` is the line that people see if no listing has a row. A listing without rows is left out.
    """
    if as_json:
        show_json({"name": about, **{listing.name: list(listing.rows) for listing in listings}})
        return
    console = console or _open_console()
    filled = [listing for listing in listings if listing.rows]
    if not filled and nothing:
        console.print(Text(to_printable(nothing)), soft_wrap=True)
    for listing in filled:
        show_listing(listing, console)


def show_sentences(sentences: Sequence[tuple[str, str]], console: Console | None = None) -> None:
    """Print a line for each name and what is said of it, in two columns if the terminal is wide enough.

    Otherwise a sentence that is too long stands below its name, indented. A terminal obeys nothing in them.
    """
    console = console or _open_console()
    file = configuration_file()
    sentences = [(to_printable(name), to_printable(commands_with_file(text, file))) for name, text in sentences]
    width = max((cell_len(name) for name, _ in sentences), default=0)
    if any(width + 2 + cell_len(sentence) > console.width for _, sentence in sentences):
        width = 0
    for name, sentence in sentences:
        line = f"{name}{' ' * (width - cell_len(name))}  {sentence}"
        if cell_len(line) <= console.width:
            console.print(Text(line), soft_wrap=True)
            continue
        console.print(Text(name), soft_wrap=True)
        _show_wrapped(console, sentence)


def _open_console() -> Console:
    """Return the terminal, or a pipe in which nothing wraps."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = UNLIMITED_WIDTH
    return console


@dataclass(frozen=True)
class _Column:
    """A field of a listing, with the texts of its cells."""

    field: ListingField
    texts: list[str]

    def needed_width(self) -> int:
        """Return the characters that it needs so that no name and no number is split."""
        lines = self.field.header.split("\n")
        for text in self.texts:
            lines += text.split("\n")
        longest = max(cell_len(line) for line in lines)
        if self.field.kind != "sentence":
            return longest
        words = " ".join(lines).split(" ")
        return min(longest, max(SENTENCE_WIDTH, *(cell_len(word) for word in words)))

    def is_empty(self) -> bool:
        """Say whether it has nothing in any row. The batch 0, or an offset, is no number of things."""
        is_count = self.field.kind == "number" and self.field.counted and self.field.shown is None
        return all(text == "" or (is_count and text == "0") for text in self.texts)


def show_listing(listing: Listing, console: Console | None = None) -> None:
    """Print a listing for people, as wide as the terminal is."""
    console = console or _open_console()
    columns = []
    for field in listing.fields:
        texts = [field.text_of(row) for row in listing.rows]
        if not console.is_terminal:
            texts = [text.replace("\n", "; ") for text in texts]
        columns.append(_Column(field, texts))
    if _table_width(columns) <= console.width:
        console.print(_make_table(listing.title, columns))
        return

    # What is empty or 0 in every row takes place and says one thing: it is named once.
    filled = [column for column in columns if not column.is_empty()]
    empty = [column.field.header for column in columns if column.is_empty()]
    if _table_width(filled) <= console.width:
        console.print(_make_table(listing.title, filled))
    else:
        _show_blocks(console, listing.title, filled)
    if empty:
        _show_packed(console, [f"0 or empty: {empty[0]}", *empty[1:]], between=", ")


def _table_width(columns: Sequence[_Column]) -> int:
    """Return the characters of a table with these columns, and two between them."""
    return sum(column.needed_width() + 2 for column in columns)


def _rows_of(columns: Sequence[_Column]) -> Iterator[tuple[str, ...]]:
    return zip(*(column.texts for column in columns), strict=True)


def _make_table(title: str, columns: Sequence[_Column]) -> Table:
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        table.add_column(
            Text(column.field.header),
            justify="right" if column.field.kind == "number" else "left",
            no_wrap=column.field.kind != "sentence",
            min_width=column.needed_width(),
        )
    for row in _rows_of(columns):
        # As Text, not as str: rich would take brackets in a name for its own markup.
        table.add_row(*(Text(text) for text in row))
    return table


def _show_blocks(console: Console, title: str, columns: Sequence[_Column]) -> None:
    """Print each row as a block: names and numbers with their headers, then each sentence on lines of its own."""
    if title:
        console.print(Text(title, style="italic"), soft_wrap=True)
    for row in _rows_of(columns):
        pairs = []
        sentences = []
        for column, text in zip(columns, row, strict=True):
            header = column.field.header
            if not text:
                continue
            if column.field.kind == "sentence":
                sentences.append(f"{header}: {text}")
                continue
            # A list has a line for each item: each gets the header.
            pairs += [f"{header} {line.rstrip()}" for line in text.split("\n")]
        _show_packed(console, pairs, between="  ")
        for sentence in sentences:
            _show_wrapped(console, sentence)


def _show_wrapped(console: Console, sentence: str) -> None:
    """Print a sentence on as many lines as it needs, indented."""
    for number, line in enumerate(Text(sentence).wrap(console, console.width - 4)):
        line.rstrip()
        console.print(Text("    " if number else "  ") + line, soft_wrap=True)


def _show_packed(console: Console, parts: list[str], *, between: str) -> None:
    """Print parts on as few lines as they need; none is split, and all lines but the first are indented."""
    line = ""
    for part in parts:
        if not line:
            line = part
        elif cell_len(f"{line}{between}{part}") <= console.width:
            line = f"{line}{between}{part}"
        else:
            console.print(Text(line), soft_wrap=True)
            line = f"  {part}"
    console.print(Text(line), soft_wrap=True)
