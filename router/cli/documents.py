"""Documents for programs: the one of `--json`, in place of a command's lines, and JUnit's. Need no terminal library."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from router.errors import to_printable

if TYPE_CHECKING:
    from collections.abc import Callable

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
"""`--json`; the command gets it as `as_json`."""


def show_json(document: dict[str, Any], default: Callable[[Any], Any] | None = None) -> None:
    """Print one JSON document, all but ASCII escaped: times as ISO 8601 in UTC, or what `default` makes of a value."""
    click.echo(json.dumps(document, indent=2, default=default or _json_value))


def junit_report(cases: list[dict[str, Any]]) -> bytes:
    """Return cases (`file`, `case`, `faults`) as JUnit XML, which systems for CI read: a suite for each file.

    https://github.com/testmoapp/junitxml describes the format.
    """
    root = ET.Element("testsuites")
    suites: dict[str, ET.Element] = {}
    for case in cases:
        file = to_printable(case["file"])
        if file not in suites:
            suites[file] = ET.SubElement(root, "testsuite", name=file)
        element = ET.SubElement(suites[file], "testcase", classname=file, name=to_printable(case["case"]))
        if case["faults"]:
            faults = [to_printable(fault) for fault in case["faults"]]
            ET.SubElement(element, "failure", message=faults[0]).text = "\n".join(faults)
    for suite in (root, *suites.values()):
        suite.set("tests", str(len([*suite.iter("testcase")])))
        suite.set("failures", str(len([*suite.iter("failure")])))
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return in_utc(value).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def in_utc(time: datetime) -> datetime:
    """Return a time in UTC, which one without a zone is in."""
    return time.replace(tzinfo=time.tzinfo or timezone.utc).astimezone(timezone.utc)
