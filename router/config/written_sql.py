"""Check SQL, DDL and names of fields as far as this needs no Spark. What Spark might take is never refused.

In: the tree of a configuration. Out: findings at their places, and notes where only Spark can tell.
"""

from __future__ import annotations

import logging
import re
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from router.api.parts import Decoder
from router.config.models import renamed_fields
from router.config.validation import Finding, read_sound
from router.config.yaml_tree import Items, Keys, Scalar, YamlNode, child_nodes, plain_data
from router.errors import RouterError, first_line
from router.record import RECORD
from router.registry import suggest_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from sqlglot.errors import ParseError

    from router.registry import KeyPath, Registry

Fields: TypeAlias = "dict[str, Fields | None]"
"""Names in small letters, and the fields inside of those that are structs, or arrays of structs."""
ONLY_SPARK = frozenset({"geography", "geometry", "time", "variant", "void"})
"""Types of Spark that sqlglot may not know."""
ONLY_SQLGLOT = re.compile(r"(?i)(^|[<,]\s*)(select|not)(?=\s*:|\s)")
"""Names of fields in a schema that sqlglot takes for words of SQL, and Spark for names."""
UNFINISHED_ENDS = frozenset(
    {"AND", "OR", "EQ", "NEQ", "GT", "GTE", "LT", "LTE", "PLUS", "DASH", "SLASH", "COMMA", "DOT"}
)
"""What sqlglot calls the signs and words that no expression ends with."""
OPENING_BRACKETS = ("(", "<")
BRACKET_PAIRS = {")": "(", "]": "["}
IN_TEMPLATE = re.compile(r"\{event\.([A-Za-z_]\w*)")
FIELD_STEP = re.compile(r"`([^`]+)`|([^`.]+)")
"""A name on the way to a field: event, `app.version`."""
NAMED_COLUMN = re.compile(r"(?:.*\bAS\s+|(?:event\.)?)`?(\w+)`?\s*", re.IGNORECASE | re.DOTALL)
WORDS_OF_SQL = frozenset({"event", "event_key", "true", "false", "null", "localtimestamp", "session_user", "user"})
"""Names that stand alone in SQL and may be no columns."""
SPARK_DECIDES = "Spark decides: --plan"


def check_written_sql(root: YamlNode, registry: Registry, folder: Path) -> tuple[list[Finding], list[Finding]]:
    """Return the findings that are certain, and notes on what only Spark can tell; `folder` is the configuration's."""
    check = _Check(registry)
    check.check_all(root, folder)
    return check.findings, check.notes


