"""Every script of `checkpoints` saves all that it used; without a marked line, that part is named.

Both laws hold in one place: what is missing is named exactly, and nothing else is accused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from harness_runs import HarnessRuns, copy_harness

from gate.evidence.run_evidence import RunEvidence
from gate.verdict.findings import checkpoint_incomplete

SCRIPTS = {path.stem: path for path in sorted((Path(__file__).parent / "checkpoints").glob("*.py"))}
MARK = "  # part: "
# the tier with torch takes these, `make test-zoo` all of them
SAMPLE = ("complete-scheduler", "complete-position of the DataLoader", "trainer_folder-optimizer")


def _marked() -> Iterator[ParameterSet]:
    for name, path in SCRIPTS.items():
        for number, line in enumerate(path.read_text().splitlines()):
            _, mark, part = line.partition(MARK)
            case = f"{name}-{part}"
            marks = () if case in SAMPLE else (pytest.mark.slow,)
            if mark:
                yield pytest.param(name, number, part, id=case, marks=marks)


MARKED = tuple(_marked())
FOLDERS = ("distributed_folder", "trainer_folder")

pytestmark = pytest.mark.torch


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> HarnessRuns:
    folder = copy_harness(tmp_path_factory.mktemp("harness") / "copy")
    return HarnessRuns(folder=folder, runs=tmp_path_factory.mktemp("runs"))


def _run(harness: HarnessRuns, name: str, leave_out: int = -1) -> RunEvidence:
    lines = SCRIPTS[name].read_text().splitlines()
    kept = [line.partition(MARK)[0] for number, line in enumerate(lines) if number != leave_out]
    checkpoint = "checkpoint" if name in FOLDERS else "checkpoint.pt"
    source = "\n".join(kept) + "\n"
    return harness.run(source, checkpoint=checkpoint, REPRO_GATE_MAX_STEPS="8")


def test_at_least_eight_parts_are_left_out_once() -> None:
    assert len({part for _, _, part in (param.values for param in MARKED)}) >= 8
    assert len(SCRIPTS) >= 8


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_complete_checkpoint_is_not_accused(harness: HarnessRuns, name: str) -> None:
    run = _run(harness, name)
    assert run.resumability is not None
    assert run.resumability.lacks == ()
    assert checkpoint_incomplete(run, "checkpoint.pt") == ()


@pytest.mark.parametrize(("name", "line", "part"), MARKED)
def test_the_part_that_is_left_out_is_named_and_no_other(
    harness: HarnessRuns, name: str, line: int, part: str
) -> None:
    run = _run(harness, name, line)
    assert run.resumability is not None
    assert [(lack.part, lack.known) for lack in run.resumability.lacks] == [(part, True)]
    (finding,) = checkpoint_incomplete(run, "checkpoint.pt")
    assert f" lacks the {part}" in finding.message


def test_a_save_that_is_renamed_is_not_in_place(harness: HarnessRuns) -> None:
    script = SCRIPTS["plain_steps"].read_text()
    beside = script.replace(
        '"checkpoint.pt")', '"part")\n    __import__("os").replace("part", "checkpoint.pt")'
    )
    for source, overwritten in ((script, True), (beside, False)):
        run = harness.run(source, checkpoint="checkpoint.pt", REPRO_GATE_MAX_STEPS="12")
        assert run.resumability is not None
        assert run.resumability.overwritten is overwritten


def test_the_line_that_draws_is_named(harness: HarnessRuns) -> None:
    lines = SCRIPTS["complete"].read_text().splitlines()
    left_out = next(number for number, line in enumerate(lines) if "np.random.get_state" in line)
    run = _run(harness, "complete", left_out)
    assert run.resumability is not None
    (lack,) = run.resumability.lacks
    assert lack.file == "script.py"
    assert "np.random.rand()" in lines[lack.line - 1]
