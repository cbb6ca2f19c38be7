"""From the documents of a package to its answers: missing, foreign, broken and damning ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
from attestation_cases import COMMIT, sealed_in, trust_of, verdict_of
from audit_cases import SETTINGS, package_members, packed
from each_row import each_row

from gate.audit.items import AuditedPart, AuditItem, AuditReport, AuditResult
from gate.audit.package_answers import audit_package
from gate.errors import EvidenceError
from gate.package.seal_files import write_seals
from gate.package.seal_records import Expected, KeyStatus
from gate.pipelines.audited_package import look_at_package
from gate.settings.load import parse_settings, settings_digest
from gate.system.files.files import LocalFiles
from gate.verdict.verdict import (
    Answer,
    Answers,
    ClusterSource,
    Finding,
    Severity,
    SourceState,
    SourceStatus,
)

FILES = LocalFiles()
DIGEST = settings_digest(parse_settings(SETTINGS, "repro-gate.yml"))


def audited(folder: Path, members: dict[str, bytes]) -> AuditReport:
    path = packed(folder / "package.tar", members)
    return audit_package(look_at_package(path, FILES, None, None))


def results(report: AuditReport) -> dict[AuditedPart, AuditResult]:
    return {answer.part: answer.result for answer in report.parts}


def item(report: AuditReport, code: str) -> AuditItem:
    (found,) = [one for one in report.items if one.code == code]
    return found


def of_verdict(folder: Path, **changes: object) -> AuditReport:
    verdict = verdict_of(settings_digest=DIGEST, **changes)
    return audited(folder, package_members(verdict))


def test_a_package_of_a_gate_call_is_answered_part_by_part(tmp_path: Path) -> None:
    report = audited(tmp_path, package_members())
    assert results(report) == {
        AuditedPart.CODE: AuditResult.PASS,
        AuditedPart.ENVIRONMENT: AuditResult.FAIL,
        AuditedPart.DATA: AuditResult.PASS,
        AuditedPart.CONFIGURATION: AuditResult.FAIL,
        AuditedPart.SEEDS: AuditResult.PASS,
        AuditedPart.HARDWARE: AuditResult.UNKNOWN,
        AuditedPart.SEALS: AuditResult.FAIL,
    }
    assert item(report, "lock-file").found == "no lock file was part of the commit"
    assert item(report, "baseline").found == "no baseline judged the runs"
    assert item(report, "seal").found == "there is no seal next to the package"
    assert item(report, "seeds").found == "PYTHONHASHSEED 42, torch 42"


@each_row(
    ("name", "part"),
    [
        ("verdict.json", AuditedPart.CODE),
        ("environment.json", AuditedPart.ENVIRONMENT),
        ("data.json", AuditedPart.DATA),
        ("repro-gate.yml", AuditedPart.CONFIGURATION),
        ("seeds.json", AuditedPart.SEEDS),
        ("cluster.json", AuditedPart.HARDWARE),
    ],
)
@each_row(
    ("content", "reason"),
    [
        (None, "the package holds no {name}"),
        (b'{"schema_version": "repro-gate.other/7"}', "{name}: "),
        (b"\xff\x00", "{name}: "),
        (b"[" * 100_000, "{name}: "),
        (b'{"a": 1, "a": 2}', "{name}: "),
    ],
)
def test_a_missing_foreign_or_broken_document_leaves_its_part_unknown(
    tmp_path: Path, name: str, part: AuditedPart, content: bytes | None, reason: str
) -> None:
    report = audited(tmp_path, package_members(other={name: content}))
    (one, *_) = [
        one for one in report.items_of(part) if one.found.startswith(reason.format(name=name))
    ]
    assert one.result is AuditResult.UNKNOWN
    assert one.risk.startswith("It is not known")
    assert one.remedy.startswith("Run the gate again with this version, or audit it with the")
    assert one.command == "repro-gate gate"
    assert results(report)[part] is not AuditResult.PASS


@each_row(
    ("changes", "code", "found"),
    [
        ({"changed_files": ("a.py",)}, "clean-tree", "1 uncommitted: a.py"),
        (
            {"answers": Answers(repeat=Answer.OUTSIDE)},
            "repeat",
            "two runs with the same seeds differ",
        ),
        (
            {
                "determinism_budget": (
                    SourceState(
                        kind=ClusterSource.HARDWARE,
                        state=SourceStatus.RECORDED,
                        because="ranks differ in device",
                    ),
                )
            },
            "determinism-budget",
            "unlike hardware: ranks differ in device",
        ),
        *(
            (
                {"findings": (Finding(code=code, severity=Severity.NOTICE, message="why"),)},
                code,
                "why",
            )
            for code in ("undeclared-read", "lock-not-installed", "seed-differs", "weaker-level")
        ),
    ],
)
def test_what_the_verdict_says_against_a_part_fails_it(
    tmp_path: Path, changes: dict[str, object], code: str, found: str
) -> None:
    one = item(of_verdict(tmp_path, **changes), code)
    assert (one.result, one.found) == (AuditResult.FAIL, found)
    assert one.risk


def test_bounded_sources_are_told_and_pass(tmp_path: Path) -> None:
    budget = (
        SourceState(
            kind=ClusterSource.REDUCTION,
            state=SourceStatus.BOUNDED,
            because="4 ranks",
            figure=1e-6,
            runs=4,
        ),
    )
    report = of_verdict(tmp_path, determinism_budget=budget)
    assert item(report, "determinism-budget").found == "sources of nonreproducibility: 1 bounded"
    assert report.determinism_budget == budget


def test_settings_of_another_digest_fail_and_those_of_another_version_are_unknown(
    tmp_path: Path,
) -> None:
    other = package_members(verdict_of())
    assert item(audited(tmp_path, other), "settings").result is AuditResult.FAIL
    older = other | {"call.json": other["call.json"].replace(b'"1.0.0"', b'"0.9.0"')}
    one = item(audited(tmp_path, older), "settings")
    assert one.result is AuditResult.UNKNOWN
    assert one.found.startswith("another version made the package")


def test_a_call_about_another_commit_fails_the_code(tmp_path: Path) -> None:
    members = package_members()
    members["call.json"] = members["call.json"].replace(COMMIT.encode(), b"f" * 40)
    one = item(audited(tmp_path, members), "commit")
    assert one.result is AuditResult.FAIL


@pytest.mark.parametrize(
    ("status", "commit", "result", "words"),
    [
        (KeyStatus.ACTIVE, COMMIT, AuditResult.PASS, "valid, key "),
        (KeyStatus.REVOKED, COMMIT, AuditResult.FAIL, ""),
        (KeyStatus.ACTIVE, "f" * 40, AuditResult.FAIL, "this package is about commit"),
    ],
)
def test_with_keys_and_commit_the_seal_is_checked(
    tmp_path: Path, status: KeyStatus, commit: str, result: AuditResult, words: str
) -> None:
    sealed = sealed_in(tmp_path)
    write_seals(sealed.seals, sealed.path, FILES)
    facts = look_at_package(sealed.path, FILES, trust_of(status), Expected(commit=commit))
    one = item(audit_package(facts), "seal")
    assert one.result is result
    assert one.found.startswith(words)
    unasked = item(audit_package(look_at_package(sealed.path, FILES, None, None)), "seal")
    assert (unasked.result, unasked.found) == (AuditResult.UNKNOWN, "the seal was not checked")
    assert "--trusted-keys trusted-keys.json --commit " in unasked.command


def test_a_package_that_is_replaced_between_reading_and_verifying_is_refused(
    tmp_path: Path,
) -> None:
    sealed = sealed_in(tmp_path)
    write_seals(sealed.seals, sealed.path, FILES)
    other = packed(tmp_path / "other.tar", package_members())

    class Replaced(LocalFiles):
        """Shows another package at the first look."""

        looks = 0

        @contextmanager
        def open_binary(self, path: Path, *, max_bytes: int) -> Iterator[BinaryIO]:
            self.looks += 1
            shown = other if self.looks == 1 else path
            with super().open_binary(shown, max_bytes=max_bytes) as stream:
                yield stream

    trusted = trust_of(KeyStatus.ACTIVE)
    facts = look_at_package(sealed.path, Replaced(), trusted, Expected(commit=COMMIT))
    one = item(audit_package(facts), "seal")
    assert one.found == "the package was replaced while it was looked at"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data[:-7000], "package.tar: the package is truncated"),
        (lambda data: b"no tar" + data, "package.tar is not a package of repro-gate"),
    ],
    ids=("half", "other"),
)
def test_what_is_no_whole_package_is_refused(
    tmp_path: Path, spoil: Callable[[bytes], bytes], message: str
) -> None:
    path = packed(tmp_path / "package.tar", package_members())
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(EvidenceError) as fault:
        look_at_package(path, FILES, None, None)
    assert fault.value.message == f"{tmp_path}/{message}"
    assert fault.value.hint == "Name the package.tar that a gate call wrote."


def test_a_changed_byte_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path / "package.tar", package_members())
    path.write_bytes(path.read_bytes().replace(b"org/repo", b"org/evil"))
    with pytest.raises(EvidenceError, match="SHA256SUMS does not match"):
        look_at_package(path, FILES, None, None)


@pytest.mark.parametrize("lacking", ["torch", "hashes"])
def test_a_process_with_half_of_its_seeds_names_none(tmp_path: Path, lacking: str) -> None:
    document = json.loads(package_members()["seeds.json"])
    for process in document["processes"]:
        if lacking == "torch":
            process["generators"]["torch"] = ""
        else:
            process["hash_seed"] = "random"
    members = package_members(other={"seeds.json": json.dumps(document).encode()})
    found = item(audited(tmp_path, members), "seeds")
    assert (found.result, found.found) == (AuditResult.FAIL, "1 of 1 processes name no seed")