class _Check:
    """One look at a configuration; `fields` are those of the events in small letters, None if they are not known."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.findings: list[Finding] = []
        self.notes: list[Finding] = []
        self.fields: Fields | None = None
        self.made: dict[str, list[str] | None] = {}
        """The columns of each route, and of each table that a sink names, as far as they are certain."""

    def check_all(self, root: YamlNode, folder: Path) -> None:
        """Look at decoder, routes and views; what is not as the models want it is reported by them."""
        is_sound = self._read_files(_value_at(root, "decode"), folder)
        for loc, kind, node in self._part_texts("decoder", _value_at(root, "decode"), ("decode",)):
            if kind == "ddl":
                self._read_ddl(loc, node.text)
                # One inside of another, such as `by_topic`, makes some of the events only.
                if len(loc) > 3 or "keyed" in loc:
                    self.fields = None
        # Of a decoder with two schemas nobody knows the fields.
        if not is_sound:
            self.fields = None
        for number, route in enumerate(_items_of(_value_at(root, "routes"))):
            self._check_route(route, ("routes", number))
        for number, expectation in enumerate(_items_of(_value_at(root, "expectations"))):
            self._check_sql(("expectations", number, "sql"), _value_at(expectation, "sql"))
        # The columns of a query are those of its tables.
        self.fields = None
        for part in ("let", "views"):
            for number, item in enumerate(_items_of(_value_at(root, part))):
                tree = self._check_sql((part, number, "sql"), _value_at(item, "sql"))
                if part == "views" and tree is not None:
                    self._check_view((part, number, "sql"), _value_at(item, "from"), tree)
                self._check_expectations(item, (part, number))

    def _read_files(self, node: YamlNode | None, folder: Path) -> bool:
        """Let the decoder read its fields from files beside the configuration, if it has such; say if it is one."""
        read = partial(self.registry.resolve, Decoder)  # type: ignore[type-abstract]
        decoder = None if node is None else read_sound(read, plain_data(node), depth=2)
        if decoder is None:
            return False
        try:
            event = decoder.known_fields(folder)
        except (RouterError, OSError, ValueError) as error:
            self._add_finding(("decode",), first_line(error), "", "value")
            return True
        if isinstance(event, str):
            self._read_ddl(("decode",), event)
        elif event is not None:
            self.fields = _fields_of(event)
        return True

    def _check_route(self, route: YamlNode, loc: KeyPath) -> None:
        fields = self.fields
        select = _value_at(route, "select")
        texts = tuple(item.text for item in _items_of(select) if isinstance(item, Scalar))
        renamed = [name.lower() for name in renamed_fields(texts)]
        columns = self._columns_of_route(select, fields, has_lookup=_value_at(route, "lookup") is not None)
        for place, kind, node in self._part_texts("rule", _value_at(route, "match"), (*loc, "match")):
            self._check_text(kind, place, node, columns)
        for number, item in enumerate(_items_of(select)):
            self._check_sql((*loc, "select", number), item)
        self._check_expectations(route, loc)
        self._note_columns(_value_at(route, "name"), columns)
        for number, sink in enumerate(_items_of(_value_at(route, "sinks"))):
            place = (*loc, "sinks", number)
            for entry in sink.entries.values() if isinstance(sink, Keys) else ():
                self._note_columns(_value_at(entry.value, "table") or entry.value, columns)
            for inner, kind, node in self._part_texts("sink", sink, place):
                self._check_text(kind, inner, node, columns, renamed)
            self._check_templates(place, sink, columns)

    def _note_columns(self, node: YamlNode | None, columns: list[str] | None) -> None:
        """Note the columns of a route or a table; those that two make are not certain."""
        if isinstance(node, Scalar):
            self.made[node.text] = None if node.text in self.made else columns

    def _check_view(self, loc: KeyPath, source: YamlNode | None, tree: Any) -> None:
        """Note columns of a view over one route or table that this does not make: others may have made them before."""
        from sqlglot import exp  # noqa: PLC0415

        if isinstance(source, Keys):
            source = _value_at(source, "route") or _value_at(source, "tables")
        if isinstance(source, Items) and len(source.items) == 1:
            source = source.items[0]
        columns = self.made.get(source.text) if isinstance(source, Scalar) else None
        tables = [*tree.find_all(exp.Table, exp.Select, exp.Lateral, exp.CTE)]
        if columns is None or len(tables) != 2 or tables[1].name != "source":
            return
        known = [*columns, "table", "valid_from", "valid_to", "is_current", *(one.alias for one in tree.expressions)]
        names = []
        for column in tree.find_all(exp.Column):
            parts = [part.name for part in column.parts]
            is_qualified = len(parts) > 1 and parts[0].lower() in ("source", tables[1].alias.lower())
            names.append(parts[1] if is_qualified else parts[0])
        for name in dict.fromkeys(names):
            if name.lower() not in {one.lower() for one in known} and not name.startswith("_"):
                hint = f"{suggest_names(name, columns, 'its columns')}; {SPARK_DECIDES}"
                self.notes.append(Finding(loc, f"`source` may have no column `{name}`", hint, code="field"))

    def _check_expectations(self, item: YamlNode, loc: KeyPath) -> None:
        for number, expectation in enumerate(_items_of(_value_at(item, "expect"))):
            self._check_sql((*loc, "expect", number, "sql"), _value_at(expectation, "sql"))

    def _part_texts(self, kind: str, node: YamlNode | None, loc: KeyPath) -> Iterator[tuple[KeyPath, str, Scalar]]:
        """Yield the texts of a part, and of parts inside of it, whose kinds the part tells (`texts`)."""
        if isinstance(node, Items):
            for number, item in enumerate(node.items):
                yield from self._part_texts(kind, item, (*loc, number))
        if not isinstance(node, Keys):
            return
        for name, entry in node.entries.items():
            place = (*loc, name)
            part = self.registry.entries[kind].get(name)
            if part is None:
                continue
            options = entry.value
            texts = part.part.texts
            if not isinstance(options, Keys):
                yield from _scalars_of(texts.get(part.part.main_option or ""), options, place)
                yield from self._part_texts(kind, options, place)
                continue
            yield from self._part_texts(kind, options, place)
            for option, inner in options.entries.items():
                yield from _scalars_of(texts.get(option), inner.value, (*place, option))
                yield from self._part_texts(kind, inner.value, (*place, option))

    def _name_in_order(self, loc: KeyPath, name: str, columns: list[str]) -> None:
        if name.lower() in (*columns, *RECORD, *WORDS_OF_SQL) or name.lower().startswith(("_", "current_")):
            return
        candidates = [*columns, *(f"event.{field}" for field in self.fields or ()), *RECORD]
        what = f"`{name}` is no column of the route or the record"
        self._add_finding(loc, what, suggest_names(name, candidates, "columns, and fields of the event"))

    def _check_text(
        self, kind: str, loc: KeyPath, node: Scalar, columns: list[str] | None, renamed: Collection[str] = ()
    ) -> None:
        if kind == "sql":
            self._check_sql(loc, node)
        elif kind == "field" and node.text.lower().startswith("event."):
            self._check_field(loc, [*map("".join, FIELD_STEP.findall(node.text))][1:], self.fields)
        elif kind == "order":
            self._check_sql(loc, node)
            is_name = re.fullmatch(r"[A-Za-z_]\w*", node.text)
            if is_name and columns is not None and self.fields is not None:
                self._name_in_order(loc, node.text, columns)
        elif kind == "column" and columns is not None and re.fullmatch(r"[\w.]+", node.text):
            name = node.text.removeprefix("event.").split(".")[0]
            if name.lower() not in (*columns, *renamed):
                self._add_finding(loc, f"the route has no column `{name}`", suggest_names(name, columns, "its columns"))

    def _check_templates(self, loc: KeyPath, node: YamlNode, columns: list[str] | None) -> None:
        """Look at the fields in braces, which are fields of the event or columns of the route."""
        if columns is None or self.fields is None:
            return
        for key, child in child_nodes(node):
            place: KeyPath = (*loc, int(key) if isinstance(node, Items) else key)
            self._check_templates(place, child, columns)
            if not isinstance(child, Scalar) or child.broken or child.tainted:
                continue
            known = {**dict.fromkeys(columns), **self.fields}
            for name in dict.fromkeys(IN_TEMPLATE.findall(child.text)):
                self._check_field(place, [name], known)

    def _columns_of_route(self, select: YamlNode | None, fields: Fields | None, has_lookup: bool) -> list[str] | None:
        """Return the columns of a route in small letters; None if they are not certain."""
        if fields is None or has_lookup:
            return None
        if select is None:
            return [*fields]
        columns: list[str] = []
        for item in _items_of(select):
            # A remark could hold what looks like a name.
            if not isinstance(item, Scalar) or item.broken or item.tainted or "--" in item.text or "/*" in item.text:
                return None
            if item.text.strip().lower() == "event.*":
                columns += fields
                continue
            named = NAMED_COLUMN.fullmatch(item.text)
            if named is None:
                return None
            columns.append(named[1].lower())
        return columns

    def _check_field(self, loc: KeyPath, path: Sequence[str], fields: Fields | None) -> None:
        """Look for a field of events, by the names on the way to it."""
        above = ""
        for name in path:
            # Decoders add fields of their own, such as _rescued.
            if fields is None or name.startswith("_"):
                return
            if name.lower() not in fields:
                whose = f"`{above}` has" if above else "events have"
                self._add_finding(loc, f"{whose} no field `{name}`", suggest_names(name, fields, "the fields"))
                return
            fields = fields[name.lower()]
            above = f"{above}.{name}" if above else name

    def _add_finding(self, loc: KeyPath, what: str, hint: str, code: str = "field") -> None:
        self.findings.append(Finding(loc, what, hint, code=code))

    def _read_ddl(self, loc: KeyPath, ddl: str) -> None:
        """Read the fields of a schema, which is a list of columns or a struct of them."""
        from sqlglot import exp  # noqa: PLC0415
        from sqlglot.errors import ParseError, SqlglotError  # noqa: PLC0415

        ddl = ddl.strip()
        if ddl.lower().startswith("struct<") and ddl.endswith(">"):
            ddl = ddl[len("struct<") : -1]
        quoted = ONLY_SQLGLOT.sub(r"\1`\2`", ddl)
        sql = f"CAST(x AS STRUCT<{quoted}>)"
        words = []
        try:
            tokens = _spark_dialect().tokenize(sql)
            (tree,) = _spark_dialect().parser().parse(tokens, sql)
            if isinstance(tree, exp.Cast):
                self.fields = _fields_of_ddl(tree.to)
                return
        except ParseError as error:
            words = _words_at(error, tokens)
            # A type that is no type hides no name of a field.
            self.fields = _first_words(tokens)
        except SqlglotError:  # it cannot even be split into words
            words = []
        if words and not ONLY_SPARK & {word.lower() for word in words}:
            what = f"`{' '.join(words)}`: no type that Spark knows, or no comma before it"
            self._add_finding(loc, what, "write Spark DDL, such as game string, amount double", "sql")
        else:
            self.notes.append(Finding(loc, "this may be no schema", SPARK_DECIDES, code="sql"))

    def _check_sql(self, loc: KeyPath, node: YamlNode | None) -> Any:
        """Look at brackets, the last word, and fields of `event`; return its tree, None if there is none.

        A message shows no text that a variable gave.
        """
        if not isinstance(node, Scalar) or node.broken or node.tainted or not node.text.strip():
            return None
        from sqlglot.errors import SqlglotError  # noqa: PLC0415

        try:
            tokens = _spark_dialect().tokenize(node.text)
        except SqlglotError:
            self.notes.append(Finding(loc, "this may be no SQL", SPARK_DECIDES, code="sql"))
            return None
        faults = [*_grammar_faults(tokens)]
        for fault in faults:
            self._add_finding(loc, fault, "", "sql")
        for path in dict.fromkeys(_fields_of_event(tokens)):
            self._check_field(loc, path, self.fields)
        if faults:
            return None
        try:
            return next(iter(_spark_dialect().parser().parse(tokens, node.text)), None)
        except (SqlglotError, RecursionError):
            self.notes.append(Finding(loc, "this may be no SQL", SPARK_DECIDES, code="sql"))
            return None


@cache
def _spark_dialect() -> Any:
    """Return sqlglot's dialect of Spark. Imported late: it takes half a second, and a configuration may have no SQL."""
    from sqlglot.dialects.spark import Spark  # noqa: PLC0415

    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    return Spark()


