"""See to it that `requests` and `urllib3` are the ones that their names promise."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import requests
import urllib3

from router import StartError

if TYPE_CHECKING:
    from types import ModuleType


def real_stack() -> None:
    """Raise StartError where another package was installed over `requests` or `urllib3`.

    A fork that brings its own HTTP stack (`urllib3-future`, which `niquests` needs) writes itself over the package of
    the same name: calls become slower by a third, and the limits of the pool are gone.
    """
    for module in (requests, urllib3):
        _check(module)


def _check(module: ModuleType) -> None:
    name, is_there = module.__name__, str(getattr(module, "__version__", "?"))
    try:
        installed = version(name)
    except PackageNotFoundError:
        installed = "none"
    if installed != is_there or getattr(module, "__title__", name) != name:
        raise StartError(
            f"the package {name} is not the real one: {name} {installed} is installed, and what is imported says "
            f"{is_there}; a package such as urllib3-future writes over it. Remove that one (niquests brings it), "
            f"then: pip install --force-reinstall {name}"
        )
