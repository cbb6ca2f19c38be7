"""What a package holds: the states under the roots that are sealed, the code, documents to read."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from gate_bench import FILES, Bench
from played_training import SETTINGS, Project

from gate.checkpoint.digest import digest_state
from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.formats.formats import open_state
from gate.errors import EvidenceError, RepositoryError
from gate.evidence.run_evidence import StateName
from gate.package.members import write_package
from gate.pipelines.case import Gated
from gate.pipelines.gate import judging, run_only
from gate.system.git.export import open_source_pack
from gate.system.git.repository import GitRepository
from gate.text.digests import sha256_hex

SAVING = SETTINGS.replace("  max_steps", "  checkpoint: saved\n  max_steps")
VALUES = {"saved/deep/values.json": "[1, 2.5]", "saved/notes.txt": "nobody understands"}
LOCK = f"numpy==2.0 --hash=sha256:{'a' * 64}\n"


def saving(project: Project, *, settings: str = SAVING, **files: str) -> None:
    project.write("repro-gate.yml", settings)
    project.play(files={**VALUES, **files})


def unpacked(bench: Bench, found: Gated, folder: Path, **options: object) -> Path:
    """The package of a call, unpacked by Python's own reader."""
    package = write_package(
        found.verdict,
        found.evidence,
        found.baseline,
        bench.request(**options),
        FILES,
        found.documents,
    )
    with tarfile.open(package.path) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_each_root_of_the_verdict_is_the_digest_of_the_packed_file(
    bench: Bench, project: Project, tmp_path: Path
) -> None:
    saving(project)
    found = bench.gate()
    folder = unpacked(bench, found, tmp_path / "unpacked")
    assert [state.name for state in found.verdict.states] == list(StateName)
    for state in found.verdict.states:
        place = folder / state.member
        with open_state(
            FILES, place, "x", max_bytes=10**6, unknown=UnknownContent.BYTES
        ) as content:
            digest = digest_state(content)
        if state.name is StateName.SAVED:
            assert (digest.roots.whole, digest.roots.parts) == (state.root, state.parts)
            assert (folder / "model/deep/values.json").read_text() == "[1, 2.5]"


def test_one_saved_file_lies_under_its_own_name(
    bench: Bench, project: Project, tmp_path: Path
) -> None:
    settings = SAVING.replace("checkpoint: saved", "checkpoint: out/last.json")
    saving(project, settings=settings, **{"out/last.json": '{"w": 1.5}', "out/other": "aside"})
    found = bench.gate()
    folder = unpacked(bench, found, tmp_path / "unpacked")
    assert found.verdict.states[1].member == "model/last.json"
    assert [path.name for path in (folder / "model").iterdir()] == ["last.json"]


def test_what_the_script_saved_may_stay_out(bench: Bench, project: Project, tmp_path: Path) -> None:
    saving(project, settings=f"{SAVING}package: {{checkpoint: false}}\n")
    found = bench.gate()
    assert not (unpacked(bench, found, tmp_path / "unpacked") / "model").exists()
    captured, saved = found.verdict.states
    assert (captured.member, saved.member) == ("checkpoint/state.safetensors", "")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "saved/.gitattributes",
            "cannot hold one of its names: '.gitattributes' has a part",
        ),
        ("saved/größe.json", "a package cannot hold one of its names"),
        (
            "saved/NOTES.txt",
            "cannot hold both 'NOTES.txt' and 'notes.txt'",
        ),
        ("saved/Deep", "on some disks they are one"),
        (f"saved/{'x' * 101}.json", "is too long for the ustar format"),
    ],
)
def test_names_that_no_package_can_hold_are_told(
    bench: Bench, project: Project, name: str, why: str
) -> None:
    saving(project, **{name: "1"})
    found = bench.gate()
    (told,) = (one for one in found.verdict.findings if one.code == "not-packed")
    assert told.message.startswith("saved is not in the package: ")
    assert why in told.message
    # known by its digest all the same
    assert found.verdict.states[1].member == ""


def test_the_source_is_packed_on_request_and_is_the_commit(
    bench: Bench, project: Project, tmp_path: Path
) -> None:
    project.write("deep/tool.sh", "#!/bin/sh\n")
    (project.path / "deep" / "tool.sh").chmod(0o755)
    commit = project.settings("package: {source: true}\n")
    found = bench.gate()
    folder = unpacked(bench, found, tmp_path / "unpacked")
    assert json.loads((folder / "call.json").read_text())["source"] is True
    with (folder / "source.pack").open("rb") as pack:
        open_source_pack(pack, commit, tmp_path / "clone")
    digest = GitRepository(tmp_path / "clone").export_commit(commit, tmp_path / "tree")
    assert digest == found.evidence.snapshot_digest
    assert (tmp_path / "tree/deep/tool.sh").stat().st_mode & 0o100