def _words_at(error: ParseError, tokens: list[Any]) -> list[str]:
    """Return the words of a schema at which it cannot be read any further: a type, or a field with it."""
    fault = error.errors[0]
    words: list[str] = []
    for token in tokens:
        is_there = (token.line, token.col) == (fault["line"], fault["col"])
        if token.text == ":" or not (is_there or words):
            continue
        if not re.fullmatch(r"\w+", token.text):
            break
        words.append(token.text)
    return words


def _fields_of(event: Any) -> Fields:
    """Return the fields of a struct of Spark, with those inside."""
    fields: Fields = {}
    for field in event:
        kind = field.dataType
        while kind.typeName() == "array":
            kind = kind.elementType
        fields[field.name.lower()] = _fields_of(kind) if kind.typeName() == "struct" else None
    return fields


def _fields_of_ddl(struct: Any) -> Fields:
    """Return the fields of a struct as sqlglot has read it, with those inside."""
    fields: Fields = {}
    for column in struct.expressions:
        kind = column.args.get("kind")
        while kind is not None and kind.this.name == "ARRAY":
            kind = next(iter(kind.expressions), None)
        is_struct = kind is not None and kind.this.name == "STRUCT"
        fields[column.name.lower()] = _fields_of_ddl(kind) if is_struct else None
    return fields


