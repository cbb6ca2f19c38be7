"""What is trained is exported once, before any training, and must still be that at the end."""

from __future__ import annotations

import pytest
from gate_bench import Bench
from played_training import SCRIPT, Project

from gate.errors import RepositoryError, RunError
from gate.verdict.verdict import Outcome

# under isolation none a training may write wherever the gate may
MEDDLE = """
import os, pathlib
work = pathlib.Path(os.environ["HOME"]).parents[1]
project = work.parents[1] / "project"
"""
MOVED: dict[str, object] = {
    "environment": {"torch": "9"},
    "losses": ["2.5", "2.25", "2.0"],
}


def meddle(project: Project, line: str, **play: object) -> None:
    """Let the training do something more, and commit that."""
    project.write("train.py", f"{MEDDLE}{line}\n{SCRIPT}")
    project.play(**play)


@pytest.mark.parametrize(
    "line",
    [
        "(work / 'head-snapshot' / 'helper.py').touch()",
        "(work / 'head-snapshot' / 'train.py').write_text('pass')",
    ],
)
def test_a_training_that_changes_what_the_next_run_starts_from_is_an_error(
    bench: Bench, project: Project, line: str
) -> None:
    meddle(project, line.replace("'pass'", "open(__file__).read() + ' '"))
    with pytest.raises(RunError) as caught:
        bench.gate()
    assert caught.value.message == ("the exported head commit changed on disk while the gate ran")
    assert "isolation.minimum: uid" in caught.value.hint


def test_git_does_not_look_at_a_clone_after_a_training(bench: Bench, project: Project) -> None:
    """Its configuration could name a program by then; a broken clone shows that nobody looks."""
    bench.record()
    meddle(project, "(project / '.git' / 'HEAD').unlink(missing_ok=True)", **MOVED)
    verdict = bench.gate(base="HEAD").verdict
    assert verdict.outcome is not Outcome.ERROR
    assert [run.label for run in verdict.runs][-2:] == ["base-1", "base-2"]


def test_a_base_that_cannot_be_exported_counts_only_when_it_must_run(
    bench: Bench, project: Project
) -> None:
    base = project.forged(("160000", b"vendored", "a" * 40))
    assert bench.gate(base=base).verdict.outcome is Outcome.NO_BASELINE
    bench.record()
    project.play(**MOVED)
    with pytest.raises(RepositoryError, match="vendored is a separate repository"):
        bench.gate(base=base)
