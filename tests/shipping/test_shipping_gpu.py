"""The first half hour on a GPU: its parts, its page and its script, without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_check.__main__ import run_part
from gpu_check.bench import DRY_SIZES, GPU_SIZES, PROJECT, TRAINING, here
from gpu_check.page import page, sections_of, slug
from gpu_check.parts import BY_NAME, PARTS, Part, function_of
from gpu_check.repeating import BENCHMARKED, workload_names
from gpu_check.rows import Answer, Machine, PartResult, held, left_out, read_rows, told
from hypothesis import given
from hypothesis import strategies as st

NAMES = tuple(BY_NAME)
MACHINE = Machine(gpu="NVIDIA H200", software="torch 2.11.0", processor="a processor, 16 cores")
# Each of these is a module that a part's process imports.
PLAYED = """
import os, sys, time
from gpu_check.rows import held, told

def breaks(bench):
    yield held("first", "seen")
    raise RuntimeError("the device fell off the bus")

def refuses(bench):
    from gate.errors import RunError
    yield held("first", "seen")
    raise RunError("run strict-1: exited with 1", hint="Look.", details=("a", "CUDA error: 700"))

def hangs(bench):
    yield told("first", str(bench.gpu))
    time.sleep(1000)

def dies(bench):
    yield held("first", "seen")
    os.abort()

def fails(bench):
    yield held("first", "not so", holds=False)
    yield held("second", "seen")

def holds(bench):
    print("a word of its own")
    yield held("first", "seen")