def test_a_source_of_another_commit_is_refused(
    bench: Bench, project: Project, tmp_path: Path
) -> None:
    project.settings("package: {source: true}\n")
    folder = unpacked(bench, bench.gate(), tmp_path / "unpacked")
    for content in (None, b"no pack", b"PACK"):
        if content is not None:
            (folder / "source.pack").write_bytes(content)
        with (
            (folder / "source.pack").open("rb") as pack,
            pytest.raises(RepositoryError, match="the packed source does not hold commit 0123456"),
        ):
            open_source_pack(pack, "0123456" + "0" * 33, tmp_path / str(content))


def test_a_dirty_tree_is_packed_as_a_diff(bench: Bench, project: Project, tmp_path: Path) -> None:
    project.write("notes.txt", "one\ntwo\n")
    project.settings("package: {source: true}\n")
    project.write("notes.txt", "one\n2\n")
    project.write("new.bin", "\0")
    found = bench.gate(allow_dirty=True)
    folder = unpacked(bench, found, tmp_path / "unpacked", allow_dirty=True)
    text = (folder / "uncommitted.diff").read_text()
    assert "Files /dev/null and b/new.bin differ\n" in text
    assert "--- a/notes.txt\n+++ b/notes.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n" in text
    assert not (folder / "source.pack").exists()


def test_a_diff_is_cut(bench: Bench, project: Project, tmp_path: Path) -> None:
    for number in range(4):
        project.write(f"{number}.txt", "ü" * 300_000 + "\n")
    folder = unpacked(bench, bench.gate(allow_dirty=True), tmp_path / "unpacked", allow_dirty=True)
    data = (folder / "uncommitted.diff").read_bytes()
    assert len(data) <= 1024**2
    assert data.decode().endswith("\n[cut here: a package holds 1 MiB of a diff]\n")


def test_lock_files_and_documents_are_there_to_read(
    bench: Bench, project: Project, tmp_path: Path
) -> None:
    project.write("requirements.txt", LOCK)
    commit = project.commit()
    folder = unpacked(bench, bench.gate(), tmp_path / "unpacked")
    assert (folder / "locks/requirements.txt").read_text() == LOCK
    documents = ("call", "cluster", "data", "environment", "seeds")
    for name in documents:
        assert json.loads((folder / f"{name}.json").read_text())["commit"] == commit


def test_a_package_of_the_same_runs_has_the_same_bytes(bench: Bench, project: Project) -> None:
    saving(project, settings=f"{SAVING}package: {{source: true}}\n")
    found = bench.gate()
    first = write_package(
        found.verdict, found.evidence, None, bench.request(), FILES, found.documents
    )
    again = write_package(
        found.verdict, found.evidence, None, bench.request(), FILES, found.documents
    )
    assert first.sha256 == again.sha256


def test_what_another_job_saved_is_packed_when_it_is_what_was_judged(
    bench: Bench, project: Project, tmp_path: Path
) -> None:
    saving(project, settings=f"{SAVING}package: {{source: true}}\n")
    bench.record()
    ran = Path(run_only(bench.request(), bench.adapters()).rename(tmp_path / "ran"))
    found = judging(ran)(replace(bench.request(), imported_runs=True), bench.adapters(), None)
    folder = unpacked(bench, found, tmp_path / "unpacked")
    assert (folder / "model/deep/values.json").read_text() == "[1, 2.5]"
    assert (folder / "source.pack").exists()
    values = ran / "strict-1/model/deep/values.json"
    values.write_text("[1, 2.75]")
    with pytest.raises(EvidenceError, match="is not the file listed"):
        judging(ran)(replace(bench.request(), imported_runs=True), bench.adapters(), None)
    relist(ran, "strict-1/model/deep/values.json")
    with pytest.raises(EvidenceError, match="model: is not the state of run strict-1"):
        judging(ran)(replace(bench.request(), imported_runs=True), bench.adapters(), None)


def relist(folder: Path, name: str) -> None:
    """Let the documents say the digest that a kept file has now."""
    document = json.loads((folder / "set.json").read_text())
    (kept,) = (one for one in document["kept"] if one["name"] == name)
    kept["sha256"] = sha256_hex((folder / name).read_bytes())
    (folder / "set.json").write_text(json.dumps(document))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["documents"][0]["sha256"] = sha256_hex((folder / "set.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps(manifest))
