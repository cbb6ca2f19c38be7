"""The start-up hook in processes that never import torch."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.conftest import Harness


def test_a_process_without_torch_says_only_that_it_had_none(harness: Harness) -> None:
    outcome = harness.run("import random; print(random.random())")
    assert (outcome.code, outcome.stderr, outcome.names()) == (0, "", ["untrained"])
    expected = random.Random(harness.seed).random()  # noqa: S311 - the generator of a seed is the subject
    assert outcome.stdout == f"{expected}\n"


def test_the_start_imports_nothing_but_itself(harness: Harness) -> None:
    source = "import sys; print(*sorted(sys.modules))"
    free = set(harness.run(source, PYTHONPATH="").stdout.split())
    start = (f".lifecycle.{name}" for name in ("start", "import_hook", "children"))
    # the hooks have to be there before the script opens a file or asks for a variable
    files = (".sources", ".sources.outside", ".sources.variables")
    parts = ("", ".settings", ".this_process", ".lifecycle", *start, *files)
    own = {f"repro_gate_harness{name}" for name in parts}
    cheap = {"sitecustomize", "__future__", "atexit"}
    assert set(harness.run(source).stdout.split()) <= free | own | cheap


def test_starting_costs_little(harness: Harness) -> None:
    """Counted in calls, which are the same on every machine; the target is 5 ms."""
    outcome = harness.run(
        "import sys\n"
        "for name in [name for name in sys.modules if name.startswith('repro_gate')]:\n"
        "    del sys.modules[name]\n"
        "calls = 0\n"
        "def count(frame, event, argument):\n"
        "    global calls\n"
        "    calls += event in ('call', 'c_call')\n"
        "sys.setprofile(count)\n"
        "import repro_gate_harness.lifecycle.start\n"
        "sys.setprofile(None)\n"
        "print(calls)\n"
    )
    assert 100 < int(outcome.stdout) < 1_500


def test_without_its_variables_the_harness_stays_away(harness: Harness) -> None:
    source = "import sys; print('repro_gate_harness' in sys.modules)"
    outcome = harness.run(
        "import os, subprocess, sys\n"
        "os.environ.pop('REPRO_GATE_OUT')\n"
        f"subprocess.run([sys.executable, '-c', {source!r}])\n"
    )
    assert (outcome.stdout, outcome.stderr) == ("False\n", "")


def test_a_broken_variable_is_told_and_the_script_runs(harness: Harness) -> None:
    outcome = harness.run("print('ran')", REPRO_GATE_SEED="one")
    assert (outcome.code, outcome.stdout) == (0, "ran\n")
    assert outcome.stderr == (
        "repro-gate: the harness did not start: REPRO_GATE_SEED is 'one', not a whole number\n"
    )


def test_a_malformed_knob_is_told(harness: Harness) -> None:
    outcome = harness.run("print('ran')", REPRO_GATE_KNOBS="memory_fill")
    assert outcome.stdout == "ran\n"
    assert "REPRO_GATE_KNOBS: 'memory_fill' is not name=value" in outcome.stderr


@pytest.mark.parametrize("variable", ["REPRO_GATE_MODE", "REPRO_GATE_THREADS"])
def test_an_empty_variable_is_told(harness: Harness, variable: str) -> None:
    outcome = harness.run("print('ran')", **{variable: ""})
    assert outcome.stdout == "ran\n"
    assert outcome.stderr == f"repro-gate: the harness did not start: {variable} is not set\n"


def test_the_root_of_all_folders_is_none_of_a_run(harness: Harness) -> None:
    # a root user could write there
    outcome = harness.run("print('ran')", REPRO_GATE_OUT="//")
    assert outcome.stdout == "ran\n"
    assert outcome.stderr == (
        "repro-gate: the harness did not start: REPRO_GATE_OUT is '//', not the folder of a run\n"
    )


def test_the_users_own_sitecustomize_still_runs(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine', __file__)", encoding="utf-8")
    outcome = harness.run("import sitecustomize; print('ran')", python_path=str(tmp_path))
    assert outcome.stdout == f"mine {tmp_path}/sitecustomize.py\nran\n"
    assert outcome.stderr == ""


def test_an_error_in_the_users_sitecustomize_is_reported_as_python_does(
    harness: Harness, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("1 / 0", encoding="utf-8")
    outcome = harness.run("print('ran')", python_path=str(tmp_path))
    assert (outcome.code, outcome.stdout) == (0, "ran\n")
    assert "Error in sitecustomize" in outcome.stderr
    assert "ZeroDivisionError: division by zero" in outcome.stderr
