from __future__ import annotations

import json
from pathlib import Path

import pytest
from evidence_cases import evidence_of, evidence_set_of

from gate.adapters.files.files import LocalFiles
from gate.codec.digests import sha256_hex
from gate.codec.documents import read_document
from gate.errors import EvidenceError
from gate.evidence.folder import evidence_documents, read_evidence_set, run_document
from gate.records.observed.documents.environment import EnvironmentDocument
from gate.records.observed.environment import Environment
from gate.records.observed.facts import MachineFacts, RankFacts
from gate.records.observed.locks import LockFile

EVIDENCE = evidence_set_of(evidence_of(), evidence_of("default-1"), evidence_of("strict-2"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in evidence_documents(EVIDENCE):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
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


def test_the_manifest_comes_last_and_lists_the_rest() -> None:
    *documents, (name, content) = evidence_documents(EVIDENCE)
    listed = json.loads(content)["documents"]
    assert name == "manifest.json"
    names = [entry[0] for entry in documents]
    # for a person, and made anew by whoever takes the folder over
    assert names[-4:] == ["environment.json", "cluster.json", "data.json", "seeds.json"]
    assert [entry["name"] for entry in listed] == names[:-4]


def test_the_environment_is_a_document_that_a_person_can_read() -> None:
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
    written = dict(evidence_documents(evidence))["environment.json"]
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


def test_a_run_has_a_document_of_its_own() -> None:
    name, content = run_document(EVIDENCE.runs[0])
    assert name == "strict-1/evidence.json"
    assert json.loads(content)["run"]["label"] == "strict-1"


def test_two_runs_of_one_label_are_refused() -> None:
    with pytest.raises(EvidenceError, match="two runs in the evidence have the same label"):
        evidence_documents(evidence_set_of(evidence_of(), evidence_of()))


def test_an_altered_document_is_refused(files: LocalFiles, folder: Path) -> None:
    path = folder / "strict-2/evidence.json"
    path.write_bytes(path.read_bytes().replace(b"0.1", b"0.2", 1))
    with pytest.raises(EvidenceError, match=r"strict-2/evidence.json: is not the document that"):
        read_evidence_set(files, folder)


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
    (folder / "strict-1/evidence.json").write_bytes(run_document(EVIDENCE.runs[2])[1])
    relist(folder, "set.json", "strict-1/evidence.json")
    with pytest.raises(EvidenceError, match=r"strict-1/evidence.json: holds the run 'strict-2'"):
        read_evidence_set(files, folder)
