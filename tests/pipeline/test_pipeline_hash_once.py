"""The training's files are swapped between the gate's steps: nothing changes, or an error follows.

A process that outlived its run, or shares the gate's account, could do that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from gate_bench import FILES, Bench
from grouped import OneAfterTheOther

from gate.adapters.process.processes import LocalProcesses
from gate.attestation.packing.archive import read_archive
from gate.errors import StorageError
from gate.pipelines.gate import Gated, gate
from gate.pipelines.sealing.package import write_package
from gate.records.processes import ProcessRequest, ProcessResult

STATE = "strict-1/state.safetensors"


@dataclass
class Swapping(OneAfterTheOther):
    """Real processes; before the reader starts, or after it, the states are links elsewhere."""

    secret: Path
    before_reading: bool
    swapped: int = 0

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        reads = any("gate.reader" in word for word in request.argv)
        if reads and self.before_reading:
            self._swap(request)
        result = LocalProcesses().run(request, on_line)
        if reads and not self.before_reading:
            self._swap(request)
        return result

    def _swap(self, request: ProcessRequest) -> None:
        taken = next(Path(word).parent for word in request.argv if word.endswith("request.json"))
        for state in (taken.parent / "out").glob("state-*"):
            if "strict-1" in (taken / "request.json").read_text():
                state.unlink()
                state.symlink_to(self.secret)
                self.swapped += 1


def gated(bench: Bench, processes: Swapping) -> Gated:
    return gate(bench.request(), replace(bench.adapters(), processes=processes))


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
    package = write_package(found.verdict, found.evidence, found.baseline, bench.request(), FILES)
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
        write_package(found.verdict, found.evidence, found.baseline, bench.request(), FILES)
    assert not (bench.out / "package.tar").exists()
