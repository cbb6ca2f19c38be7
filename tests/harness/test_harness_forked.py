"""A script that a fork runs sees what one in a Python of its own sees: most tests rest on it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

# before torch and after it, with what only a Python that starts has
SEES = """
import json, sys, os
from __main__ import __file__ as own
def names():
    return sorted(name for name in sys.modules if not name.startswith("__"))
told = {"before": names(), "argv": [sys.argv, sys.orig_argv[1:], sys.path, own, os.getcwd()]}
told["frames"] = sys._getframe().f_code.co_filename
told["variables"] = dict(os.environ)
import numpy, torch.nn.utils
from torch.nn.utils import weight_norm
told["after"] = names()
told["same"] = [callable(weight_norm), torch.nn.utils is sys.modules["torch.nn.utils"]]
told["threads"] = [torch.get_num_threads(), torch.is_grad_enabled(), torch.initial_seed()]
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.rand(3, 2)).sum().backward()
    optimizer.step()
told["drawn"] = [numpy.random.rand(), model.weight.tolist()]
print(json.dumps(told))
"""
# a place of its own for each, and what the harness measures
OWN = {"script.py", "parent", "pid", "memory_bytes", "peak_memory_bytes", "seed_torch"}


def shape(value: object, folder: Path) -> object:
    """A document without what is its own in each process: times, sizes, its place."""
    if isinstance(value, dict):
        return {name: shape(part, folder) for name, part in value.items() if name not in OWN}
    if isinstance(value, list):
        return [shape(part, folder) for part in value]
    return "seconds" if isinstance(value, float) else str(value).replace(str(folder), "HERE")


def seen(outcome: Outcome) -> dict[str, Any]:
    """What a script printed, what it left and how it ended."""
    left = [outcome.document(kind) for kind in ("process", "summary")] + outcome.lines("steps")
    printed = json.loads(outcome.stdout)
    drawn = printed.pop("drawn")
    state = outcome.path("state").read_bytes()
    told = shape([printed, left, outcome.names(), outcome.code, outcome.stderr], outcome.out.parent)
    return {"told": told, "drawn": drawn, "state": state}


def test_a_script_of_these_tests_is_forked(harness: Harness) -> None:
    # a variable that is not known to be read late would cost each of them an import of torch
    parent = harness.run("import os, torch; print(os.getppid())").stdout
    assert int(parent) != os.getpid()


def test_it_sees_and_leaves_the_same(harness: Harness) -> None:
    assert seen(harness.run(SEES)) == seen(replace(harness, forked=False).run(SEES))


@pytest.mark.parametrize(
    "ends",
    [
        "def deep(): raise ValueError('wrong')\ndeep()",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a word')",
        "import os; os.abort()",
        "def broken(:",
        "import atexit; atexit.register(print, 'later'); print('now')",
    ],
)
def test_it_ends_alike(harness: Harness, ends: str) -> None:
    ways = (harness, replace(harness, forked=False))
    one, other = (
        (way.code, way.stdout, way.stderr.replace(str(way.out.parent), "HERE"), way.names())
        for way in (way.run(f"import torch\n{ends}\n") for way in ways)
    )
    assert one == other


def test_generators_begin_anew_in_each(harness: Harness) -> None:
    draws = (
        "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1))"
    )
    one, other = (harness.run(draws, PYTHONPATH="").stdout.split() for _ in range(2))
    assert not set(one) & set(other)
