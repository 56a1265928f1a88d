"""`router plugins new`: writes a package for parts of one's own, a copy of the one in new_plugin/ of the repository.

A line there that ends in `# if KIND`, `# if KIND or KIND` or `# unless KIND` depends on the kinds of parts in the copy.
"""

from __future__ import annotations

import re
from importlib.metadata import distributions
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING

import click

from router.cli import shipped_folder
from router.errors import to_printable
from router.registry import FAMILIES, suggest_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

TEMPLATE_DISTRIBUTION = "own-parts"
"""The name that the package has in the repository; its module and its parts have this name with `_`."""
_PACKAGE_NAME = re.compile(r"(?!.{41})[A-Za-z][A-Za-z0-9]*([-_.][A-Za-z0-9]+)*")
"""At most 40 characters: the parts of the package begin with its name, and theirs have 64."""
_CONDITIONAL_LINE = re.compile(r"^(.*?) *# (if|unless) ([a-z ]+)\n", re.MULTILINE)


def _parse_kinds(_context: click.Context, _option: click.Parameter, text: str) -> frozenset[str]:
    """Return the kinds of parts in a list with commas."""
    kinds = frozenset(kind.strip() for kind in text.split(","))
    unknown = sorted(kinds.difference(FAMILIES))
    if unknown:
        near = suggest_names(unknown[0], FAMILIES, "kinds")
        raise click.BadParameter(f"there is no kind of parts `{to_printable(unknown[0])}`; {near}")
    return kinds


def _check_name(_context: click.Context, _argument: click.Parameter, name: str) -> str:
    """Refuse a name that a distribution or its module cannot have, or another module has."""
    module = _module_of(name)
    problem = ""
    if not _PACKAGE_NAME.fullmatch(name) or iskeyword(module):
        problem = "is not a name of at most 40 letters and digits with single `-`, `_` or `.`, or is a word of Python"
    elif spec := find_spec(module):
        places = spec.submodule_search_locations or [spec.origin or ""]
        # One that was written here, and installed as `pip install -e` does, may be written again.
        if not all(Path(place).is_relative_to(Path(name).resolve()) for place in places):
            problem = f"would hide the module `{module}`, which is installed"
    elif any(distributions(name=name)):
        problem = "is a distribution that is installed, which `pip install` would replace"
    if problem:
        raise click.BadParameter(f"`{to_printable(name)}` {problem}; choose another, as `shop-router`")
    return name


@click.command(short_help="Write a package for parts of your own, with tests.")
@click.argument("name", callback=_check_name)
@click.option(
    "--parts",
    "kinds",
    metavar="KIND,...",
    default=",".join(FAMILIES),
    show_default=True,
    callback=_parse_kinds,
    help="Kinds of parts that it has.",
)
@click.option("--force", is_flag=True, help="Overwrite files in a folder that is there already.")
def new(name: str, kinds: frozenset[str], force: bool) -> None:
    """Write a package for parts of your own into the folder NAME.

    It has a file for each kind of part, tests of their contracts, and a configuration that uses them with its route
    test. NAME is that of the distribution; the module and the parts are called alike.
    """
    folder = Path(name)
    if not force and (folder.is_file() or (folder.is_dir() and any(folder.iterdir()))):
        raise click.BadParameter(f"{name} is there already; --force overwrites files in it", param_hint="NAME")
    for path, text in _files_of_package(name, kinds):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        click.echo(target)
    click.echo(f"\nnext:\n  cd {name} && pip install -e . pytest\n  pytest\n  router test orders.test.yaml")


def _module_of(distribution: str) -> str:
    return re.sub(r"[-.]", "_", distribution).lower()


def _files_of_package(name: str, kinds: Set[str]) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file of a package with parts of these kinds."""

    def choose_line(line: re.Match[str]) -> str:
        is_left_out = kinds.isdisjoint(line[3].split()) != (line[2] == "unless")
        return "" if is_left_out else f"{line[1]}\n"

    template = shipped_folder("new_plugin")
    for path in sorted(template.rglob("*.*")):
        is_of_package = path.suffix in {".py", ".toml", ".yaml"}
        if is_of_package and path.stem.removeprefix("test_") not in FAMILIES.keys() - kinds:
            text = _CONDITIONAL_LINE.sub(choose_line, path.read_text(encoding="utf-8"))
            yield _put_name_in(str(path.relative_to(template)), name), _put_name_in(text, name)


def _put_name_in(text: str, name: str) -> str:
    return text.replace(TEMPLATE_DISTRIBUTION, name).replace(_module_of(TEMPLATE_DISTRIBUTION), _module_of(name))
