"""Hold the documentation against the code: what it shows has to load, and what it names has to be there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from router import ApplyingSink, Batch, Sink, TableSink
from router.cli import COMMANDS, HIDDEN_COMMANDS
from router.config.loader import load_config
from router.config.models import Config
from router.delta.commit import StagedParts
from router.engine.checkpoint_store import lake_and_checkpoint
from router.registry import load_registry
from router.testing import check_table_sink
from router_sinks import Rest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.delta.lake import Lake

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])


def fences(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_configuration_of_the_readme_loads() -> None:
    """A user who copies the first thing they see must not meet an error."""
    text = fences(ROOT / "README.md", "yaml")[0]

    loaded = load_config(ROOT / "routes" / "readme.yaml", load_registry(), environ={}, text=text)

    assert [route.name for route in loaded.config.routes] == ["games", "big_wins"]


def test_the_result_of_the_readme_is_from_the_whole_output() -> None:
    """A user who reads on must find the lines that they saw first; what is more than fifteen, nobody reads first."""
    (result,), (output,) = (fences(page, "text") for page in (ROOT / "README.md", DOCS / "evidence" / "demo.md"))

    assert len(result.splitlines()) <= 15
    assert set(result.splitlines()) <= set(output.splitlines())


def test_the_plugin_of_the_readme_is_a_rule(tmp_path: Path) -> None:
    """The plugin of thirteen lines must work as it stands, and under the configuration shown beside it."""
    (text,) = fences(ROOT / "README.md", "python")
    plugin = tmp_path / "region.py"
    plugin.write_text(text)
    page = (ROOT / "README.md").read_text()
    match = re.search(r"`match: (\{region: .*?\}\})`", page)
    assert match is not None
    configuration = fences(ROOT / "README.md", "yaml")[0].replace('{sql: "event.game IS NOT NULL"}', match[1])

    loaded = load_config(ROOT / "routes" / "readme.yaml", load_registry([plugin]), environ={}, text=configuration)

    assert loaded.config.routes[0].match.part_name == "region"


def test_the_sink_of_the_page_on_kafka_loads() -> None:
    """A user who copies it must not meet an error."""
    (text,) = [text for text in fences(DOCS / "how-to" / "write-to-kafka.md", "yaml") if "- kafka:" in text]
    readme = fences(ROOT / "README.md", "yaml")[0]
    indented = "".join(f"    {line}\n" for line in text.splitlines())
    text = readme.replace("    sinks: [{delta: gold.big_wins}]\n", indented)
    environ = {"REGISTRY": "http://127.0.0.1:8081", "OUT_PASSWORD": "secret"}

    loaded = load_config(ROOT / "routes" / "readme.yaml", load_registry(), environ=environ, text=text)

    (sink,) = loaded.config.routes[1].sinks
    assert sink.part_name == "kafka"
    assert "secret" not in repr(loaded.config)


def test_the_tables_of_the_page_on_configuration_are_made_so() -> None:
    """A user who copies it must not meet an error."""
    pages = (DOCS / "reference" / "configuration.md", DOCS / "reference" / "tables.md")
    expects, text = (yaml for page in pages for yaml in fences(page, "yaml") if yaml.startswith("bronze:"))
    readme = fences(ROOT / "README.md", "yaml")[0]
    rest = (
        readme[: readme.index("bronze:")]
        + readme[readme.index("\n", readme.index("bronze:")) + 1 : readme.index("routes:")]
    )
    dead = "dead_letters: ops.dead_letters\n"
    loaded = load_config(ROOT / "routes" / "readme.yaml", load_registry(), environ={}, text=rest + expects + dead)
    assert [one.otherwise for one in loaded.config.bronze.expect] == ["warn", "warn", "fail"]

    loaded = load_config(ROOT / "routes" / "readme.yaml", load_registry(), environ={}, text=rest + text + dead)

    assert loaded.config.table_options()["games/tables"].partition_by == ("day",)
    assert loaded.config.table_options()["/bronze"].partition_by == ("partition",)


def test_the_locations_of_the_page_on_object_stores_are_taken(tmp_path: Path) -> None:
    """A user who copies them must not meet an error, or a bucket of another name than the page says."""
    (text,) = [text for text in fences(DOCS / "how-to" / "object-storage.md", "yaml") if text.startswith("bronze:")]
    readme = fences(ROOT / "README.md", "yaml")[0]
    rest = readme[: readme.index("bronze:")] + readme[readme.index("\n", readme.index("bronze:")) + 1 :]
    rest = rest[: rest.index("routes:")].replace("lake: ./lake", "lake: s3://company-lake/games")
    text = text.replace("/run/secrets/partner", str(tmp_path / "partner"))
    (tmp_path / "partner").write_text("hush")

    loaded = load_config(
        ROOT / "routes" / "readme.yaml",
        load_registry(),
        environ={"PARTNER_KEY": "me"},
        text=rest + text + "dead_letters: ops.dead_letters\n",
    )

    lake, _ = lake_and_checkpoint(loaded.config)
    assert lake.address("bronze.game_events") == "s3://lake-game-events/raw"
    assert lake.address("silver.uno") == "s3://partners/games/uno"
    assert lake.delta_options("silver.uno") == {"aws_access_key_id": "me", "aws_secret_access_key": "hush"}
    assert "hush" not in repr(loaded) + repr(lake)


def test_the_table_sink_of_the_page_on_packages_keeps_its_contract(spark: SparkSession, tmp_path: Path) -> None:
    """A sink that is written like it must name a table for every row."""
    (text,) = [text for text in fences(DOCS / "how-to" / "write-a-plugin.md", "python") if "TableSink" in text]
    plugin = tmp_path / "by_month.py"
    plugin.write_text(text)
    sink = load_registry([plugin]).resolve(Sink, {"orders_by_month": {}})
    assert isinstance(sink, TableSink)

    check_table_sink(spark, sink, spark.createDataFrame([(("1",),), (None,)], "event struct<order_id: string>"))


CRM = {"CRM_TOKEN": "hush", "TOKEN": "hush"}
REST_PAGES = (ROOT / "README.md", DOCS / "reference" / "rest.md", DOCS / "how-to" / "rest-apis.md")
SHOWN = [text for page in REST_PAGES for text in fences(page, "yaml")]


@pytest.mark.parametrize("text", SHOWN, ids=range(len(SHOWN)))
def test_what_the_pages_on_rest_apis_show_loads(text: str) -> None:
    """A user who copies it must not meet an error."""
    if text.startswith("sinks:"):
        readme = fences(ROOT / "README.md", "yaml")[0]
        indented = "".join(f"    {line}\n" for line in text.splitlines())
        text = readme.replace("    sinks: [{delta: gold.big_wins}]\n", indented)

    loaded = load_config(ROOT / "routes" / "readme.yaml", load_registry(), environ=CRM, text=text)

    assert "hush" not in repr(loaded.config)


def test_the_short_configuration_of_the_readme_is_the_one_we_ship() -> None:
    """A user who looks for the file that is named must find what was shown."""
    shown = fences(ROOT / "README.md", "yaml")[1].split("\n", maxsplit=1)[1]

    assert (ROOT / "routes" / "files_to_rest.yaml").read_text().endswith(shown)


@pytest.mark.parametrize("option", sorted(Rest.model_fields))
def test_every_option_of_the_rest_sink_is_documented(option: str) -> None:
    """An option that is in no page is found by reading the code."""
    assert f"`{option}`" in (DOCS / "reference" / "rest.md").read_text()


def test_the_sink_of_the_page_on_plugins_does_what_is_left(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """A plugin that is written like it must not repeat what arrived before it was stopped."""
    text = fences(DOCS / "reference" / "plugins.md", "python")[0]
    plugin, loft = tmp_path / "carriers.py", tmp_path / "loft"
    plugin.write_text(text)
    sink = load_registry([plugin]).resolve(Sink, {"pigeons": {"loft": str(loft)}})
    assert isinstance(sink, ApplyingSink)
    batch = Batch("q", 0, "r", "pigeons", keeps=lambda table: StagedParts(lake, table, "q:run/r/pigeons", 0))

    outcomes = [sink.apply(spark.range(stop).selectExpr("id AS n"), batch).applied for stop in (2, 3)]

    assert (sink.detached, outcomes) == (True, [2, 3])
    assert loft.read_text() == "0\n1\n2\n"


ROUTES = [path for path in sorted((ROOT / "routes").glob("*.yaml")) if not path.name.endswith(".test.yaml")]


@pytest.mark.parametrize("path", ROUTES, ids=lambda path: path.name)
def test_every_route_file_loads(path: Path) -> None:
    """A configuration that we ship must pass `router check`."""
    assert load_config(path, load_registry(), environ={}).config.routes


@pytest.mark.parametrize("key", sorted(field.alias or key for key, field in Config.model_fields.items()))
def test_every_key_is_documented(key: str) -> None:
    """A key that nobody can read about does not exist for a user."""
    assert f"`{key}`" in (DOCS / "reference" / "configuration.md").read_text()


def test_every_command_of_the_pages_exists() -> None:
    """A command in the documentation must be there when it is typed."""
    typed = re.compile(r"(?:^|`)router (?:--verbose )?([a-z][a-z-]*)\b", re.MULTILINE)
    named = {name for page in PAGES for name in typed.findall(page.read_text())}

    assert {"run", "check", "ledger"} <= named <= {*COMMANDS, *HIDDEN_COMMANDS}


def headings(page: Path) -> set[str]:
    """Return the anchors that a code host and the site make of a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_link_between_pages_leads_somewhere() -> None:
    """A link that leads nowhere, or to a section that has moved, costs a reader's trust."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if target.startswith("http"):
                continue
            path, _, anchor = target.partition("#")
            linked = page.parent / path if path else page
            assert linked.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in headings(linked), f"{page.name}: {target}"


BLOCKS = re.compile(r"^( *)```(yaml|python)(?: title=\"[^\"]+\")?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def shown(language: str) -> list[tuple[str, str]]:
    """Return the blocks of all pages in one language, each with the page."""
    found = []
    for page in PAGES:
        for indent, kind, text in BLOCKS.findall(page.read_text()):
            if kind == language:
                found.append((page.name, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)))
    return found


@pytest.mark.parametrize(("page", "text"), shown("yaml"))
def test_every_yaml_of_the_pages_can_be_read(page: str, text: str) -> None:
    """A configuration that is copied must be YAML at least; a whole one must be a good configuration."""
    assert yaml.safe_load(text) is not None, page
    if not {"name:", "lake:", "routes:"} <= set(re.findall(r"^\w+:", text, re.MULTILINE)):
        return
    variables = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "x") | {"REGISTRY": "http://127.0.0.1:8081"}

    assert load_config(ROOT / "routes" / "shown.yaml", load_registry(), environ=variables, text=text).config.routes


@pytest.mark.parametrize(("page", "text"), shown("python"))
def test_every_python_of_the_pages_can_be_read(page: str, text: str) -> None:
    """A plugin that is copied must be Python."""
    compile(text, page, "exec")
