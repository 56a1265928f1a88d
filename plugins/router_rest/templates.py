"""The URLs and bodies of calls: templates whose fields stay what they are, whatever the data holds.

Templates are read when the configuration is, without Spark, and become Spark's own expressions on the driver; `Body`
joins the encoded rows of a call on executors.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote_plus, unquote
from uuid import uuid4

import msgspec
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router import Placeholder, StartError, parse_template, tried
from router_encoders.outbox_rows import OPTIONS
from router_encoders.templates import text_column
from router_http.options import checked_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

Pieces = tuple["str | Placeholder", ...]

MAX_URL_CHARS = 8000
"""Characters of a URL at most: RFC 9110, 4.1 asks every server to take as many."""
DOT_SEGMENTS = (".", "..")
"""Segments that clients and servers remove from a path, the second one with the segment before it."""
WAY_UP_PATTERN = r"(^|[/\\\\])\.\.?($|[/\\\\])"
"""`.` or `..` between slashes: many servers and proxies decode `%2F` before they look for it."""
_FIELD_HOLE = "\x00"
_URL_PATTERN = re.compile(
    r"(?P<scheme>https?)://(?P<host>[^/?#]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?", re.IGNORECASE
)
_ENCODED_PATTERN = r"%[0-9A-Fa-f]{2}"
_ALLOWED_CHARS = {
    "host": re.compile(r"[A-Za-z0-9._:\[\]-]*"),
    "path": re.compile(rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|{_ENCODED_PATTERN})*"),  # RFC 3986, 3.3
    "query": re.compile(rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|{_ENCODED_PATTERN})*"),  # 3.4
}
"""The characters that need no escape in the parts of a URL."""


@dataclass(frozen=True)
class UrlTemplate:
    """A URL with fields: a scheme, a host, segments of a path, and a query (None: there is no question mark)."""

    scheme: str
    host: Pieces
    segments: tuple[Pieces, ...]
    query: Pieces | None

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the columns that the template names, each once."""
        paths = [*fields_in(self.host), *self.in_path, *fields_in(self.query or ())]
        return tuple(dict.fromkeys(paths))

    @property
    def in_path(self) -> tuple[str, ...]:
        """Return the columns whose values are in the path."""
        return tuple(chain.from_iterable(fields_in(segment) for segment in self.segments))

    @property
    def has_fixed_host(self) -> bool:
        """Say whether the host is the same for all rows."""
        return not any(fields_in(self.host))

    @property
    def origin(self) -> str:
        """Return scheme, host and port in lower case; fields in the host as they are written."""
        host = "".join(piece.lower() if isinstance(piece, str) else f"{{{piece.path}}}" for piece in self.host)
        if re.search(r":[0-9]+$", host) is None:
            host += {"http": ":80", "https": ":443"}[self.scheme]
        return f"{self.scheme}://{host}"

    @property
    def after_host(self) -> Pieces:
        """Return path and query in order."""
        pieces: list[str | Placeholder] = []
        for segment in self.segments:
            pieces += ("/", *segment)
        if self.query is not None:
            pieces += ("?", *self.query)
        return tuple(pieces)


def fields_in(pieces: Iterable[str | Placeholder]) -> Iterator[str]:
    """Yield the columns that pieces name."""
    return (piece.path for piece in pieces if isinstance(piece, Placeholder))


def parse_url(text: str) -> UrlTemplate:
    """Return the template of a URL; raise ValueError, which does not quote it: URLs may hold secrets."""
    pieces = parse_template(text)
    if _FIELD_HOLE in text:
        raise ValueError("a URL has no control characters")
    # The URL is read with a hole for each field, and the fields are put into its parts afterwards.
    shape = "".join(piece if isinstance(piece, str) else _FIELD_HOLE for piece in pieces)
    parts = _URL_PATTERN.fullmatch(shape)
    if parts is None or not parts["host"]:
        raise ValueError("a URL is http(s)://host[:port][/path][?query], and no field stands before the host")
    scheme = parts["scheme"].lower()
    host = parts["host"]
    path = parts["path"] or ""
    query = parts["query"]
    if "@" in host:
        raise ValueError("a URL holds no user and password: URLs are logged; use `auth`")
    _check_literal("host", host)
    _check_literal("path", path)
    _check_literal("query", query or "")
    if _FIELD_HOLE not in host:
        checked_url(f"{scheme}://{host}")
    segments = path.split("/")[1:]
    if any(unquote(segment) in DOT_SEGMENTS for segment in segments):
        raise ValueError("a path has no segments `.` and `..`: write what they lead to")
    fields_in_order = (piece for piece in pieces if isinstance(piece, Placeholder))
    return UrlTemplate(
        scheme,
        _fill_holes(host, fields_in_order),
        tuple(_fill_holes(segment, fields_in_order) for segment in segments),
        None if query is None else _fill_holes(query, fields_in_order),
    )


