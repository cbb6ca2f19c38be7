"""Seeds on record: whose generator, which number, which line; and that nothing else is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

STEP = """
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.square().sum().backward()
optimizer.step()
"""
# name of the generator, value, whether it came from outside; the line is found by the comment
PRIVATE = """
import random, numpy, torch
numpy.random.default_rng(11)  # numpy.random.default_rng 11 reseed
numpy.random.default_rng()  # numpy.random.default_rng * entropy
numpy.random.RandomState(12)  # numpy.random.RandomState 12 reseed
numpy.random.RandomState(seed=13)  # numpy.random.RandomState 13 reseed
random.Random(14)  # random.Random 14 reseed
random.Random()  # random.Random * entropy
class Own(random.Random): pass
Own(15)  # random.Random 15 reseed
data = torch.utils.data.TensorDataset(torch.ones(4))
own = torch.Generator().manual_seed(16)  # torch.Generator.manual_seed 16 reseed
own.seed()  # torch.Generator.seed * entropy
list(torch.utils.data.DataLoader(data, shuffle=True, generator=own))
"""
# Whatever a program does with these classes works as it did.
UNCHANGED = """
import copy, pickle, random, tempfile, numpy, torch
state = numpy.random.RandomState(3)
kept = pickle.loads(pickle.dumps(state))
assert kept.randint(1000) == copy.deepcopy(state).randint(1000)
for one in (state, kept, numpy.random.mtrand._rand):
    assert isinstance(one, numpy.random.RandomState)
class Own(numpy.random.RandomState): pass
assert isinstance(Own(4), Own) and not isinstance(state, Own)
assert issubclass(Own, numpy.random.RandomState)
assert pickle.loads(pickle.dumps(numpy.random.RandomState)) is numpy.random.RandomState
assert numpy.random.RandomState(numpy.random.MT19937(3)).randint(9) >= 0
assert pickle.loads(pickle.dumps(random.Random(5))).random() == random.Random(5).random()
assert numpy.random.default_rng(rng := numpy.random.default_rng(6)) is rng
class Picky(random.Random):
    def seed(self, a=None, version=2): super().seed(9, version)
assert Picky(1).random() == random.Random(9).random()
assert random.SystemRandom().random() < 1
@torch.compile(backend="eager")
def double(value): return value * 2
assert double(torch.ones(1)) == 2
with tempfile.TemporaryDirectory(): pass
"""


def seeds(outcome: Outcome, scope: str = "private") -> list[dict[str, Any]]:
    return [line for line in outcome.lines("overrides") if line["scope"] == scope]


def test_each_private_generator_is_told_with_its_line_and_value(harness: Harness) -> None:
    outcome = harness.run(PRIVATE + STEP)
    assert (outcome.code, outcome.stderr) == (0, "")
    wanted = [
        (number, *line.partition("# ")[2].split())
        for number, line in enumerate(PRIVATE.splitlines(), start=1)
        if "# " in line
    ]
    found = [(line["line"], line["name"], line["after"], line["kind"]) for line in seeds(outcome)]
    drawn = [(*one[:2], "*" if one[3] == "entropy" else one[2], one[3]) for one in found]
    assert drawn == wanted
    assert all(line["file"] == "script.py" for line in seeds(outcome))


def test_the_seed_that_a_generator_drew_for_itself_is_another_one_in_each_run(
    harness: Harness,
) -> None:
    script = "import numpy, torch\nnumpy.random.default_rng()\n" + STEP
    first, second = (seeds(harness.run(script))[0] for _ in range(2))
    assert first["after"].isdigit()
    assert first["after"] != second["after"]


def test_programs_find_the_classes_as_they_were(harness: Harness) -> None:
    outcome = harness.run(UNCHANGED + STEP)
    assert (outcome.code, outcome.stderr) == (0, "")


def test_what_pythons_library_makes_for_itself_is_not_told(harness: Harness) -> None:
    script = "import tempfile, torch\nwith tempfile.TemporaryDirectory(): pass\n" + STEP
    assert "overrides" not in harness.run(script).names()


def test_private_generators_never_crowd_out_what_turns_a_knob(harness: Harness) -> None:
    many = "".join(f"random.Random({number})\n" for number in range(300))
    turned = "torch.backends.cudnn.benchmark = True\n"
    outcome = harness.run("import random, torch\n" + many + turned + STEP)
    assert len(seeds(outcome)) == 100
    assert outcome.lines("overrides")[-1]["name"] == "cudnn_benchmark"


def test_a_library_that_draws_a_seed_while_it_is_imported_is_told_as_that(harness: Harness) -> None:
    script = """
import pathlib, sys
folder = pathlib.Path("site-packages")
folder.mkdir()
(folder / "wordy.py").write_text("import numpy\\nrng = numpy.random.default_rng()\\n")
(folder / "lazy.py").write_text("import numpy\\ndef make(): return numpy.random.default_rng()\\n")
sys.path.insert(0, str(folder))
import torch
import wordy  # imported
import lazy
lazy.make()  # called
"""
    outcome = harness.run(script + STEP)
    lines = {number for number, line in enumerate(script.splitlines(), 1) if "# imported" in line}
    assert [(line["importing"], line["line"] in lines) for line in seeds(outcome)] == [
        (True, True),
        (False, False),
    ]


OF_A_PACKAGE = """
import os, sys
os.makedirs("env/site-packages/loaders")
lines = ("import random", "def shuffled(items):", "    random.Random(2)", "    yield from items")
with open("env/site-packages/loaders/filters.py", "w") as file:
    print(*lines, sep=chr(10), file=file)
sys.path.insert(0, os.path.abspath("env/site-packages"))
import torch
from loaders.filters import shuffled
for item in shuffled([1, 2]):
    pass
"""


def test_a_seed_that_a_package_gives_is_told_with_its_own_line(harness: Harness) -> None:
    outcome = harness.run(OF_A_PACKAGE + STEP)
    assert outcome.code == 0, outcome.stderr
    (line,) = (one for one in outcome.lines("overrides") if one["name"] == "random.Random")
    assert (line["file"], line["line"]) == ("script.py", 10)
    assert line["stack"] == ["loaders/filters.py:3 shuffled", "script.py:10 <module>"]
