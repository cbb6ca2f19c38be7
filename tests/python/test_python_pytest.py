"""The plug-in in a run of pytest of its own, and the pages' code in a notebook."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played_training import SETTINGS, Project

from repro_gate import pytest_plugin

pytest_plugins = ("pytester",)

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
PLUGIN = ("-p", "repro_gate.pytest_plugin")
TESTS = """
import pytest

QUICK = {"isolation": {"mode": "none"}, "cost": {"when": "never"}}

@pytest.mark.reproducible("python3 train.py", max_steps=3, settings=QUICK)
def test_marked():
    print("then the test")

@pytest.mark.reproducible("python3 train.py")
def test_without_steps():
    pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A played training in the root folder of a run of pytest."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # it takes a second of each start, and no law here is about it
    # nor is one about the fixture of kmock, whose plug-in needs another package
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:kmock")
    made = Project(pytester.path / "project")
    made.write("repro-gate.yml", "")
    (made.path / "repro-gate.yml").unlink()
    made.write(".gitignore", "__pycache__/\n.pytest_cache/\n")
    made.write("tests/test_training.py", TESTS)
    made.write("pytest.ini", "[pytest]\naddopts = --strict-markers\n")
    made.commit()
    # a marker's folder is the root of the run, wherever it was started
    os.chdir(made.path / "tests")
    return made


def test_a_marked_test_is_recorded_passes_and_fails(
    pytester: pytest.Pytester, project: Project
) -> None:
    def ran(*words: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess(*PLUGIN, "-k", "marked", *words)

    first = ran()
    first.assert_outcomes(failed=1)
    first.stdout.fnmatch_lines(["repro-gate repeatable; no baseline yet"])
    first.stdout.no_fnmatch_line("*pytest_plugin.py*")

    recorded = ran("--repro-gate-update")
    recorded.assert_outcomes(passed=1)
    recorded.stdout.fnmatch_lines(
        ["recorded: .repro-gate/python3-train.py/baseline/cpu-*.json", "Review and commit*"]
    )
    again = ran("-s")
    again.assert_outcomes(passed=1)
    again.stdout.fnmatch_lines(["*then the test*"])
    again.stdout.no_fnmatch_line("recorded:*")

    project.play(losses=["2.5", "2.25", "2.0"])
    moved = ran()
    moved.assert_outcomes(failed=1)
    moved.stdout.fnmatch_lines(
        [
            "repro-gate failed: this change moves the result",
            "What happened? Loss at step 3: 2 instead of 2.125*",
            "Is it this change? Yes. Same machine and packages as the baseline.",
            "What now? If intended: record it with `pytest --repro-gate-update`*",
        ]
    )


def test_two_tests_that_share_a_baseline_are_told_to_have_names(
    project: Project, pytester: pytest.Pytester
) -> None:
    marked = (
        '@pytest.mark.reproducible("python3 train.py", max_steps={0})\ndef test_{0}():\n    pass\n'
    )
    project.write("tests/test_training.py", f"import pytest\n{marked.format(2)}{marked.format(3)}")
    project.commit()
    ended = pytester.runpytest_subprocess(*PLUGIN, "--repro-gate-update")
    ended.assert_outcomes(passed=2)
    ended.stdout.fnmatch_lines([".repro-gate/*/baseline: tests with different*own."])


@pytest.mark.usefixtures("project")
def test_a_wrong_marker_fails_with_its_hint(pytester: pytest.Pytester) -> None:
    ended = pytester.runpytest_subprocess(*PLUGIN, "-k", "without_steps")
    ended.assert_outcomes(failed=1)
    ended.stdout.fnmatch_lines(["train.max_steps: is required", "hint: *"])
    ended.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.usefixtures("project")
def test_the_option_and_the_marker_are_listed(pytester: pytest.Pytester) -> None:
    pytester.runpytest_subprocess(*PLUGIN, "--help").stdout.fnmatch_lines(
        ["repro-gate:*", "*--repro-gate-update*"]
    )
    pytester.runpytest_subprocess(*PLUGIN, "--markers").stdout.fnmatch_lines(
        ["@pytest.mark.reproducible(command, max_steps=*"]
    )


def test_an_older_pytest_loads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # as pluggy 1.0 has it, with which pytest 7 runs
    known = {"hookwrapper", "optionalhook", "tryfirst", "trylast"}

    def hookimpl(**words: bool) -> Callable[[object], object]:
        assert words.keys() <= known
        return lambda hook: hook

    monkeypatch.setattr(pytest, "hookimpl", hookimpl)
    spec = importlib.util.find_spec("repro_gate.pytest_plugin")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_properties_of_other_plug_ins_harm_nobody() -> None:
    entries = [{"a": 1}, ("three", "of", "them"), None, (pytest_plugin.RECORDED, "x.json")]
    stats = {"": [SimpleNamespace(user_properties=entries), object()]}
    reporter: Any = SimpleNamespace(stats=stats)
    assert list(pytest_plugin._recorded(reporter)) == ["x.json"]


def test_workers_of_xdist_report_what_they_recorded(
    pytester: pytest.Pytester, project: Project
) -> None:
    own = TESTS.replace('"python3 train.py")', '"python3 train.py", max_steps=2)')
    project.write("tests/test_training.py", own)
    project.commit()
    ended = pytester.runpytest_subprocess(*PLUGIN, "-n", "2", "--repro-gate-update", "-k", "marked")
    ended.assert_outcomes(passed=1)
    ended.stdout.fnmatch_lines(["recorded: .repro-gate/*"])


def test_the_code_of_the_page_runs_in_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # schemas again, which take seconds of every process that collects tests
    import nbclient  # noqa: PLC0415
    import nbformat  # noqa: PLC0415

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    project = Project(tmp_path / "project")
    project.write("repro-gate.yml", SETTINGS)
    project.commit()
    blocks = re.findall(r"```python\n(import repro_gate.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2, "two pieces of the page are about notebooks and scripts"
    asserted, looked = (block.replace("python train.py", "python3 train.py") for block in blocks)
    asserted = asserted.replace("max_steps=20", "max_steps=3, update=True")
    again = asserted.replace(", update=True", "")
    cells = (asserted, again, looked)
    book: Any = nbformat.from_dict(  # type: ignore[no-untyped-call] # nbformat has none
        {
            "cells": [
                {
                    "cell_type": "code",
                    "source": cell,
                    "metadata": {},
                    "outputs": [],
                    "id": f"c{place}",
                }
                | {"execution_count": None}
                for place, cell in enumerate(cells)
            ],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )
    nbclient.NotebookClient(book, resources={"metadata": {"path": str(project.path)}}).execute()
    texts = [
        "".join(one["text"] for one in cell["outputs"] if one.get("name") == "stdout")
        for cell in book["cells"]
    ]
    assert texts[0].startswith("no-baseline ")
    assert texts[1].startswith("reproduced ")
    assert "{1: 2.5, 2: 2.25, 3: 2.125}" in texts[1]
    assert texts[2].startswith("repro-gate passed: same result, bit for bit")
    assert texts[2].endswith("True 0\n")