def _first_words(tokens: list[Any]) -> Fields | None:
    """Return the first words of the parts of a schema, the names of its fields; None if its brackets do not pair."""
    depth = 0
    words: Fields = {}
    # The tokens are those of CAST(x AS STRUCT<...>).
    for before, token in pairwise(tokens):
        if before.text in OPENING_BRACKETS:
            depth += 1
        elif before.text and not before.text.strip(">)"):
            depth -= len(before.text)
        if depth == 2 and before.text in ("<", ","):
            words[token.text.lower()] = None
    return words if depth == 1 and all(re.fullmatch(r"\w+", word) for word in words) else None


def _grammar_faults(tokens: list[Any]) -> Iterator[str]:
    """Yield what no grammar takes: brackets that do not pair, and a sign at the end that wants something after it."""
    opened: list[Any] = []
    for token in tokens:
        if token.token_type.name in ("L_PAREN", "L_BRACKET"):
            opened.append(token)
        elif token.token_type.name in ("R_PAREN", "R_BRACKET"):
            if not opened or opened[-1].text != BRACKET_PAIRS[token.text]:
                yield f"the {token.text} at character {token.start + 1} closes nothing"
                return
            opened.pop()
    if opened:
        yield f"the {opened[-1].text} at character {opened[-1].start + 1} is not closed"
        return
    if len(tokens) > 1 and tokens[-1].token_type.name in UNFINISHED_ENDS and tokens[-2].text.upper() not in (".", "AS"):
        yield f"ends with {tokens[-1].text}: something is missing after it"


