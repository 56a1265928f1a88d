"""`router init`: write a configuration and its tests from a sample of the records that it is for."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from router.cli.values import parse_pairs
from router.config.models import HYPHENED_PATTERN, FilesSource, KafkaSource
from router.errors import StartError, to_printable
from router_init.documents import (
    Inline,
    Plan,
    plan_tables,
    quote_name,
    write_configuration,
    write_schema,
)
from router_init.formats import find_format, find_rows
from router_init.route_tests import write_tests
from router_init.samples import find_files, sample_lines, sample_topics
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_REGISTRY = "registry."
IGNORED = "/lake/"
"""The line of .gitignore for what runs of the configuration make beside it."""


def _check_name(_context: click.Context, _argument: click.Parameter, name: str) -> str:
    if not re.fullmatch(HYPHENED_PATTERN, name):
        raise click.BadParameter(f"{name!r}: a name has small letters, digits, _ and -, and begins with a letter")
    return name


@click.command()
@click.argument("name", callback=_check_name)
@click.option("--kafka", "servers", metavar="SERVERS", help="Brokers, host:port, several with commas.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Of the brokers; may be given several times.")
@click.option(
    "--option",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Of Spark's Kafka source; registry.KEY: of the registry.",
)
@click.option("--registry", metavar="URL", help="A Confluent-compatible schema registry.")
@click.option("--files", metavar="PATH", help="A folder or pattern of files, in place of topics.")
@click.option("--with-values", is_flag=True, help="Leave values of records in the tests as they are.")
@click.option("--force", is_flag=True, help="Write over files that are there.")
@click.option("--print", "only_print", is_flag=True, help="Print what would be written, and write nothing.")
def init(
    name: str,
    servers: str | None,
    topics: tuple[str, ...],
    pairs: tuple[str, ...],
    registry: str | None,
    files: str | None,
    **flags: bool,
) -> None:
    """Write NAME.yaml, its tests NAME.test.yaml, and lines of .gitignore, from a sample of records.

    Of each topic up to 2,000 records are read, over all partitions, half from the beginning and half from the end;
    no group is joined and nothing is committed. Written are columns with their types, a table for each kind of
    record, and what was seen beside each choice. Options of --option are written as ${VARIABLES}, and no value of a
    record stands in a file but those that name tables: in the tests they are masked. Starts no JVM.
    """
    if bool(servers and topics) == bool(files):
        raise click.UsageError("give --kafka SERVERS and --topic TOPIC, or --files PATH")
    if files is not None:
        plan = _plan_files(name, FilesSource(path=files))
    else:
        options = parse_pairs(pairs, "--option")
        of_registry = {key: options.pop(key) for key in [*options] if key.startswith(OF_REGISTRY)}
        kafka = KafkaSource(servers=servers or "", topics=topics, options=options)
        plan = _plan_topics(name, kafka, registry, of_registry)
    written = {f"{name}.yaml": write_configuration(plan)}
    written |= write_tests(plan, with_values=flags["with_values"])
    if plan.renames:
        written[f"{name}.schema.json"] = write_schema(plan)
    if flags["only_print"]:
        click.echo("\n".join(f"# --- {file}\n{text}" for file, text in written.items()), nl=False)
        return
    there = [file for file in written if Path(file).exists()]
    if there and not flags["force"]:
        raise StartError(f"{there[0]} is there already; --force writes over it, --print shows what would be")
    for file, text in written.items():
        Path(file).write_text(text, encoding="utf-8")
    _add_ignored()
    _show_summary(plan, [*written])


def _plan_topics(name: str, kafka: KafkaSource, url: str | None, of_registry: Mapping[str, str]) -> Plan:
    registry = None if url is None else _check_registry(url, of_registry)
    samples = sample_topics(kafka)
    with nullcontext() if registry is None else RegistryClient(registry) as client:
        found = [find_format(sample, client) for sample in samples]
    variables = {key: re.sub(r"\W", "_", key).upper() for key in (*kafka.options, *of_registry)}
    written = {key: f"${{{variable}}}" for key, variable in variables.items()}
    source: dict[str, Any] = {"servers": f"${{KAFKA:-{kafka.servers}}}", "topics": [*kafka.topics]}
    if kafka.options:
        source["options"] = {key: written[key] for key in kafka.options}
    options = Inline(url=f"${{REGISTRY:-{url}}}", **_nest_keys({key: written[key] for key in of_registry}))
    tables = plan_tables(name, found)
    return Plan(name, {"kafka": source}, tables, registry=options, variables=tuple(variables.values()))


def _check_registry(url: str, options: Mapping[str, str]) -> RegistryOptions:
    try:
        return RegistryOptions.model_validate({"url": url, **_nest_keys(options)})
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise click.BadParameter(message, param_hint="--registry") from None


def _nest_keys(pairs: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a registry as a configuration has them: `registry.basic.user` is `basic: {user: ...}`."""
    nested: dict[str, Any] = {}
    for key, value in pairs.items():
        group, _, name = key.removeprefix(OF_REGISTRY).rpartition(".")
        place = nested.setdefault(group, Inline()) if group else nested
        place[name] = value
    return nested


def _plan_files(name: str, files: FilesSource) -> Plan:
    paths = find_files(files)
    source = {"path": files.path}
    form = {".csv": "csv", ".parquet": "parquet", ".avro": "avro"}.get(paths[0].suffix)
    if form is None:
        return Plan(name, {"files": source}, plan_tables(name, [find_format(sample_lines(paths), None)]))
    source["format"] = form
    (table,) = plan_tables(name, [find_rows(paths, form)])
    if table.kind is not None:
        # Without it a test, which reads no file, would not know the field.
        source["schema_hints"] = f"{quote_name(table.kind.path[0])} string"
    return Plan(name, {"files": source}, (table,))


def _add_ignored() -> None:
    file = Path(".gitignore")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if IGNORED not in lines:
        file.write_text("\n".join([*lines, IGNORED, ""]), encoding="utf-8")


def _show_summary(plan: Plan, files: list[str]) -> None:
    for table in plan.tables:
        click.echo(to_printable(f"{table.found.sample}; {table.found.seen}"))
        for line in table.describe_candidates():
            click.echo(to_printable(f"  {line}"))
    click.echo(f"wrote {', '.join(files)}")
    if plan.variables:
        click.echo(f"set before a start: {', '.join(plan.variables)}")
    commands = [f"check {plan.name}.yaml", f"test {plan.name}.test.yaml", f"run {plan.name}.yaml --once"]
    click.echo("next:\n" + "\n".join(f"  router {command}" for command in commands))
