"""An infinity that stood in a buffer from the start on is no number that the training came to."""

from __future__ import annotations

import struct
from pathlib import Path

from evidence_cases import record_of, settings_of
from harness_folder import HarnessFolder

from gate.evidence.collect import collect_run
from gate.evidence.run_evidence import RunEvidence
from gate.system.files.files import LocalFiles

NAME = "state/model/0/weight"
INFINITE, NOT_A_NUMBER = float("inf"), float("nan")


def run_with(folder: Path, value: float, *constants: str) -> RunEvidence:
    harness = HarnessFolder(path=folder)
    harness.whole(constant_infinities=constants)
    harness.state(struct.pack("<2f", 1.0, value))
    return collect_run(LocalFiles(), record_of(), folder, folder, b"", settings_of().train)


def test_a_constant_is_not_among_what_never_passes(tmp_path: Path) -> None:
    run = run_with(tmp_path, INFINITE, "model/0/weight")
    assert (run.not_finite, run.constant_infinities) == ((), (NAME,))


def test_an_infinity_that_came_later_is(tmp_path: Path) -> None:
    run = run_with(tmp_path, INFINITE, "model/0/bias")
    assert ([leaf.name for leaf in run.not_finite], run.constant_infinities) == ([NAME], ())


def test_nan_is_never_a_constant(tmp_path: Path) -> None:
    run = run_with(tmp_path, NOT_A_NUMBER, "model/0/weight")
    assert ([leaf.name for leaf in run.not_finite], run.constant_infinities) == ([NAME], ())
