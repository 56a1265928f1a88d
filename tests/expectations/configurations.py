"""Scenarios of the configurations in routes/, with the records of their route tests, nothing sent."""

from __future__ import annotations

import base64
from typing import Any

import yaml

from tests.expectations.scenario import HERE, Given, Scenario, Taken

ROUTES = HERE.parent.parent / "routes"
SUFFIX = ".test.yaml"


def _given(record: dict[str, Any]) -> Given:
    """Return a record in the words of a route test."""
    about = {name: record[name] for name in ("topic", "partition") if name in record}
    headers = tuple((name, text.encode()) for name, text in record.get("headers", {}).items()) or None
    key = record["key"].encode() if "key" in record else None
    if "base64" in record:
        return Given(base64.b64decode(record["base64"]), key, headers=headers, **about)
    value = {name: record[name] for name in ("event", "value", "schema", "message") if name in record}
    return Given(value, key, headers=headers, **about)


def _scenario(name: str) -> Scenario:
    tests = yaml.safe_load((ROUTES / f"{name}{SUFFIX}").read_text(encoding="utf-8"))
    text = (ROUTES / f"{name}.yaml").read_text(encoding="utf-8") + "debug: true\n"
    schemas = {subject: tuple(files) for subject, files in tests.get("schemas", {}).items()}
    cases = [case for case in tests["tests"] if "answers" not in case]  # nothing is sent here, so nothing is answered
    batches = [tuple(_given(record) for record in case["records"]) for case in cases]
    first, *others = (Taken(records) for records in batches)
    return Scenario(
        f"routes_{name}",
        f"routes/{name}.yaml with the records of its route tests, a batch a test",
        (Taken(first.records, text, schemas), *others),
        ROUTES,
    )


SCENARIOS = tuple(_scenario(path.name.removesuffix(SUFFIX)) for path in sorted(ROUTES.glob(f"*{SUFFIX}")))
