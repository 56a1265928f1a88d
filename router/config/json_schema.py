"""Describe the configuration file as JSON Schema, for editors: the models, and every part on offer by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue, models_json_schema

from router.config.models import Config

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import core_schema

    from router.registry import Entry, Registry


_SCHEMA_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PART_PLACEHOLDER = "x-router-part"
_TEXT_TYPES = ["string", "number", "boolean"]
"""What may be written where text is needed: the loader takes it as written."""
_VARIABLE_SCHEMA: JsonSchemaValue = {"type": "string", "pattern": r"\$\{"}


class _Generator(GenerateJsonSchema):
    """A generator that lets `${VARIABLE}` stand for any scalar, and leaves a mark where a part stands."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        owner = getattr(schema["function"]["function"], "__self__", None)
        # Decoder, Rule and Sink have a kind of their own; the classes of parts inherit it.
        kind = vars(owner).get("kind") if isinstance(owner, type) else None
        if kind:
            return {_PART_PLACEHOLDER: kind}
        return super().function_before_schema(schema)

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return _or_variable(super().int_schema(schema))

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return _or_variable(super().float_schema(schema))

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return _or_variable(super().bool_schema(schema))

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        return _or_variable(super().literal_schema(schema))

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        described = super().tuple_schema(schema)
        items = described.get("items")
        # A variable can hold a list of values, not one of mappings.
        if not items or _PART_PLACEHOLDER in items or "$ref" in items:
            return described
        return _or_variable(described)

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        described = super().str_schema(schema)
        if "pattern" in described:
            return _or_variable(described)
        return {**described, "type": _TEXT_TYPES}


def json_schema(registry: Registry) -> dict[str, Any]:
    """Return the schema of a whole configuration file; a part is an object with one key, its name."""
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(Config, "validation")]
    for family in registry.entries.values():
        models += [(entry.part, "validation") for entry in family.values()]
    references, schema = models_json_schema(models, schema_generator=_Generator)
    definitions = schema.get("$defs", {})
    for kind, family in registry.entries.items():
        named = [_schema_of_part(entry, references[entry.part, "validation"], definitions) for entry in family.values()]
        definitions[f"router.{kind}"] = {"oneOf": named}
    top = definitions.pop(references[Config, "validation"]["$ref"].rpartition("/")[2])
    keyed = registry.entries["decoder"].get("keyed")
    if keyed:
        # Its options may stand without its name.
        properties = top["properties"]
        properties["decode"] = {"anyOf": [properties["decode"], references[keyed.part, "validation"]]}
    whole = {"$schema": _SCHEMA_DRAFT, **top, "title": "Spark Event Router", "$defs": definitions}
    return dict(_fill_placeholders(whole))


def _schema_of_part(entry: Entry, reference: JsonSchemaValue, definitions: dict[str, Any]) -> JsonSchemaValue:
    """Return `{name: options}`; options may be a mapping, the bare main option, or nothing when none is needed."""
    model = definitions[reference["$ref"].rpartition("/")[2]]
    forms: list[JsonSchemaValue] = [reference]
    if entry.part.main_option:
        forms.append(model["properties"][entry.part.main_option])
    if not model.get("required"):
        forms.append({"type": "null"})
    return {
        "type": "object",
        "description": model.get("description", ""),
        "properties": {entry.name: {"anyOf": forms}},
        "required": [entry.name],
        "additionalProperties": False,
    }


def _fill_placeholders(schema: Any) -> Any:
    """Put references where parts stand, and let a secret be a number."""
    if isinstance(schema, dict):
        if schema.get("writeOnly") is True and schema.get("type") == "string":
            return {**schema, "type": _TEXT_TYPES}
        filled: dict[str, Any] = {}
        if _PART_PLACEHOLDER in schema:
            filled["$ref"] = f"#/$defs/router.{schema[_PART_PLACEHOLDER]}"
        for key, value in schema.items():
            if key != _PART_PLACEHOLDER:
                filled[key] = _fill_placeholders(value)
        return filled
    if isinstance(schema, list):
        return [_fill_placeholders(item) for item in schema]
    return schema


def _or_variable(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {"anyOf": [schema, _VARIABLE_SCHEMA]}