def _check_literal(part: str, literal: str) -> None:
    wrong = _ALLOWED_CHARS[part].sub("", literal.replace(_FIELD_HOLE, "-"))
    if wrong:
        raise ValueError(f"the {part} of a URL cannot have {wrong[0]!r} as it is: percent-encode it")


def _fill_holes(text: str, fields: Iterator[Placeholder]) -> Pieces:
    """Return a text with the next fields in place of its holes."""
    pieces: list[str | Placeholder] = []
    for position, literal in enumerate(text.split(_FIELD_HOLE)):
        if position:
            pieces.append(next(fields))
        if literal:
            pieces.append(literal)
    return tuple(pieces)


_HEADER_FIELD = re.compile(r"\{\s*(?:event\.[^{}]+|_[a-z]+)\s*\}")
HEADER_TEXT = r"\A[\x21-\x7e][\x20-\x7e]*\z"
"""The values that a header made of data may have: no line break, no control, nothing that servers read differently.

None begins with a blank: it would not arrive (RFC 9110, 5.5), and `requests` refuses it.
"""


def has_header_field(value: str) -> bool:
    """Say whether a header is made of data: it has `{event.NAME}` or `{_topic}` in it; a secret may hold braces."""
    return _HEADER_FIELD.search(value) is not None


CALL_METHODS = ("POST", "PUT", "PATCH", "DELETE")
"""The methods of calls: those that may have a body and change something."""


def to_column(
    template: UrlTemplate,
    hosts: Iterable[str] = (),
    headers: Mapping[str, str] | None = None,
    *,
    method: str | None = None,
    dots: bool = False,
) -> Column:
    """Return a struct of `target` and `fault`, of which one is null.

    The whole is null if a field cannot be evaluated. The lines of `target` are the URL, or nothing if it has no fields,
    the method, where SQL gives it, and the values of `headers`, whose templates are given by name. `dots` allows values
    in the path that a server may read as a way up.

    In the URL values are percent-encoded, except letters, digits and -._*, so that each stays one segment of the path
    or one value of the query. Needs the columns of the template's fields, and `_offset`.
    """
    after_host = [piece if isinstance(piece, str) else _escape_field(piece) for piece in template.after_host]
    written = text_column([f"{template.scheme}://", _host_column(template), *after_host])
    faults = [*_url_faults(template, [*hosts], dots=dots)]
    lines = [written if template.fields else F.lit("")]
    if method is not None:
        method_column = F.expr(method).cast("string")
        lines.append(method_column)
        unknown = F.lit(f"its method is none of {', '.join(CALL_METHODS)}")
        faults.append(F.when(method_column.isNull(), F.lit("its method is null")))
        faults.append(F.when(~method_column.isin(*CALL_METHODS), unknown))
    for name, header in (headers or {}).items():
        value = text_column(parse_template(header))
        lines.append(value)
        refused = (
            f"the header {name} would be empty, begin with a blank, "
            "or have a line break, a control or signs beyond ASCII"
        )
        faults.append(F.when(value.isNull(), F.lit(f"a field of the header {name} is null")))
        faults.append(F.when(~value.rlike(HEADER_TEXT), F.lit(refused)))
    faults.append(F.when(F.length(written) > MAX_URL_CHARS, F.lit(f"its URL has more than {MAX_URL_CHARS} characters")))
    fault = F.coalesce(*faults, F.lit(None).cast("string"))
    target = F.when(fault.isNull(), F.concat_ws("\n", *lines))
    to = F.struct(target.alias("target"), fault.alias("fault"))
    return tried(F.when(F.col("_offset") >= 0, to))  # always true, which no optimiser knows: see `tried`


def _url_faults(template: UrlTemplate, hosts: list[str], *, dots: bool) -> Iterator[Column]:
    """Yield reasons why a row has no URL, or null; the first that is not null counts."""
    # The value of a null or empty field would make the URL of something else: its parent, or a list of all.
    for path in template.fields:
        named = f"the URL's field {{{path}}}"
        value = _field_text(path)
        yield F.when(value.isNull(), F.lit(f"{named} is null"))
        yield F.when(~F.is_valid_utf8(value), F.lit(f"{named} is not UTF-8"))
        if path in template.in_path:
            yield F.when(value == "", F.lit(f"{named} is empty"))
    for segment in template.segments:
        if not any(fields_in(segment)):
            continue
        plain = text_column([unquote(piece) if isinstance(piece, str) else piece for piece in segment])
        yield F.when(plain.isin(*DOT_SEGMENTS), F.lit("the URL's path would have the segment `.` or `..`"))
        if not dots:
            way_up = F.lit("a value in the URL's path holds `../` or the like, which servers decode and follow")
            yield F.when(plain.rlike(WAY_UP_PATTERN), way_up)
    if not template.has_fixed_host:
        yield F.when(~_host_column(template).isin(*hosts), F.lit("the URL's host is none of `hosts`"))


