"""Whole calls: runs are killed inside the save, and what they leave decides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked_trainings import ForkedBench
from gate_bench import Bench
from resumes import TWO, Resumed, gated

from gate.evidence.observations import KilledSave, LeftBy
from gate.settings.variations import KillPoint
from gate.verdict.verdict import Outcome, Verdict

pytestmark = pytest.mark.torch
RENAMED = 'torch.save(state, "out/last.part")\n        os.replace("out/last.part", "out/last.pt")'
IN_PLACE = 'torch.save(state, "out/last.pt")'
IN_MEMORY = (
    "import io; buffer = io.BytesIO(); torch.save(state, buffer); "
    'open("out/last.pt", "wb").write(buffer.getvalue())'
)


def _gated(
    save: str, place: Path, bench: type[Bench] = ForkedBench
) -> tuple[Verdict, tuple[KilledSave, ...]]:
    assert RENAMED in TWO
    script = TWO.replace(RENAMED, save)
    verdict = gated(Resumed(name="killed", script=script, kill=True), place, bench)
    assert verdict.resume is not None
    return verdict, verdict.resume.kills


def test_a_save_in_place_is_torn_at_every_byte(tmp_path: Path) -> None:
    verdict, kills = _gated(IN_PLACE, tmp_path, Bench)
    assert verdict.outcome is Outcome.RESUME_DIFFERS
    assert [(kill.point, kill.left) for kill in kills] == [(one, LeftBy.TORN) for one in KillPoint]
    whole = kills[0].size_bytes
    assert [kill.byte for kill in kills] == [1, whole // 2, whole - 1]
    lines = TWO.replace(RENAMED, IN_PLACE).splitlines()
    assert IN_PLACE in lines[kills[0].line - 1]
    assert "checkpoint-torn" in {one.code for one in verdict.findings}
    if os.geteuid() == 0 and len(os.sched_getaffinity(0)) > 1:
        _went_beside_each_other(verdict)


def _went_beside_each_other(verdict: Verdict) -> None:
    """The resumed run with the first that is killed, then the two others."""
    assert verdict.timeline is not None
    runs = {one.label: one for one in verdict.timeline.runs}
    assert list(runs)[-5:] == [
        "interrupted-1", "resumed-1", "killed-first-byte", "killed-middle", "killed-last-byte",
    ]  # fmt: skip
    for one, other in (("resumed-1", "killed-first-byte"), ("killed-middle", "killed-last-byte")):
        assert runs[one].lane != runs[other].lane
        ends = [run.ended_seconds for run in (runs[one], runs[other])]
        assert max(runs[one].begun_seconds, runs[other].begun_seconds) < min(ends)


def test_a_save_under_another_name_leaves_the_old_one(tmp_path: Path) -> None:
    verdict, kills = _gated(RENAMED, tmp_path)
    assert verdict.outcome is Outcome.NO_BASELINE
    assert {(kill.left, kill.path) for kill in kills} == {(LeftBy.COMPLETE, "out/last.part")}
    assert verdict.resume is not None
    assert verdict.resume.survives_kills


def test_what_torch_does_not_write_is_never_called_safe(tmp_path: Path) -> None:
    verdict, (kill,) = _gated(IN_MEMORY, tmp_path)
    assert verdict.outcome is Outcome.NO_BASELINE
    assert kill.why.startswith("the save could not be interrupted: torch.save wrote to memory")
    (finding,) = (one for one in verdict.findings if one.code == "save-not-interrupted")
    assert finding.message == f"A kill inside the save was not checked: {kill.why}"
