"""The training's files are swapped between the gate's steps: nothing changes, or an error follows.

A process that outlived its run, or shares the gate's account, could do that.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from gate_bench import FILES, Bench, gate_call

from gate.errors import StorageError
from gate.isolation.answering_client import LocalAnsweringProcess
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.stop_signals import StopSignals
from gate.package.archive import read_archive
from gate.package.members import write_package
from gate.pipelines.case import Gated
from gate.pipelines.confined_reader import read_question
from gate.pipelines.reader_questions import Question, RunQuestion
from gate.training.runs import FIRST_STRICT

STATE = "strict-1/state.safetensors"


@dataclass
class Swapping:
    """The real reader; before it is asked about a run, or after it, states are links elsewhere."""

    secret: Path
    before_reading: bool
    swapped: int = 0

    def __call__(self, request: ProcessRequest) -> Swapped:
        return Swapped(request, self)

    def swap(self, question: Question[Any]) -> None:
        if not isinstance(question, RunQuestion) or question.run.label != FIRST_STRICT:
            return
        for state in question.out.glob("state-*"):
            state.unlink()
            state.symlink_to(self.secret)
            self.swapped += 1


class Swapped(LocalAnsweringProcess):
    """Swaps around each question."""

    def __init__(self, request: ProcessRequest, swapping: Swapping) -> None:
        super().__init__(request, StopSignals())
        self._swapping = swapping

    def ask(self, question: bytes) -> ProcessResult:
        asked = read_question(question)
        if self._swapping.before_reading:
            self._swapping.swap(asked)
        result = super().ask(question)
        if not self._swapping.before_reading:
            self._swapping.swap(asked)
        return result


def gated(bench: Bench, answering: Swapping) -> Gated:
    return gate_call(bench.request(), replace(bench.adapters(), answering=answering))


@pytest.mark.parametrize("before_reading", [True, False])
def test_a_state_that_is_swapped_for_a_link_changes_nothing(
    bench: Bench, tmp_path: Path, *, before_reading: bool
) -> None:
    bench.record()
    honest = bench.gate().verdict
    (tmp_path / "secret").write_text("a-planted-secret")
    swapping = Swapping(tmp_path / "secret", before_reading)
    found = gated(bench, swapping)
    assert swapping.swapped == 1
    assert (found.verdict.outcome, found.verdict.checkpoint_root) == (
        honest.outcome,
        honest.checkpoint_root,
    )
    kept = {one.name: one.sha256 for one in found.evidence.kept}
    content = (bench.out / "evidence" / STATE).read_bytes()
    assert kept[STATE] == hashlib.sha256(content).hexdigest()
    package = write_package(
        found.verdict, found.evidence, found.baseline, bench.request(), FILES, found.documents
    )
    assert b"a-planted-secret" not in package.path.read_bytes()
    with package.path.open("rb") as stream:
        archive = read_archive(stream, size_bytes=package.size_bytes, keep=frozenset())
    packed = {member.name: member.sha256 for member in archive.members}
    assert packed["checkpoint/state.safetensors"] == kept[STATE]


def test_a_kept_file_that_changes_before_it_is_packed_is_an_error(bench: Bench) -> None:
    found = bench.gate()
    path = bench.out / "evidence" / STATE
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    with pytest.raises(
        StorageError, match=r"state.safetensors has changed on disk since it was compared"
    ):
        write_package(
            found.verdict, found.evidence, found.baseline, bench.request(), FILES, found.documents
        )
    assert not (bench.out / "package.tar").exists()
