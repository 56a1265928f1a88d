"""`router init`: write a configuration and its tests from a sample of the records that it is for."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from router.cli.values import parse_pairs
from router.config.models import HYPHENED_PATTERN, FilesSource, KafkaSource
from router.errors import StartError, to_printable
from router_init.documents import Plan, write_files
from router_init.formats import find_format, find_rows
from router_init.samples import find_files, sample_lines, sample_topics
from router_init.tables import plan_tables, quote_name
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryOptions

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
        plan = _plan_topics(name, servers or "", topics, parse_pairs(pairs, "--option"), registry)
    written = write_files(plan, with_values=flags["with_values"])
    if flags["only_print"]:
        click.echo("\n".join(f"# --- {file}\n{text}" for file, text in written.items()), nl=False)
        return
    there = [file for file in written if Path(file).exists()]
    if there and not flags["force"]:
        raise StartError(f"{there[0]} is there already; --force writes over it, --print shows what would be")
    ignored = Path(".gitignore").read_text(encoding="utf-8").splitlines() if Path(".gitignore").exists() else []
    if IGNORED not in ignored:
        written[".gitignore"] = "\n".join([*ignored, IGNORED, ""])
    for file, text in written.items():
        Path(file).write_text(text, encoding="utf-8")
    _show_summary(plan, [*written])


def _plan_topics(name: str, servers: str, topics: tuple[str, ...], pairs: dict[str, str], url: str | None) -> Plan:
    variables = {key: re.sub(r"\W", "_", key).upper() for key in pairs}
    # What is written has variables in place of values.
    written, written_registry = _split_options({key: f"${{{variable}}}" for key, variable in variables.items()})
    options, of_registry = _split_options(pairs)
    try:
        registry = None if url is None else RegistryOptions.model_validate({"url": url, **of_registry})
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise click.BadParameter(message, param_hint="--registry") from None
    samples = sample_topics(KafkaSource(servers=servers, topics=topics, options=options))
    with nullcontext() if registry is None else RegistryClient(registry) as client:
        tables = plan_tables(name, [find_format(sample, client) for sample in samples])
    source: dict[str, Any] = {"servers": f"${{KAFKA:-{servers}}}", "topics": [*topics]}
    if written:
        source["options"] = written
    written_registry = {"url": f"${{REGISTRY:-{url}}}", **written_registry}
    return Plan(name, {"kafka": source}, tables, registry=written_registry, variables=tuple(variables.values()))


def _split_options(pairs: dict[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the options of Kafka, and those of the registry: `registry.basic.user` is `basic: {user: ...}`."""
    of_kafka = {key: value for key, value in pairs.items() if not key.startswith(OF_REGISTRY)}
    of_registry: dict[str, Any] = {}
    for key in sorted(pairs.keys() - of_kafka.keys()):
        group, _, name = key.removeprefix(OF_REGISTRY).rpartition(".")
        place = of_registry.setdefault(group, {}) if group else of_registry
        place[name] = pairs[key]
    return of_kafka, of_registry


def _plan_files(name: str, files: FilesSource) -> Plan:
    paths = find_files(files)
    source = {"path": files.path}
    form = {".csv": "csv", ".parquet": "parquet", ".avro": "avro"}.get(paths[0].suffix)
    if form is None:
        return Plan(name, {"files": source}, plan_tables(name, [find_format(sample_lines(paths), None)]))
    source["format"] = form
    tables = plan_tables(name, [find_rows(paths, form)])
    # Without it a test, which reads no file, would not know the field.
    for field in tables[0].kind.path[:1]:
        source["schema_hints"] = f"{quote_name(field)} string"
    return Plan(name, {"files": source}, tables)


def _show_summary(plan: Plan, files: list[str]) -> None:
    for table in plan.tables:
        lines = [f"{table.found.sample}; {table.found.seen}", *(f"  {line}" for line in table.describe_candidates())]
        click.echo("\n".join(map(to_printable, lines)))
    click.echo(f"wrote {', '.join(files)}")
    if plan.variables:
        click.echo(f"set before a start: {', '.join(plan.variables)}")
    commands = [f"check {plan.name}.yaml", f"test {plan.name}.test.yaml", f"run {plan.name}.yaml --once"]
    click.echo("next:\n" + "\n".join(f"  router {command}" for command in commands))