def _host_column(template: UrlTemplate) -> Column:
    """Return the host, as it is compared and called: its values are not escaped, because they have to be in a list."""
    return F.lower(text_column(template.host))


def _escape_field(field: Placeholder) -> Column:
    # url_encode writes a blank as a plus, as forms do, and every other plus as %2B
    return F.replace(F.url_encode(_field_text(field.path)), F.lit("+"), F.lit("%20"))


def _field_text(path: str) -> Column:
    return F.col(path).cast("string")


@dataclass(frozen=True)
class Text:
    """A text with fields in it: a JSON string inside of a JSON template, or with `plain` what it is."""

    pieces: Pieces
    plain: bool = False


@dataclass(frozen=True)
class Form:
    """The fields of a URL-encoded form by name, each a text with fields in it."""

    texts: tuple[tuple[str, Pieces], ...]


BodyPiece = str | Placeholder | Text | Form
"""Ready JSON, a field whose value becomes JSON, a text, or the fields of a form."""


def parse_text(text: str) -> tuple[BodyPiece, ...]:
    """Return the pieces of a text that is the whole body of a row; `{{` is a brace. Raises ValueError."""
    return (Text(tuple(parse_template(text)), plain=True),)


def parse_form(texts: Mapping[str, str]) -> tuple[BodyPiece, ...]:
    """Return the pieces of a form that is the whole body of a row. Raises ValueError."""
    return (Form(tuple((name, tuple(parse_template(text))) for name, text in texts.items())),)


def parse_json(template: Any) -> tuple[BodyPiece, ...]:
    """Return the pieces of a JSON template: maps and lists whose texts may hold fields.

    `"{event.n}"` is the field's value, whatever its type; in a longer text fields are text. `{{` and `}}` are
    braces. Raises ValueError.
    """
    mark = uuid4().hex  # no text holds it
    fields: list[BodyPiece] = []

    def mark_fields(text: str) -> str:
        pieces = parse_template(text)
        if not any(fields_in(pieces)):
            return "".join(map(str, pieces))
        fields.append(pieces[0] if len(pieces) == 1 else Text(tuple(pieces)))
        return mark

    marked = json.dumps(_map_texts(template, mark_fields), separators=(",", ":"), allow_nan=False)
    first, *literals = marked.split(f'"{mark}"')
    pieces: list[BodyPiece] = [first]
    for field, literal in zip(fields, literals, strict=True):
        pieces += [field, literal]
    return tuple(piece for piece in pieces if piece != "")


def _map_texts(node: Any, change: Callable[[str], Any]) -> Any:
    """Return JSON with other values in place of its texts, but for names."""
    if isinstance(node, dict):
        return {name: _map_texts(value, change) for name, value in node.items()}
    if isinstance(node, list):
        return [_map_texts(value, change) for value in node]
    return change(node) if isinstance(node, str) else node


def body_fields(pieces: Iterable[BodyPiece]) -> tuple[list[str], list[str]]:
    """Return the columns that a template needs: those of any type, and those that become text."""
    of_any_type: list[str] = []
    as_text: list[str] = []
    for piece in pieces:
        if isinstance(piece, Placeholder):
            of_any_type.append(piece.path)
        elif isinstance(piece, Text):
            as_text += fields_in(piece.pieces)
        elif isinstance(piece, Form):
            for _, text in piece.texts:
                as_text += fields_in(text)
    return of_any_type, as_text


def body_column(pieces: Iterable[BodyPiece], names: Iterable[str] = ()) -> Column:
    """Return the bytes that a template makes of each row; null if a field cannot be evaluated. Needs `_offset`.

    An Encoding gives the `names` of the route's columns; a template has its own.
    A field that is null is JSON's null, nothing inside of a text, and without its name in a form.
    """
    whole = F.concat(*(_piece_column(piece) for piece in pieces))
    return tried(F.when(F.col("_offset") >= 0, whole.cast("binary")))  # always true: see `tried`


def _join_pieces(pieces: Pieces) -> Column:
    texts = [F.lit(piece) if isinstance(piece, str) else _field_text(piece.path) for piece in pieces]
    return F.concat_ws("", *texts)


def _form_pair(name: str, text: Pieces) -> Column:
    """Return a field of a form; null, which concat_ws leaves out, where it is one column that is null."""
    value = _join_pieces(text)
    if len(text) == 1 and isinstance(text[0], Placeholder):
        value = _field_text(text[0].path)
    return F.concat(F.lit(f"{quote_plus(name)}="), F.url_encode(value))


