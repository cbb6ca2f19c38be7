from __future__ import annotations

import json
from pathlib import Path

import pytest
from evidence_cases import evidence_of, evidence_set_of

from gate.errors import EvidenceError
from gate.evidence.context_documents import EnvironmentDocument
from gate.evidence.evidence_folder import EvidenceFolder, read_evidence_set
from gate.evidence.lock_files import LockFile
from gate.system.files.files import LocalFiles
from gate.system.machine import MachineFacts, RankFacts
from gate.text.digests import sha256_hex
from gate.text.documents import read_document, write_document
from gate.training.environment import Environment

EVIDENCE = evidence_set_of(evidence_of(), evidence_of("default-1"), evidence_of("strict-2"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    EvidenceFolder(LocalFiles(), tmp_path).write(EVIDENCE)
    return tmp_path


def relist(folder: Path, *names: str) -> None:
    """Write a manifest that fits the documents as they are now."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["documents"] = [
        {"name": name, "sha256": sha256_hex((folder / name).read_bytes())} for name in names
    ]
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_folder_reads_back_as_the_same_set(files: LocalFiles, folder: Path) -> None:
    assert read_evidence_set(files, folder) == EVIDENCE


def test_the_manifest_comes_last_and_lists_the_rest(files: LocalFiles, tmp_path: Path) -> None:
    *documents, manifest = EvidenceFolder(files, tmp_path).write(EVIDENCE)
    listed = json.loads((tmp_path / "manifest.json").read_bytes())["documents"]
    assert manifest.name == "manifest.json"
    names = [entry.name for entry in documents]
    # for a person, and made anew by whoever takes the folder over
    assert names[-4:] == ["environment.json", "cluster.json", "data.json", "seeds.json"]
    assert [entry["name"] for entry in listed] == names[:-4]


def test_each_digest_is_that_of_the_bytes_on_disk(files: LocalFiles, tmp_path: Path) -> None:
    for one in EvidenceFolder(files, tmp_path).write(EVIDENCE):
        assert one.sha256 == sha256_hex((tmp_path / one.name).read_bytes())


def test_a_run_is_rendered_once_and_again_when_it_is_another(
    files: LocalFiles, tmp_path: Path
) -> None:
    folder = EvidenceFolder(files, tmp_path)
    first = folder.write(EVIDENCE)
    path = tmp_path / "strict-1/evidence.json"
    path.unlink()
    assert folder.write(EVIDENCE) == first
    assert not path.exists()
    other = EVIDENCE.runs[0].model_copy(update={"notes": ("another",)})
    runs = (other, *EVIDENCE.runs[1:])
    folder.write(EVIDENCE.model_copy(update={"runs": runs}))
    assert path.read_bytes() == write_document(other)


def test_the_environment_is_a_document_that_a_person_can_read(
    files: LocalFiles, tmp_path: Path
) -> None:
    here = Environment(
        parts={"torch": "2.13.0"},
        packages=("library==1.0", "ruff==0.1", "torch==2.13.0"),
        imported=("library", "torch"),
        origins={"library": "git abc of https://example.org/library"},
        ignored=("library",),
    )
    facts = RankFacts(rank=0, facts={"kernel": "Linux 6"}, variables={"OMP_NUM_THREADS": "1"})
    run = evidence_of().model_copy(update={"environment": here, "rank_facts": (facts,)})
    lock = LockFile(path="uv.lock", sha256="a" * 64)
    evidence = evidence_set_of(run).model_copy(
        update={"locks": (lock,), "machine": MachineFacts(networks={"eth0": 25000})}
    )
    EvidenceFolder(files, tmp_path).write(evidence)
    written = (tmp_path / "environment.json").read_bytes()
    document = read_document(EnvironmentDocument, written, "environment.json")
    assert [
        (package.name, package.origin, package.imported, package.ignored)
        for package in document.packages
    ] == [
        ("library", "git abc of https://example.org/library", True, True),
        ("ruff", "index", False, False),
        ("torch", "index", True, False),
    ]
    assert document.ranks[0].facts == {"kernel": "Linux 6"}
    assert (document.locks, document.machine) == ((lock,), evidence.machine)
    assert b'"schema_version": "repro-gate.environment/1"' in written


def test_a_run_has_a_document_of_its_own(folder: Path) -> None:
    content = (folder / "strict-1/evidence.json").read_bytes()
    assert json.loads(content)["run"]["label"] == "strict-1"


def test_two_runs_of_one_label_are_refused(files: LocalFiles, tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="two runs in the evidence have the same label"):
        EvidenceFolder(files, tmp_path).write(evidence_set_of(evidence_of(), evidence_of()))
    assert not list(tmp_path.iterdir())


def test_an_altered_document_is_refused(files: LocalFiles, folder: Path) -> None:
    path = folder / "strict-2/evidence.json"
    path.write_bytes(path.read_bytes().replace(b"0.1", b"0.2", 1))
    with pytest.raises(EvidenceError, match=r"strict-2/evidence.json: is not the document that"):
        read_evidence_set(files, folder)


def test_a_folder_that_is_a_link_is_refused(files: LocalFiles, folder: Path) -> None:
    (folder / "strict-2").rename(folder / "x")
    (folder / "strict-2").symlink_to("x")
    with pytest.raises(
        EvidenceError, match=r"strict-2/evidence.json leads through .*strict-2, a link"
    ):
        read_evidence_set(files, folder)


def test_documents_have_one_bound_together(files: LocalFiles, folder: Path) -> None:
    """Sparse files cost nobody anything, but whoever reads them."""
    for name in ("default-1", "strict-2"):
        with (folder / name / "evidence.json").open("ab") as file:
            file.truncate(300 * 1024 * 1024)
    relist(folder, "set.json", *(f"{one.run.label}/evidence.json" for one in EVIDENCE.runs))
    with pytest.raises(EvidenceError, match=r"strict-2/evidence\.json: .*larger"):
        read_evidence_set(files, folder)


def test_two_metrics_of_one_name_are_refused(files: LocalFiles, folder: Path) -> None:
    """A reader would compare one of them."""
    path = folder / "strict-2/evidence.json"
    document = json.loads(path.read_bytes())
    document["metrics"] *= 2
    path.write_text(json.dumps(document))
    relist(folder, "set.json", *(f"{one.run.label}/evidence.json" for one in EVIDENCE.runs))
    with pytest.raises(EvidenceError, match=r"strict-2/evidence\.json") as refused:
        read_evidence_set(files, folder)
    assert "two metrics have one name" in str(refused.value)


def test_a_missing_document_is_refused(files: LocalFiles, folder: Path) -> None:
    (folder / "set.json").unlink()
    with pytest.raises(EvidenceError, match=r"set.json: cannot be read"):
        read_evidence_set(files, folder)


def test_a_manifest_of_another_kind_is_refused(files: LocalFiles, folder: Path) -> None:
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(EvidenceError, match=r"manifest.json: schema version 'None'"):
        read_evidence_set(files, folder)


def test_a_set_of_another_kind_is_refused(files: LocalFiles, folder: Path) -> None:
    (folder / "set.json").write_text("{}")
    relist(folder, "set.json")
    with pytest.raises(EvidenceError, match=r"set.json: schema version 'None'"):
        read_evidence_set(files, folder)


def test_a_name_outside_the_folder_is_refused(files: LocalFiles, folder: Path) -> None:
    (folder.parent / "evidence.json").write_text("{}")
    relist(folder, "set.json", "../evidence.json")
    with pytest.raises(EvidenceError, match=r"manifest.json: 1 error"):
        read_evidence_set(files, folder)


@pytest.mark.parametrize(
    "names",
    [(), ("strict-1/evidence.json",), ("set.json", "strict-1/evidence.json") * 2],
    ids=["nothing", "no-set", "twice"],
)
def test_a_manifest_must_list_the_set_first_and_all_once(
    files: LocalFiles, folder: Path, names: tuple[str, ...]
) -> None:
    relist(folder, *names)
    with pytest.raises(EvidenceError, match=r"must list set.json first and each document once"):
        read_evidence_set(files, folder)


def test_a_run_under_another_label_is_refused(files: LocalFiles, folder: Path) -> None:
    (folder / "strict-1/evidence.json").write_bytes(write_document(EVIDENCE.runs[2]))
    relist(folder, "set.json", "strict-1/evidence.json")
    with pytest.raises(EvidenceError, match=r"strict-1/evidence.json: holds the run 'strict-2'"):
        read_evidence_set(files, folder)
