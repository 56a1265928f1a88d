"""`router dead-letters --capture`: a dead letter becomes a case of the route tests beside its configuration.

In come the record and the reason why it was refused, out goes a case that fails until the configuration takes the
record. It is tried before it is written, so that it fails for that reason and no other.
"""

from __future__ import annotations

import base64
import math
import os
import re
import shlex
from typing import TYPE_CHECKING, Any

import click
import yaml

from router.cli import echo_message
from router.cli.dead_letters import shorten_text
from router.cli.masking import Mask, UnmaskableError
from router.cli.session import spark_session
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
    topic = (record["topic"] or "record").rpartition("/")[2]
    name = f"taken: {topic}, partition {record['partition']}, offset {record['offset']}"
    described = [describe_record(record)]
    if not with_values:
        described.append(describe_record(mask_record(record, file)))
    expected = Expected(tables=None, sent=None)
    cases = [RouteTest(name=name, records=(InputRecord(**fields),), expect=expected) for fields in described]
    if path.exists() and tests.tested_configuration(path).resolve() != file.resolve():
        raise StartError(f"{path} tests {tests.tested_configuration(path)}, and no test of {file} can stand there")
    if any(case.records == cases[-1].records for case in tests.tests):
        raise StartError(f"{path} has this record already: router test {shlex.quote(str(path))}")

    trial = tests.model_copy(update={"tests": tuple(cases)})
    loaded = load_config(file, registry, environ={**os.environ, **tests.variables})
    click.echo("the case is tried first, which starts Spark", err=True)
    with spark_session(loaded.config) as session:
        results = list(run_tests(loaded, trial, session))
    if tuple(letter[name] for name in LETTER_COLUMNS) not in results[0].dead_letters:
        faults = "; ".join(results[0].faults) or f"{file} takes it"
        raise StartError(
            f"a route test does not refuse the record as it was refused, and none is written: {faults}; see what would "
            "become of it today: router replay FILE"
        )
    if set(results[-1].dead_letters) != set(results[0].dead_letters):
        raise StartError("masked, the record is not refused as it was, and no test is written: add --with-values")
    append_case(path, file, tests, cases[-1], write_case(name, described[-1], letter))


def describe_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as a route test gives it; raise StartError if it cannot."""
    described: dict[str, Any] = {}
    value = record["value"]
    try:
        described["value"] = None if value is None else value.decode()
    except UnicodeDecodeError:
        described["base64"] = base64.b64encode(value).decode()
    try:
        if record["key"] is not None:
            described["key"] = record["key"].decode()
        if record["headers"]:
            described["headers"] = {header["key"]: header["value"].decode() for header in record["headers"]}
    except (UnicodeDecodeError, AttributeError):
        raise StartError("a route test cannot have this record: its key or a header is no UTF-8 text") from None
    # The path of a file is one of this machine.
    if record["topic"] is not None and "/" not in record["topic"]:
        described.update(topic=record["topic"], partition=record["partition"])
    return described


def mask_record(record: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return a record with masked value, key and headers; raise StartError if what its bytes mean is unknown."""
    # Rules compare with words of the configuration; nobody learns one from a test beside it.
    mask = Mask(words=frozenset(re.findall(r"[\w.-]+", file.read_text(encoding="utf-8"))))
    try:
        headers = [{**header, "value": mask.mask_record(header["value"])} for header in record["headers"] or ()]
        masked = {name: mask.mask_record(record[name]) for name in ("key", "value")}
    except UnmaskableError as error:
        raise StartError(f"the record cannot be masked: {error}; --with-values writes it as it is") from None
    return {**record, **masked, "headers": headers}


def write_case(name: str, record: Mapping[str, Any], letter: Mapping[str, Any]) -> list[str]:
    """Return the lines of a case that expects a record to be no dead letter, as an item of `tests`."""
    refusal = ", ".join(f"{column} {letter[column]}" for column in LETTER_COLUMNS if letter[column])
    fields = ", ".join(f"{field}: {quote_value(value)}" for field, value in record.items())
    return [
        f"# {shorten_text(to_printable(refusal))}",
        f"- name: {quote_value(name)}",
        f"  records: [{{{fields}}}]",
        "  expect: {tables: null, sent: null, dead_letters: []}  # null: not compared",
    ]


def quote_value(value: Any) -> str:
    """Return a value as YAML on one line, with every text in quotes: none is read as a number, or as structure."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quote_value(name)}: {quote_value(part)}" for name, part in value.items()) + "}"
    if not isinstance(value, str):
        return "null" if value is None else str(value)
    style = "'" if value.isprintable() else '"'
    return yaml.safe_dump(value, default_style=style, allow_unicode=style == "'", width=math.inf).rstrip("\n")


def append_case(path: Path, file: Path, tests: RouteTests, case: RouteTest, lines: list[str]) -> None:
    """Append a case to a file of route tests, and print what to do next; print the case if it cannot be appended."""
    former = path.read_bytes().decode() if path.exists() else ""
    addition = ""
    if not former:
        addition = "tests:\n" if file.suffix == ".yaml" else f"configuration: {quote_value(file.name)}\ntests:\n"
    elif not former.endswith("\n"):
        addition = "\n"
    first_item = FIRST_ITEM.search(former)
    indentation = first_item[1] if first_item else "  "
    addition += "".join(f"{indentation}{line}\n" for line in lines)
    try:
        appended = parse_tests((former + addition).removeprefix("\ufeff"), path)
    except ConfigError:
        appended = tests
    if appended.tests != (*tests.tests, case):
        click.echo("\n".join(lines))
        raise StartError(
            f"{path}: its `tests` are no list at its end that a case can be appended to: add the one above"
        )
    # Appended and not written again: what stands there cannot be lost.
    with path.open("ab") as opened:
        opened.write(addition.encode())
    command = f"router test {shlex.quote(str(path))}"
    echo_message(f"{path}: the case {case.name!r} fails until {file} takes the record; run it: {command}")
