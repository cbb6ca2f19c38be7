"""Two jobs: one runs and judges nothing, the other judges and runs nothing.

The evidence is made once, copied for each test, and spoilt there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from gate_bench import FILES, Bench
from grouped import OneAfterTheOther
from played_training import Project

from gate.errors import EvidenceError
from gate.pipelines.adapters import Adapters
from gate.pipelines.case import Gated
from gate.pipelines.gate import judging, run_only
from gate.text.digests import sha256_hex
from gate.verdict.verdict import Outcome

STATE = "strict-1/state.safetensors"


@dataclass
class Told:
    """A commit with a baseline, and the evidence that another job made of it."""

    bench: Bench
    folder: Path
    commit: str

    def judge(self, **options: object) -> Gated:
        adapters = replace(self.bench.adapters(), progress=self.bench.adapters().progress)
        request = self.bench.request(commit=self.commit, **options)
        return judging(self.folder)(replace(request, imported_runs=True), adapters, None)

    def refusal(self) -> str:
        with pytest.raises(EvidenceError) as caught:
            self.judge()
        assert caught.value.hint
        return str(caught.value)

    def document(self, name: str, change: Callable[[dict[str, object]], object]) -> None:
        """Change a document, and the manifest so that it fits again."""
        path = self.folder / name
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))
        manifest = json.loads((self.folder / "manifest.json").read_text())
        for entry in manifest["documents"]:
            if entry["name"] == name:
                entry["sha256"] = sha256_hex(path.read_bytes())
        (self.folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Told:
    place = tmp_path_factory.mktemp("told")
    project = Project(place / "project")
    bench = Bench(project, place / "ran")
    commit = bench.record()
    return Told(bench=bench, folder=run_only(bench.request(), bench.adapters()), commit=commit)


@pytest.fixture
def told(made: Told, tmp_path: Path) -> Iterator[Told]:
    folder = tmp_path / "evidence"
    shutil.copytree(made.folder, folder)
    bench = Bench(made.bench.project, tmp_path / "out", config=made.bench.config)
    yield Told(bench=bench, folder=folder, commit=made.commit)
    assert not (tmp_path / "out" / "work").exists()


class NoTraining(OneAfterTheOther):
    """Adapters that refuse to start the training's program."""

    def __init__(self, adapters: Adapters) -> None:
        self._processes = adapters.processes
        self.started: list[str] = []

    def run(self, request, on_line):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201 - port
        self.started.append(" ".join(request.argv))
        return self._processes.run(request, on_line)


def test_the_job_that_runs_judges_nothing(made: Told) -> None:
    out = made.folder.parent
    assert not (out / "verdict.json").exists()
    assert (out / "evidence" / STATE).exists()
    assert len(json.loads((made.folder / "manifest.json").read_text())["documents"]) == 5


def test_the_job_that_judges_comes_to_the_same_verdict_and_runs_nothing(told: Told) -> None:
    adapters = told.bench.adapters()
    watched = NoTraining(adapters)
    request = replace(told.bench.request(commit=told.commit), imported_runs=True)
    found = judging(told.folder)(request, replace(adapters, processes=watched), None)
    assert (found.verdict.outcome, found.verdict.passes) == (Outcome.REPRODUCED, True)
    # the other job's clock is a claim, and this one trained nothing
    assert found.verdict.timeline is None
    assert watched.started == []
    codes = {finding.code: finding for finding in found.verdict.findings}
    assert codes["unverified-evidence"].message == (
        "another job made these runs: this gate cannot verify their numbers"
    )
    assert FILES.exists(told.bench.out / "evidence" / STATE)


def test_the_weakest_isolation_that_a_run_names_counts(told: Told) -> None:
    named = {
        "strict-1": _uid("mount namespace", own=["processes", "files"]),
        "default-1": _uid("permissions only"),
        "strict-2": _uid("landlock", network=True),
        "default-2": _uid("landlock"),
    }
    for label, isolation in named.items():
        told.document(f"{label}/evidence.json", _record(isolation=isolation))
    assert told.judge().verdict.isolation.described == "uid (permissions only), network open"


def test_only_what_every_run_had_of_its_own_is_told(told: Told) -> None:
    every = ("strict-1", "default-1", "strict-2", "default-2")
    for label, own in zip(every, (["processes", "files"], ["files"]) * 2, strict=True):
        told.document(f"{label}/evidence.json", _record(isolation=_uid("mount namespace", own=own)))
    assert told.judge().verdict.isolation.described == "uid (mount namespace; own files)"


def _uid(guard: str, **more: object) -> dict[str, object]:
    return {"mode": "uid", "guard": guard, **more}


def test_groups_of_any_run_are_told_of_all(told: Told) -> None:
    for label, more in (
        ("strict-1", {"device_groups": [44]}),
        ("strict-2", {"device_groups": [44, 107], "network": True}),
    ):
        told.document(f"{label}/evidence.json", _record(isolation=_uid("landlock", **more)))
    verdict = told.judge().verdict
    assert verdict.isolation.described == "none, network open, device groups 44 107"
    assert "device-groups" in {finding.code for finding in verdict.findings}


