"""`router dead-letters --capture`: a dead letter becomes a case of the route tests beside its configuration.

In come the record and the reason why it was refused, out goes a case that fails until the configuration takes the
record. It is tried before it is written, so that it fails for that reason and no other.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import textwrap
from typing import TYPE_CHECKING, Any

import click

from router.cli import echo_message
from router.cli.dead_letters import shorten_text
from router.cli.masking import Mask
from router.cli.session import spark_session
from router.cli.yaml_text import write_yaml
from router.config.loader import load_config
from router.engine.preflight.route_tests import (
    LETTER_COLUMNS,
    SUFFIX,
    Expected,
    InputRecord,
    RouteTest,
    RouteTests,
    load_tests,
    parse_tests,
    run_tests,
)
from router.errors import ConfigError, StartError, to_printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from router.registry import Registry

FIRST_ITEM = re.compile(r"^tests:[^\S\n]*(?:#.*)?\n(?:[^\S\n]*(?:#.*)?\n)*( *)- ", re.MULTILINE)
"""The beginning of a list of tests that a case can be appended to, and its indentation."""


def capture_record(
    file: Path, registry: Registry, letter: Mapping[str, Any], record: Mapping[str, Any], *, with_values: bool
) -> None:
    """Append a record to the route tests of `file`, as a case that expects it to be no dead letter.

    `letter` has the names that people see of stage, route and sink, and the reason; `record` has the columns of a dead
    letter. Starts Spark. Raises StartError if a route test does not refuse the record, or the masked one, as it was.
    """
    path = file.with_name(f"{file.stem}{SUFFIX}")
    tests = load_tests(path) if path.exists() else RouteTests.model_construct(tests=())
    if path.exists() and tests.tested_configuration(path).resolve() != file.resolve():
        raise StartError(f"{path} tests {tests.tested_configuration(path)}, and no test of {file} can stand there")
    case = make_case(record)
    # Without values the masked record is what is written; the record itself is tried beside it.
    written = case if with_values else make_case(mask_record(record, file))
    if any(other.records == written.records for other in tests.tests):
        raise StartError(f"{path} has this record already: router test {shlex.quote(str(path))}")

    trial = tests.model_copy(update={"tests": (case, written)})
    loaded = load_config(file, registry, environ={**os.environ, **tests.variables})
    click.echo("the case is tried first, which starts Spark", err=True)
    with spark_session(loaded.config) as session:
        tried, tried_as_written = run_tests(loaded, trial, session)
    if tuple(letter[name] for name in LETTER_COLUMNS) not in tried.dead_letters:
        faults = "; ".join(tried.faults) or f"{file} takes it"
        raise StartError(
            f"a route test does not refuse the record as it was refused, and none is written: {faults}; see what would "
            "become of it today: router replay FILE"
        )
    if set(tried_as_written.dead_letters) != set(tried.dead_letters):
        raise StartError("masked, the record is not refused as it was, and no test is written: add --with-values")
    append_case(path, file, tests, written, letter)


def make_case(record: Mapping[str, Any]) -> RouteTest:
    """Return the case of a record, as a route test gives it; raise StartError if it cannot."""
    fields: dict[str, Any] = {}
    try:
        fields["key"] = None if record["key"] is None else record["key"].decode()
        fields["headers"] = {header["key"]: header["value"].decode() for header in record["headers"] or ()}
    except (UnicodeDecodeError, AttributeError):
        raise StartError("a route test cannot have this record: its key or a header is no UTF-8 text") from None
    value = record["value"]
    try:
        fields["value"] = None if value is None else value.decode()
    except UnicodeDecodeError:
        fields["base64"] = base64.b64encode(value).decode()
    topic = (record["topic"] or "record").rpartition("/")[2]
    # The path of a file is one of this machine.
    if topic == record["topic"]:
        fields |= {"topic": topic, "partition": record["partition"]}
    name = f"taken: {topic}, partition {record['partition']}, offset {record['offset']}"
    return RouteTest(name=name, records=(InputRecord(**fields),), expect=Expected(tables=None, sent=None))


def mask_record(record: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return a record with masked value, key and headers; raise StartError if what its bytes mean is unknown."""
    # Rules compare with words of the configuration; nobody learns one from a test beside it.
    mask = Mask(words=frozenset(re.findall(r"[\w.-]+", file.read_text(encoding="utf-8"))))
    headers = [{**header, "value": mask.mask_record(header["value"])} for header in record["headers"] or ()]
    masked = {name: mask.mask_record(record[name]) for name in ("key", "value")}
    return {**record, **masked, "headers": headers}


def write_case(case: RouteTest, letter: Mapping[str, Any]) -> str:
    """Return a case as an item of `tests`, with the reason of its dead letter before it: none is expected."""
    refusal = ", ".join(f"{column} {letter[column]}" for column in LETTER_COLUMNS if letter[column])
    (record,) = case.records
    fields = record.model_dump(exclude_defaults=True) or {"value": None}
    item = write_yaml([{"name": case.name, "records": [fields], "expect": {"tables": None, "sent": None}}])
    return f"# {shorten_text(to_printable(refusal))}\n{item.rstrip()}  # null: not compared\n"


def append_case(path: Path, file: Path, tests: RouteTests, case: RouteTest, letter: Mapping[str, Any]) -> None:
    """Append a case to a file of route tests, and print what to do next; print the case if it cannot be appended."""
    former = path.read_bytes().decode() if path.exists() else ""
    item = write_case(case, letter)
    first_item = FIRST_ITEM.search(former)
    addition = "\n" if former else f"configuration: {json.dumps(file.name)}\ntests:\n"
    addition += textwrap.indent(item, first_item[1] if first_item else "  ")
    try:
        appended = parse_tests((former + addition).removeprefix("\ufeff"), path).tests
    except ConfigError:
        appended = ()
    if appended != (*tests.tests, case):
        click.echo(item, nl=False)
        raise StartError(
            f"{path}: its `tests` are no list at its end that a case can be appended to: add the one above"
        )
    # Appended and not written again: what stands there cannot be lost.
    with path.open("ab") as opened:
        opened.write(addition.encode())
    command = f"router test {shlex.quote(str(path))}"
    echo_message(f"{path}: the case {case.name!r} fails until {file} takes the record; run it: {command}")
