"""Variables are judged where a step ends: a library may empty the environment around a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = pytest.mark.torch

VARIABLES = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "PYTHONHASHSEED": "1",
    "REPRO_GATE_KNOBS": "cublas_workspace=:4096:8;hash_seed=1;omp_threads=1",
}
SCRIPT = """
import contextlib, os, subprocess, sys, unittest.mock
import torch
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)

@contextlib.contextmanager
def clear_environment():
    before = os.environ.copy()
    os.environ.clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)

def around(number): {around}

for number in range({steps}):
    around(number)
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
{after}
"""
RESTORING = """
    if number == 1:
        with unittest.mock.patch.dict(os.environ, {'A': 'b'}, clear=True): pass
    if number == 2:
        # as accelerate does
        with clear_environment(): pass
    if number == 3:
        kept = os.environ.pop('PYTHONHASHSEED'); os.environ['PYTHONHASHSEED'] = kept
    if number == 4:
        os.environ['OMP_NUM_THREADS'] = '7'; os.environ['OMP_NUM_THREADS'] = '1'"""


@pytest.mark.parametrize("mode", ["observe", "restore", "fail"])
def test_a_variable_that_is_back_before_the_step_ends_is_not_told(
    harness: Harness, mode: str
) -> None:
    script = SCRIPT.format(around=RESTORING, steps=6, after="print('to the end')")
    outcome = harness.run(
        script, REPRO_GATE_ON_OVERRIDE=mode, REPRO_GATE_MAX_STEPS="9", **VARIABLES
    )
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "to the end\n", "")
    # a step that told one would have a line in a file of overrides
    assert outcome.names() == ["ended", "process", "state", "steps", "summary"]
    assert outcome.document("summary")["overridden"] == 0


@pytest.mark.parametrize("mode", ["observe", "restore"])
def test_a_variable_that_is_left_changed_is_told_with_the_line_that_changed_it(
    harness: Harness, mode: str
) -> None:
    left = "\n    os.environ.pop('PYTHONHASHSEED')\n    os.environ['A'] = 'b'"
    around = f"\n    if number != 1: return{left}"
    script = SCRIPT.format(around=around, steps=3, after="print(os.environ.get('PYTHONHASHSEED'))")
    outcome = harness.run(
        script, REPRO_GATE_ON_OVERRIDE=mode, REPRO_GATE_MAX_STEPS="9", **VARIABLES
    )
    (line,) = outcome.lines("overrides")
    changed = 1 + script.splitlines().index("    os.environ.pop('PYTHONHASHSEED')")
    assert (line["name"], line["line"], line["step"]) == ("hash_seed", changed, 2)
    assert (line["after"], line["closed"], line["restored"]) == ("", False, mode == "restore")
    assert outcome.stdout == ("1\n" if mode == "restore" else "None\n")


def test_a_variable_changed_after_the_last_step_is_told_at_the_end_of_the_script(
    harness: Harness,
) -> None:
    script = SCRIPT.format(around="pass", steps=3, after="del os.environ['PYTHONHASHSEED']")
    (line,) = harness.run(script, REPRO_GATE_MAX_STEPS="9", **VARIABLES).lines("overrides")
    assert (line["name"], line["step"]) == ("hash_seed", 4)