"""


def result(name: str, text: str = "seen") -> PartResult:
    rows = (held("a thing", text), told("a figure", "7 ms"), left_out("more", "no GPU"))
    return PartResult(name=name, title="a title", rows=rows, seconds=1.5, day="2026-11-22")


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "played_parts.py").write_text(PLAYED, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def run(played: Path, name: str, seconds: float = 60) -> PartResult:
    part = Part(name="played", title="a title", where=f"played_parts:{name}")
    return run_part(part, played, dry=True, seconds=seconds)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("breaks", "ended with 1: RuntimeError: the device fell off the bus"),
        ("dies", "ended with -6"),
        ("refuses", "run strict-1: exited with 1; CUDA error: 700"),
    ],
)
def test_a_part_that_breaks_is_told_with_its_reason_and_keeps_what_it_saw(
    played: Path, name: str, why: str
) -> None:
    found = run(played, name)
    assert [row.what for row in found.rows] == ["first", "the part itself"]
    assert found.failed
    assert why in found.rows[-1].told


def test_a_part_that_hangs_is_ended_and_told(played: Path) -> None:
    found = run(played, "hangs", seconds=2)
    assert (found.failed, found.rows[-1].what) == (True, "the part itself")
    assert found.rows[-1].told.startswith("took longer than 2 s")


def test_a_thing_that_does_not_hold_fails_its_part_and_ends_nothing(played: Path) -> None:
    found = run(played, "fails")
    assert [row.answer for row in found.rows] == [Answer.FAILED, Answer.HELD]
    assert (found.failed, found.summary) == (True, "1 held, 1 failed")


def test_what_a_part_prints_is_no_row(played: Path) -> None:
    found = run(played, "holds")
    assert (found.rows, found.failed) == ((held("first", "seen"),), False)


def test_a_row_that_was_cut_off_is_passed_over() -> None:
    row = told("a", "b")
    assert read_rows([f"{row.line()}\n", row.line()[:-4]]) == (row,)


@given(st.lists(st.sampled_from(NAMES), unique=True), st.sampled_from(NAMES))
def test_a_part_that_ran_again_writes_its_own_section_alone(names: list[str], again: str) -> None:
    before = page(tuple(map(result, names)), MACHINE, NAMES)
    after = page((result(again, "anew"),), MACHINE, NAMES, before)
    old, new = sections_of(before), sections_of(after)
    assert list(new) == [name for name in NAMES if name in {*names, again}]
    assert "anew" in new[again]
    assert all(old[name].strip() == new[name].strip() for name in old if name != again)


@given(st.text())
def test_no_text_of_a_row_leaves_its_cell_or_starts_a_section(text: str) -> None:
    one = page((result("facts", text),), MACHINE, NAMES)
    assert list(sections_of(one)) == ["facts"]
    rows = [line for line in one.splitlines() if line.startswith("| ")]
    assert len(rows) == 4
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 4 for row in rows)


def test_a_section_tells_machine_versions_and_target() -> None:
    one = page((result("facts"),), MACHINE, NAMES)
    assert one.startswith("# The first half hour on a GPU: NVIDIA H200\n")
    assert "`make gpu-facts`, 2026-11-22, 2 s: 1 held, 1 told, 1 left out.\n" in one
    assert "torch 2.11.0; a processor, 16 cores.\n" in one


@pytest.mark.parametrize(
    ("gpu", "name"),
    [("NVIDIA H200", "h200"), ("Tesla V100-SXM2-16GB", "tesla-v100-sxm2-16gb"), ("", "cpu")],
)
def test_the_page_is_named_after_the_gpu(gpu: str, name: str) -> None:
    assert slug(gpu) == name


@pytest.mark.torch
def test_each_part_has_a_function_a_target_and_a_row_in_the_guide() -> None:
    makefile = (PROJECT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    (targets,) = re.findall(r"^GPU_PARTS := \$\(addprefix gpu-,(.*)\)$", makefile, re.MULTILINE)
    guide = (PROJECT / "CONTRIBUTING.md").read_text("utf-8").partition("### On a GPU")[2]
    rows = re.findall(r"^\| `([a-z]+)` \|", guide.partition("\n## ")[0], re.MULTILINE)
    assert tuple(targets.split()) == tuple(rows) == NAMES
    assert all(callable(function_of(part.where)) for part in PARTS)


def test_there_are_fifteen_workloads_and_fifty_repeats() -> None:
    names = workload_names()
    assert (len(names), names[-1], GPU_SIZES.repeats) == (15, BENCHMARKED, 50)
    assert DRY_SIZES.repeats < GPU_SIZES.repeats


def test_the_trainings_know_nothing_of_the_gate() -> None:
    for path in TRAINING.glob("*.py"):
        assert not re.search(r"^(from|import) (gate|gpu_check|repro_gate)", path.read_text("utf-8"))


def test_a_child_keeps_the_callers_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/carried:{PROJECT}")
    assert here()["PYTHONPATH"] == f"{PROJECT}:{PROJECT / 'benchmarks'}:/carried"


@pytest.mark.parametrize("wheels", [False, True])
def test_the_script_keeps_the_callers_packages(tmp_path: Path, *, wheels: bool) -> None:
    """`make gpu VENV=` on a machine without network: packages come by PYTHONPATH or as wheels."""
    carried, programs = tmp_path / "carried", tmp_path / "bin"
    carried.mkdir()
    programs.mkdir()
    (carried / "one.whl").touch()
    python = programs / "python3"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(carried), "VENV": ""}
    if wheels:
        variables["WHEELS"] = str(carried)
    script = PROJECT / "scripts" / "gpu.sh"
    ended = subprocess.run(
        (script, "--dry", "facts"), env=variables, capture_output=True, text=True, check=True
    )
    *before, last = ended.stdout.splitlines()
    path, *words = last.split()
    kept = path.split(":")
    assert kept[:3] == [str(PROJECT), str(PROJECT / "benchmarks"), str(carried)]
    assert words == ["-m", "gpu_check", "--dry", "facts"]
    assert len(kept) == 3 + wheels
    assert any(f"--target {kept[-1]} {carried}/one.whl" in line for line in before) == wheels


@pytest.mark.torch
def test_without_a_gpu_it_says_what_can_be_done() -> None:
    ended = subprocess.run(
        (sys.executable, "-m", "gpu_check", "facts"),
        env=here() | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "`make gpu-dry` runs what a CPU can" in ended.stderr


def test_a_part_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    ended = subprocess.run(
        (sys.executable, "-m", "gpu_check", "factz"),
        env=here(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "factz: there are facts, tests," in ended.stderr