def _piece_column(piece: BodyPiece) -> Column:
    if isinstance(piece, str):
        return F.lit(piece)
    if isinstance(piece, Form):
        return F.concat_ws("&", *(_form_pair(name, text) for name, text in piece.texts))
    if isinstance(piece, Text) and piece.plain:
        return _join_pieces(piece.pieces)
    # Spark writes no JSON of a value alone: take it out of an object that has nothing else.
    value = F.col(piece.path) if isinstance(piece, Placeholder) else _join_pieces(piece.pieces)
    written = F.to_json(F.struct(value.alias("v")), {**OPTIONS, "ignoreNullFields": "false"})
    return F.substr(written, F.lit(len('{"v":') + 1), F.length(written) - len('{"v":}'))


def check_fields(seen: DataFrame, what: str, paths: Iterable[str], *, one_value: bool = True) -> None:
    """Raise StartError, naming the column, for one that is not there or, with `one_value`, holds several."""
    for path in paths:
        named = f"{what}: {{{path}}}"
        try:
            fields = seen.select(F.col(path)).schema.fields
        except (AnalysisException, ParseException):
            others = ", ".join(seen.columns)
            raise StartError(f"{named}: there is no such column; the route has {others[:500]}") from None
        if path.endswith("*"):
            raise StartError(f"{named}: name one column")
        kind = fields[0].dataType
        if one_value and isinstance(kind, (T.StructType, T.ArrayType, T.MapType)):
            raise StartError(f"{named}: it is {kind.simpleString()[:100]}, not one value; use a field of it")


BodyForm = Literal["object", "array", "ndjson"]
"""How the rows of a call are joined; texts of several rows are also lines."""

ROWS_MARK = "$rows"
"""What stands for the array of rows in what is wrapped around it."""
MEDIA_TYPES = {
    "object": "application/json",
    "array": "application/json",
    "ndjson": "application/x-ndjson",
    "text": "text/plain; charset=utf-8",
    "urlencoded": "application/x-www-form-urlencoded",
}


@dataclass(frozen=True)
class Body:
    """How rows are joined to one body; it is pickled to tasks.

    `several`: it may have more than one row. `lines`: those that a row is, where lines tell rows apart. The same rows
    always make the same bytes.
    """

    content_type: str
    before: bytes = b""
    between: bytes = b""
    after: bytes = b""
    several: bool = False
    compressed: bool = False
    lines: int = 1

    def join_rows(self, rows: Sequence[bytes]) -> bytes:
        """Return the body of a call, not yet compressed: keys of calls are made of these bytes."""
        if not rows or (len(rows) > 1 and not self.several):
            raise ValueError(f"a body of {len(rows)} rows")
        return b"".join((self.before, self.between.join(rows), self.after))

    def frame_bytes(self, rows: int) -> int:
        """Return the bytes of a body of so many rows, without the rows."""
        return len(self.before) + len(self.between) * (rows - 1) + len(self.after)

    def row_fault(self, row: bytes) -> str | None:
        """Return the reason why a row cannot be in a body, as it would spoil the others; None if it can."""
        if self.several and not row:
            return "its value is empty"
        if self.between == b"\n" and (row.count(b"\n") != self.lines - 1 or b"\r" in row):
            return "its value has a line break, and each line is a row"
        return None

    def pack_body(self, body: bytes) -> bytes:
        """Return a body as it is sent, compressed where that is configured."""
        return gzip.compress(body, mtime=0) if self.compressed else body

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that say what a body is."""
        headers = {"Content-Type": self.content_type}
        if self.compressed:
            headers["Content-Encoding"] = "gzip"
        return headers


def body_of(form: BodyForm, content_type: str, *, wrap: Any = None, compressed: bool = False, lines: int = 1) -> Body:
    """Return the maker of bodies of a form; `wrap` is JSON with ROWS_MARK once in it, as `check_wrap` allows."""
    if form == "ndjson":
        return Body(content_type, b"", b"\n", b"\n", several=True, compressed=compressed, lines=lines)
    if form == "array":
        before, after = _split_wrap(ROWS_MARK if wrap is None else wrap)
        return Body(content_type, before, b",", after, several=True, compressed=compressed)
    return Body(content_type, compressed=compressed)


def check_wrap(wrap: Any) -> None:
    """Raise ValueError unless the place of the rows is given exactly once."""
    places = len(_split_wrap(wrap)) - 1
    if places != 1:
        raise ValueError(f"the text {ROWS_MARK} stands once for the array of rows, and is here {places} times")


def _split_wrap(wrap: Any) -> list[bytes]:
    """Return the texts before and after the rows."""
    # JSON escapes each NUL of a text, so what is raw is the place of the rows, also where a key says the same.
    marked = _map_texts(wrap, lambda text: msgspec.Raw(b"[\0]") if text == ROWS_MARK else text)
    return msgspec.json.encode(marked).split(b"\0")
