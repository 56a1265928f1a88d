"""The list of commands is that of `--help`, and messages that pages quote are those of the code.

COMMANDS=write writes docs/reference/commands.md again.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from functools import cache
from pathlib import Path

import click
import pytest

from router.cli import COMMAND_GROUPS, COMMANDS, HIDDEN_COMMANDS, commands
from tests.source_trees import tree_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "commands.md"
WHEN_WRONG = ROOT / "docs" / "how-to" / "when-something-is-wrong.md"
BETWEEN = re.compile(r"(?<=<!-- commands -->\n).*?(?=<!-- end -->)", re.DOTALL)
MESSAGE = re.compile(r"^\| `((?:[^`\\]|\\`)+)` \|", re.MULTILINE)


def option_records(name: str, command: click.Command) -> list[tuple[str, str]]:
    """Return the options of a command, each with what it is for."""
    context = click.Context(command, info_name=f"router {name}")
    records = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and not isinstance(parameter, click.Argument):
            records.append((" ".join(record[0].split()), " ".join(record[1].split())))
    return records


def option_line(record: tuple[str, str]) -> str:
    """Return the line of an option."""
    option, text = record
    return f"- `{option}`: {text}" if text else f"- `{option}`"


def described(name: str, command: click.Command, shared: set[tuple[str, str]]) -> str:
    """Return the section of a command: how it is called, what it does in a line, and its options."""
    context = click.Context(command, info_name=f"router {name}")
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    lines = [f"### `{usage}`", COMMANDS[name][1], ""]
    records = option_records(name, command)
    lines += [option_line(record) for record in records if record not in shared]
    options = [f"`{option}`" for option, text in records if (option, text) in shared]
    if options:
        lines.append(f"- {', '.join(options)}")
    if isinstance(command, click.Group):
        for part in command.list_commands(context):
            below = command.get_command(context, part)
            assert below is not None
            lines.append(f"- `{part}`: {below.get_short_help_str(limit=400)}")
    return "\n".join([*lines, ""])


def all_commands() -> str:
    """Return the options that several commands have, and the commands in the groups of `router --help`."""
    context = click.Context(commands)
    names = [name for group in COMMAND_GROUPS.values() for name in group]
    assert set(names) == COMMANDS.keys()
    found = [(name, commands.get_command(context, name)) for name in names]
    counts = Counter(record for name, command in found if command for record in option_records(name, command))
    shared = {}  # by option: another text of the same option stays with its commands
    for (option, text), count in counts.most_common():
        if count > 1:
            shared.setdefault(option, (option, text))
    lines = ["Options of several commands, of which only the names stand below:", ""]
    lines += [*map(option_line, shared.values()), ""]
    sections = [described(name, command, set(shared.values())) for name, command in found if command is not None]
    return "\n".join([*lines, *sections])


def test_the_page_has_every_command_and_option() -> None:
    """Without it a reader looks for an option that was renamed."""
    now = BETWEEN.sub(lambda _: all_commands(), PAGE.read_text())
    if os.environ.get("COMMANDS") == "write":
        PAGE.write_text(now)
    assert PAGE.read_text() == now


@cache
def texts_of_the_code() -> str:
    """Return all texts of the router and its plugins, one a line; of an f-string what stands between its values."""
    found: list[str] = []
    for folder in ("router", "plugins"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            nodes = ast.walk(tree_of(path))
            found += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(found)


@pytest.mark.parametrize("message", [text.replace("\\`", "`") for text in MESSAGE.findall(WHEN_WRONG.read_text())])
def test_a_message_on_the_page_is_one_of_the_code(message: str) -> None:
    """Without it somebody searches the page for the line of the log, and finds nothing."""
    for part in message.split("…"):
        words = part.strip(" :;")
        assert words in texts_of_the_code()


def test_the_page_quotes_messages() -> None:
    """Without it the test above passes because the table has another form."""
    assert len(MESSAGE.findall(WHEN_WRONG.read_text())) > 25


TYPED = re.compile(r"(?:^\s*(?:\$ )?|`)router ([a-z-]+)((?: [^`\n#|]*)?)", re.MULTILINE)
DOCS = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "deploy").glob("*.yaml")]
PAGES = sorted([ROOT / "README.md", *(path for path in DOCS if path != PAGE)])


def options_of(name: str) -> set[str]:
    """Return the options of a command and of the commands below it."""
    command = commands.get_command(click.Context(commands), name)
    assert command is not None, name
    found = [command]
    if isinstance(command, click.Group):
        context = click.Context(command)
        found += [below for part in command.list_commands(context) if (below := command.get_command(context, part))]
    options = {option for one in found for parameter in one.params for option in parameter.opts}
    return {*options, "--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_option_that_a_page_types_exists(page: Path) -> None:
    """Without it a reader types an option that was renamed."""
    for name, arguments in TYPED.findall(page.read_text()):
        if name not in COMMANDS:
            continue  # test_every_command_of_the_pages_exists
        own, _, of_run = arguments.partition(" -- ")
        for text, command in ((own, name), (of_run, "run")):
            typed = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
            if command == "submit":
                continue  # it hands its options to spark-submit
            assert typed <= options_of(command), f"router {name}{arguments}"


def test_every_command_that_a_text_of_the_code_names_exists() -> None:
    """Without it a message, or the description of an option, ends in a command that was renamed."""
    named = set()
    for root in ("router", "plugins"):
        for path in sorted((ROOT / root).rglob("*.py")):
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    named |= set(re.findall(r"`router ([a-z][a-z-]*)", node.value))
    assert named
    assert named <= {*COMMANDS, *HIDDEN_COMMANDS}
