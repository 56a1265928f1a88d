"""Plugins are found, checked and named; a broken one stops the start."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError
from pyspark import cloudpickle

import router.registry
from router import BatchReport, Decoder, PluginError, Rule, Sink
from router.registry import Registry, load_registry

REGION = """\
from router import Rule, hookimpl

class Region(Rule):
    \"\"\"Match events of one region.\"\"\"
    code: str
    def matches(self):
        return self.code

@hookimpl
def router_rules():
    return {"region": Region}
"""

PARTS = Path(__file__).parents[1] / "config" / "parts.py"

Plugin = Callable[..., Path]


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    """Write a plugin file."""

    def plugin(code: str, name: str = "region.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
        return path

    return plugin


@pytest.fixture
def _no_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router.registry, "entry_points", lambda group: ())


def test_file_with_one_rule(plugin):
    path = plugin(REGION)

    registry = load_registry([path])

    entry = registry.entries["rule"]["region"]
    assert (entry.kind, entry.name, entry.provider) == ("rule", "region", str(path))
    assert registry.resolve(Rule, {"region": {"code": "eu"}}).matches() == "eu"


def test_built_in_parts_come_through_entry_points():
    registry = load_registry()

    assert {"json", "none"} <= set(registry.entries["decoder"])
    assert {"sql", "field", "all", "any", "not"} <= set(registry.entries["rule"])
    assert {"tables", "delta"} <= set(registry.entries["sink"])
    assert registry.entries["rule"]["sql"].provider.startswith("router_rules (spark-event-router ")


HEAD = "from router import *\nfrom router import hookimpl\n"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import nowhere", "cannot be imported: ModuleNotFoundError: No module named 'nowhere' (region.py:1)"),
        ("def", "cannot be imported: SyntaxError"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit"),
        (REGION.replace("router_rules", "router_rulse"), "there is no hook router_rulse; did you mean `router_rules`?"),
        (REGION.replace("router_rules", "rules"), "there is no hook rules; hooks: router_batch_finished, "),
        (REGION.replace("@hookimpl", ""), "router_rules is not marked as a hook"),
        (
            REGION.replace("@hookimpl", "@hookimpl(wrapper=True)").replace("return {", "yield {"),
            "router_rules is a wrapper",
        ),
        (REGION.replace("router_rules()", "router_rules(rules)"), "{'rules'} are declared in the hookimpl"),
        (
            REGION.replace('return {"region": Region}', "raise KeyError(7)"),
            "router_rules failed: KeyError: 7 (region.py:11)",
        ),
        (REGION.replace('{"region": Region}', "[Region]"), "router_rules returned list; return a mapping"),
        (REGION.replace('{"region": Region}', "None"), "router_rules returned NoneType"),
        (REGION.replace('"region"', "7"), "router_rules offers `7`, which is not a name"),
        (REGION.replace('"region"', "'Region one'"), "offers `Region one`, which is not a name"),
        (REGION.replace(": Region}", ": Region(code='eu')}"), "`region`, which is not a class derived from Rule"),
        (REGION.replace("router_rules", "router_sinks"), "`region`, which is not a class derived from Sink"),
        (REGION.replace("def matches", "def match"), "`region`, whose class Region lacks matches"),
        (REGION.replace("    code: str", "    code: str\n    main_option = 'kode'"), "whose main_option `kode` is not"),
        (
            REGION.replace("    code: str", "    code: str\n    kind = 'rule'"),
            "sets `kind`, which belongs to the router",
        ),
        (
            HEAD + "class Own(Sink): pass\n@hookimpl\ndef router_sinks():\n    return {'own': Own}",
            "whose class Own must derive from TableSink, MergingSink or ApplyingSink",
        ),
    ],
)
@pytest.mark.usefixtures("_no_entry_points")
def test_broken_plugin_stops_the_start(plugin, code, what):
    path = plugin(code)

    with pytest.raises(PluginError) as caught:
        load_registry([path])

    assert str(path) == caught.value.provider
    assert what in caught.value.what


@pytest.mark.usefixtures("_no_entry_points")
def test_clash_names_both_providers(plugin):
    one, two = plugin(REGION, "one.py"), plugin(REGION, "two.py")

    with pytest.raises(PluginError) as caught:
        load_registry([one, two])

    assert {str(one), str(two)} == {caught.value.provider, caught.value.what.rpartition(" does ")[2]}
    assert "offers the rule `region`" in caught.value.what


@pytest.mark.usefixtures("_no_entry_points")
def test_same_file_twice_is_one_plugin(plugin):
    path = plugin(REGION)

    assert list(load_registry([path, path.parent / "." / path.name]).entries["rule"]) == ["region"]


@pytest.mark.usefixtures("_no_entry_points")
def test_files_of_the_same_name_do_not_meet(plugin):
    one, two = plugin(REGION, "a/region.py"), plugin(REGION.replace('"region"', '"other"'), "b/region.py")

    rules = load_registry([one, two]).entries["rule"]

    assert rules["region"].part.__module__ != rules["other"].part.__module__


def test_missing_file(tmp_path):
    with pytest.raises(PluginError, match="cannot be imported: FileNotFoundError"):
        load_registry([tmp_path / "none.py"])


def test_file_of_another_kind(plugin):
    with pytest.raises(PluginError, match=r"plugin\.txt is not a Python file"):
        load_registry([plugin(REGION, "plugin.txt")])


def test_broken_entry_point_is_named(monkeypatch):
    point = EntryPoint("mine", "no_such_module", "event_router")
    monkeypatch.setattr(router.registry, "entry_points", lambda group: (point,))

    with pytest.raises(PluginError) as caught:
        load_registry()

    assert caught.value.provider == "no_such_module"


def test_file_travels_to_processes_that_cannot_import_it(plugin):
    """On an executor the file is not there: what it defines must come along."""
    registry = load_registry(
        [plugin(REGION + "\ndef double(x):\n    return helper(x)\n\ndef helper(x):\n    return 2 * x\n")]
    )
    part = registry.entries["rule"]["region"].part
    double = sys.modules[part.__module__].double

    code = "import pickle, sys; f, part = pickle.load(sys.stdin.buffer); print(f(21), part.code)"
    data = cloudpickle.dumps((double, part(code="eu")))
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)

    assert done.stdout.decode().split() == ["42", "eu"]
    assert pickle.loads(data)[0](21) == 42


class Holder(BaseModel):
    """Stand for a configuration."""

    parts: tuple[object, ...]


def test_modules_are_those_of_selected_parts_that_executors_import(plugin, monkeypatch):
    installed = plugin(REGION.replace('"region"', '"installed"'), "an_installed_plugin.py")
    monkeypatch.syspath_prepend(installed.parent)
    point = EntryPoint("mine", "an_installed_plugin", "event_router")
    monkeypatch.setattr(router.registry, "entry_points", lambda group: (point,))

    registry = load_registry([plugin(REGION), PARTS])

    parts = tuple(registry.resolve(Rule, {name: {"code": "eu"}}) for name in ("region", "installed"))
    assert registry.modules_of_parts(Holder(parts=parts)) == ("an_installed_plugin",)
    assert [entry.name for entry in registry.selected_entries(Holder(parts=parts))] == ["installed", "region"]


REPORT = BatchReport("games", 7, 5, 4, 1, 0, 1, 2, 2)


@pytest.mark.usefixtures("_no_entry_points")
def test_failing_observer_is_logged_and_keeps_nobody_from_hearing(plugin, caplog):
    hook = "from router import hookimpl\nheard = []\n@hookimpl\ndef router_batch_finished(report):\n    "
    files = [
        plugin(hook + "heard.append(report)", "a.py"),
        plugin(hook + "raise OSError('no disk')", "b.py"),
        plugin(hook.replace("(report)", "()") + "heard.append('quiet')", "c.py"),
    ]
    registry = load_registry(files)

    with caplog.at_level(logging.ERROR):
        registry.notify_observers(REPORT)

    heard = [plugin.heard for plugin in registry.manager.get_plugins() if plugin.heard]
    assert [REPORT] in heard
    assert ["quiet"] in heard
    assert [record.getMessage() for record in caplog.records] == [f"observer {files[1]} failed on batch 7 of games"]


@pytest.fixture(scope="module")
def registry() -> Registry:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router.registry, "entry_points", lambda group: ())
        return load_registry([PARTS])


@pytest.mark.parametrize(
    ("family", "value", "loc", "what", "hint"),
    [
        (Rule, {"wher": "a"}, ("wher",), "there is no rule `wher`", "did you mean `where`? known rules: both, equals"),
        (Rule, {"zzz": "a"}, ("zzz",), "there is no rule `zzz`", "known rules: both, equals, never, where"),
        (Rule, "where", (), "a rule is one key, its name, and its options", "write {where}"),
        (Rule, None, (), "a rule is one key, its name, and its options", "known rules: both"),
        (Sink, {}, (), "a sink is one key, its name, and its options", "known sinks: fixed, post"),
        (
            Rule,
            {"where": "a", "select": 1},
            ("select",),
            "a rule is one key, and `where` is here already",
            "indentation",
        ),
        (Rule, {"sel": 1, "where": "a"}, ("sel",), "a rule is one key, and `where` is here already", "remove `sel`"),
        (Decoder, {"text": "utf-8"}, ("text",), "options are a mapping", "options: charset"),
    ],
)
def test_form_of_a_part(registry, family, value, loc, what, hint):
    with pytest.raises(ValidationError) as caught:
        registry.resolve(family, value)

    (error,) = caught.value.errors()
    assert loc == error["loc"]
    assert what == error["ctx"]["what"]
    assert hint in error["ctx"]["hint"]


def test_every_fault_has_the_name_in_front(registry):
    with pytest.raises(ValidationError) as caught:
        registry.resolve(Rule, {"both": [{"where": "a"}, {"where": {}}, {"never": {"where": [1]}}]})

    first, second = caught.value.errors()
    assert first["loc"] == ("both", "rules", 1, "where", "sql")
    assert second["loc"] == ("both", "rules", 2, "never", "rule", "where", "sql")


def test_error_of_a_part_shows_no_value(registry):
    with pytest.raises(ValidationError) as caught:
        registry.resolve(Sink, {"post": {"url": "http://x", "calls": "sekret"}})

    assert "sekret" not in str(caught.value)


def test_part_is_taken_as_it_is(registry):
    part = registry.resolve(Rule, {"where": "a"})

    assert registry.resolve(Rule, {"never": {"rule": part}}).rule is part
