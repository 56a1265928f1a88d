"""The public names are those of `__all__`, and the examples of the hooks run."""

from __future__ import annotations

import doctest
import inspect

import pytest

import router
from router.api import hookspecs

HOOKS = ["router_decoders", "router_rules", "router_sinks", "router_encoders", "router_views", "router_batch_finished"]


def test_public_names():
    names = [name for name, value in vars(router).items() if name[0] != "_" and not inspect.ismodule(value)]

    assert sorted(router.__all__) == sorted(names)


@pytest.mark.parametrize("name", HOOKS)
def test_example_of_a_hook_runs(name):
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(getattr(hookspecs, name), name, globs={"__name__": name})

    results = doctest.DocTestRunner().run(example, clear_globs=False)

    assert results.attempted > 0
    assert results.failed == 0
    assert name in example.globs


def test_every_hook_is_tested_above():
    hooks = {name for name in vars(hookspecs) if name.startswith("router_")}

    assert hooks == set(HOOKS)
