"""The JSON Schema tells editors what the loader accepts."""

from __future__ import annotations

import json

import pytest

from router.config.json_schema import json_schema


@pytest.fixture(scope="module")
def schema(registry):
    return json_schema(registry)


def test_parts_stand_by_their_names(schema):
    names = {
        kind: [next(iter(part["properties"])) for part in schema["$defs"][f"router.{kind}"]["oneOf"]]
        for kind in ("decoder", "rule", "sink")
    }

    assert names == {"decoder": ["text"], "rule": ["both", "equals", "never", "where"], "sink": ["fixed", "post"]}
    assert schema["properties"]["decode"]["$ref"] == "#/$defs/router.decoder"
    assert schema["$defs"]["Route"]["properties"]["sinks"]["items"]["$ref"] == "#/$defs/router.sink"
    assert schema["$defs"]["Both"]["properties"]["rules"]["items"]["$ref"] == "#/$defs/router.rule"


def test_part_takes_its_options_or_the_main_one(schema):
    (where,) = [rule for rule in schema["$defs"]["router.rule"]["oneOf"] if "where" in rule["properties"]]
    (text,) = schema["$defs"]["router.decoder"]["oneOf"]

    options, main = where["properties"]["where"]["anyOf"]
    assert options == {"$ref": "#/$defs/Where"}
    assert "string" in main["type"]
    assert where["additionalProperties"] is False
    assert where["description"].startswith("Match by a condition.")
    assert {"type": "null"} in text["properties"]["text"]["anyOf"]


def test_variable_may_stand_for_any_scalar(schema):
    rows = schema["$defs"]["KafkaSource"]["properties"]["rows_per_batch"]

    assert {"type": "string", "pattern": r"\$\{"} in rows["anyOf"]


def test_every_reference_leads_somewhere(schema):
    references = [line.split('"')[3] for line in json.dumps(schema, indent=0).splitlines() if '"$ref"' in line]

    assert references
    assert {reference.rpartition("/")[2] for reference in references} <= set(schema["$defs"])