def _fields_of_event(tokens: list[Any]) -> Iterator[tuple[str, ...]]:
    """Yield the fields of `event`, as (gamer, id), unless the name may stand for something else there."""
    kinds = [token.token_type.name for token in tokens]
    if "ARROW" in kinds or "SELECT" in kinds:
        return
    for place in range(len(tokens) - 2):
        follows_dot = place > 0 and kinds[place - 1] == "DOT"
        if tokens[place].text.lower() != "event" or kinds[place] == "STRING" or follows_dot:
            continue
        names = []
        after = place + 1
        while kinds[after : after + 1] == ["DOT"] and re.fullmatch(r"[A-Za-z_]\w*", _text_at(tokens, after + 1)):
            names.append(tokens[after + 1].text)
            after += 2
        # The last one may be the name of a function, or begin something else.
        if names and kinds[after : after + 1] == ["L_PAREN"]:
            names.pop()
        if names:
            yield tuple(names)


def _text_at(tokens: list[Any], place: int) -> str:
    return str(tokens[place].text) if place < len(tokens) else ""


def _scalars_of(kind: str | None, node: YamlNode, loc: KeyPath) -> Iterator[tuple[KeyPath, str, Scalar]]:
    """Yield a text of some kind, or those of a list, unless a variable gave it."""
    if kind is None:
        return
    if isinstance(node, Scalar) and not node.broken and not node.tainted and node.text:
        yield loc, kind, node
    for number, item in enumerate(_items_of(node)):
        yield from _scalars_of(kind, item, (*loc, number))


def _value_at(node: YamlNode | None, key: str) -> YamlNode | None:
    if isinstance(node, Keys) and key in node.entries:
        return node.entries[key].value
    return None


def _items_of(node: YamlNode | None) -> tuple[YamlNode, ...]:
    return node.items if isinstance(node, Items) else ()