def test_a_gpu_that_the_other_job_missed_is_told_with_a_fix_of_our_own(told: Told) -> None:
    missed = {"obstacle": "no-uvm", "found": "NVIDIA H100; so it says"}
    told.document("set.json", lambda value: value.update(gpu_missed=missed))
    (finding,) = [one for one in told.judge().verdict.findings if one.code == "gpu-unused"]
    assert "NVIDIA H100; so it says" in finding.message
    assert finding.remedy.startswith("As root on the machine: nvidia-modprobe -u -c 0")


def test_another_jobs_advice_is_not_taken(told: Told) -> None:
    missed = {"obstacle": "no-uvm", "found": "A", "fix": "curl x | sh"}
    told.document("set.json", lambda value: value.update(gpu_missed=missed))
    assert "set.json" in told.refusal()


def test_the_time_is_the_judges_own(told: Told) -> None:
    told.document("set.json", lambda value: value.update(created_at="2099-01-01T00:00:00+00:00"))
    assert not told.judge().verdict.created_at.startswith("2099")


def _of_other(key: str, value: object) -> Callable[[dict[str, object]], object]:
    return lambda document: document.update({key: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_of_other("commit", "e" * 40), "the evidence is of commit 'eeeeeeeeeeee', not of"),
        (_of_other("snapshot_digest", "0" * 64), "not made from this commit's own files"),
        (_of_other("changed_files", ["x"]), "not made from this commit's own files"),
        (_of_other("settings_digest", "0" * 64), "under different settings than those used here"),
        (_of_other("training_digest", "0" * 64), "under different settings than those used here"),
        (_of_other("kept", []), "the evidence has missing or unexpected files"),
        (_of_other("kept", [{"name": "../../x", "sha256": "0" * 64}]), "set.json: 1 error"),
    ],
)
def test_what_is_known_here_is_not_believed(
    told: Told, change: Callable[[dict[str, object]], object], message: str
) -> None:
    told.document("set.json", change)
    assert message in told.refusal()


def _record(**changes: object) -> Callable[[dict[str, object]], object]:
    def change(document: dict[str, object]) -> None:
        record = document["run"]
        assert isinstance(record, dict)
        record.update(changes)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_record(argv=["python3", "other.py"]), "did not run or end as the settings require"),
        (_record(exit_code=1), "did not run or end as the settings require"),
        (_record(mode="default"), "did not run or end as the settings require"),
        (_record(isolation={"mode": "none", "job": "job user"}), "did not run or end as the"),
        (_record(isolation={"mode": "none", "other_nodes": True}), "did not run or end as the"),
        (_record(isolation={"mode": "fortress"}), "run.isolation.mode: must be 'auto', 'none'"),
        (_record(isolation={"mode": "auto"}), "run.isolation.mode: must be the mode that was"),
        (_record(isolation=_uid("a wish")), "run.isolation.guard: must be 'mount namespace'"),
        (_record(isolation=_uid("landlock", device_groups=["x"])), "run.isolation.device_groups"),
        (_record(label="strict-2"), "strict-1/evidence.json: holds the run 'strict-2'"),
        (
            lambda document: document["checkpoint"].update(root="0" * 64),
            "its checkpoint digest does not match its tensors",
        ),
        (
            lambda document: document["environment"]["parts"].update(x=["y"]),
            "strict-1/evidence.json: 1 error",
        ),
    ],
)
def test_a_run_must_be_one_that_a_gate_call_makes(
    told: Told, change: Callable[[dict[str, object]], object], message: str
) -> None:
    told.document("strict-1/evidence.json", change)
    assert message in told.refusal()


def _drop_last(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["documents"][-1]
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _swap_state(folder: Path) -> None:
    path = folder / STATE
    path.write_bytes(path.read_bytes()[:-1] + b"X")


def _link_state(folder: Path) -> None:
    (folder / STATE).unlink()
    (folder / STATE).symlink_to("/etc/passwd")


def _deep(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"[" * 100_000)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_drop_last, "the evidence contains the runs 'strict-1, default-1, default-2'"),
        (_swap_state, f"{STATE}: is not the file listed in set.json"),
        (_link_state, f"{STATE} cannot be read"),
        (_deep, "manifest.json: nested deeper"),
        (shutil.rmtree, "there is no evidence in"),
    ],
)
def test_a_folder_that_was_spoilt_is_refused(
    told: Told, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(told.folder)
    assert message in told.refusal()


def test_a_state_that_fits_its_digest_but_not_the_run_is_refused(told: Told) -> None:
    _swap_state(told.folder)
    digest = sha256_hex((told.folder / STATE).read_bytes())

    def relist(document: dict[str, object]) -> None:
        kept = document["kept"]
        assert isinstance(kept, list)
        for entry in kept:
            if entry["name"] == STATE:
                entry["sha256"] = digest

    told.document("set.json", relist)
    assert "is not the state of run strict-1" in told.refusal()


def test_evidence_in_the_output_folder_is_refused_and_left_alone(told: Told) -> None:
    told.bench.out = told.folder.parent
    assert "is inside the output folder, which is emptied" in told.refusal()
    assert (told.folder / STATE).exists()
