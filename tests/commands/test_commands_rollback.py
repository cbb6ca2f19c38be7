"""`repro-gate rollback`: the newest sealed pass that verifies, and never another one in silence."""

from __future__ import annotations

import hashlib
import json
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Run, played_once, record
from oci_double import OciDouble
from played_training import Project
from registry_cases import registry
from sealed_files import COMMIT, sealed_artifact, sealed_file

from gate.publishing.artifact import SEAL_FILE, SealedArtifact

COMMITS = ("good", "better", "newest")


@pytest.fixture
def packages(project: Project, run: Run, tmp_path: Path) -> Path:
    """A folder with the packages of three commits of main, one after the other."""

    def seal() -> None:
        record(project, run)
        assert run("keys", "generate", "--out", tmp_path / "keys").code == 0
        key = tmp_path / "keys" / "signing-key.pem"
        for name in COMMITS:
            project.write("notes.txt", name)
            project.commit()
            out = tmp_path / "packages" / name
            ended = run("gate", "--out", out, "--signing-key", key, "-q")
            assert ended.code == 0, ended.err
            # a verdict's time has whole seconds: two of one second have no order
            time.sleep(1.1)

    played_once("sealed-one-after-the-other", project, seal)
    return tmp_path / "packages"


@pytest.fixture
def oci() -> Iterator[OciDouble]:
    with OciDouble() as server:
        yield server


def hashes(project: Project) -> dict[str, str]:
    """The commits by name."""
    found = project.git("rev-list", "-n", "3", "HEAD").split()
    return dict(zip(reversed(COMMITS), found, strict=True))


def trust(packages: Path) -> tuple[str, str]:
    return "--trusted-keys", str(packages.parent / "keys" / "trusted-keys.json")


def push(oci: OciDouble, project: Project, packages: Path, *, gate_id: str = "default") -> None:
    for name, commit in hashes(project).items():
        folder = packages / name
        names = [path.name for path in folder.iterdir() if SEAL_FILE.match(path.name)]
        artifact = SealedArtifact(
            package=sealed_file(folder, "package.tar", (folder / "package.tar").read_bytes()),
            seals=tuple(sealed_file(folder, one, (folder / one).read_bytes()) for one in names),
            commit=commit,
            repository="",
            outcome="reproduced",
            created_at=json.loads((folder / "verdict.json").read_text())["created_at"],
            gate_id=gate_id,
        )
        registry(oci).push(artifact)


def packed(package: Path, member: str) -> bytes:
    with tarfile.open(package) as archive:
        found = archive.extractfile(member)
        assert found is not None
        return found.read()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_newest_sealed_pass_is_verified_and_its_model_is_the_sealed_one(
    project: Project, run: Run, packages: Path, tmp_path: Path
) -> None:
    out = tmp_path / "back"
    ended = run("rollback", "--packages", packages, *trust(packages), "--out", out)
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"✅ last good: commit {hashes(project)['newest']}, reproduced\n")
    sealed = packed(packages / "newest" / "package.tar", "checkpoint/state.safetensors")
    assert (out / "model" / "state.safetensors").read_bytes() == sealed
    document = json.loads((out / "rollback.json").read_text())
    assert document["model"][0]["sha256"] == hashlib.sha256(sealed).hexdigest()
    assert document["skipped"] == []


def test_a_commit_that_is_not_good_is_passed_over_and_said(
    project: Project, run: Run, packages: Path, tmp_path: Path
) -> None:
    bad = hashes(project)["newest"]
    words = ("--packages", packages, *trust(packages), "--out", tmp_path / "back", "--except", bad)
    ended = run("rollback", *words, "--json")
    document = json.loads(ended.out)
    assert document["commit"] == hashes(project)["better"]
    (skipped,) = document["skipped"]
    assert (skipped["commit"], skipped["reason"]) == (bad, "excepted")
    ended = run("rollback", *words)
    assert "--except names its commit" in " ".join(ended.out.split())


def test_a_damaged_package_stops_the_call_and_names_it(
    project: Project, run: Run, packages: Path, tmp_path: Path
) -> None:
    damaged = packages / "newest" / "package.tar"
    # in its end: who it is of can still be read
    data = bytearray(damaged.read_bytes())
    data[-20_000] ^= 1
    damaged.write_bytes(data)
    words = ("--packages", packages, *trust(packages), "--out", tmp_path / "back")
    ended = run("rollback", *words)
    assert ended.code == 1
    assert f"error: the newest sealed pass does not verify: {damaged} (" in ended.err
    assert "hint: Nothing was handed out." in ended.err
    assert not (tmp_path / "back" / "model").exists()
    ended = run("rollback", *words, "--older", "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["commit"] == hashes(project)["better"]
    assert [one["reason"] for one in document["skipped"]] == ["not-verified"]


def test_a_failure_takes_back_what_an_earlier_call_handed_out(
    run: Run, packages: Path, tmp_path: Path
) -> None:
    words = ("--packages", packages, *trust(packages), "--out", tmp_path / "back")
    assert run("rollback", *words, "-q").out == f"{tmp_path}/back/model/state.safetensors\n"
    flip(packages / "newest" / "package.dsse.json")
    assert run("rollback", *words).code == 1
    assert not (tmp_path / "back" / "model").exists()


def test_a_package_without_its_seals_is_no_sealed_pass(
    project: Project, run: Run, packages: Path, tmp_path: Path
) -> None:
    for path in (packages / "newest").iterdir():
        if SEAL_FILE.match(path.name):
            path.unlink()
    words = ("--packages", packages, *trust(packages), "--out", tmp_path / "back", "--json")
    document = json.loads(run("rollback", *words).out)
    assert document["commit"] == hashes(project)["better"]
    assert [one["reason"] for one in document["skipped"]] == ["not-sealed"]


def test_another_key_is_nobodys(run: Run, packages: Path, tmp_path: Path) -> None:
    run("keys", "generate", "--out", tmp_path / "other")
    keys = tmp_path / "other" / "trusted-keys.json"
    words = ("--packages", packages, "--out", tmp_path / "back", "--trusted-keys", keys)
    ended = run("rollback", *words)
    assert (ended.code, "the newest sealed pass does not verify" in ended.err) == (1, True)
    ended = run("rollback", *words, "--older")
    assert ended.code == 3
    assert f"error: {packages} has no sealed pass to go back to" in ended.err
    assert ended.err.count("passed over") == 3


@pytest.mark.parametrize("content", [None, b"", b"{"], ids=["missing", "empty", "broken"])
def test_an_unusable_trust_file_is_no_fault_of_a_package(
    run: Run, packages: Path, tmp_path: Path, content: bytes | None
) -> None:
    keys = tmp_path / "keys.json"
    if content is not None:
        keys.write_bytes(content)
    words = ("--packages", packages, "--out", tmp_path / "back", "--older", "--trusted-keys", keys)
    ended = run("rollback", *words)
    assert ended.code == 3
    assert str(keys) in ended.err
    assert "passed over" not in ended.err


def test_what_is_demanded_is_demanded_of_each(run: Run, packages: Path, tmp_path: Path) -> None:
    words = ("--packages", packages, *trust(packages), "--out", tmp_path / "back")
    ended = run("rollback", *words, "--least-isolation", "uid")
    assert ended.code == 3
    assert ended.err.count("its training ran under isolation none") == 3


def test_only_commits_of_the_branch_count(
    project: Project, run: Run, packages: Path, tmp_path: Path
) -> None:
    project.git("branch", "released", hashes(project)["good"])
    words = ("--packages", packages, *trust(packages), "--out", tmp_path / "back", "--json")
    document = json.loads(run("rollback", *words, "--on", "released").out)
    assert (document["commit"], document["newer_commits"]) == (hashes(project)["good"], 0)
    project.write("notes.txt", "not gated")
    project.commit()
    document = json.loads(run("rollback", *words, "--on", "HEAD").out)
    assert (document["newer_commits"], document["skipped"]) == (1, [])


def test_a_certain_commit_and_file(
    project: Project, run: Run, packages: Path, tmp_path: Path
) -> None:
    words = ("--packages", packages, *trust(packages), "--out", tmp_path / "back", "--json")
    document = json.loads(run("rollback", *words, "--to", hashes(project)["good"]).out)
    assert document["commit"] == hashes(project)["good"]
    ended = run("rollback", *words, "--model", "other.bin")
    assert ended.code == 2
    assert "error: the package's model has no file 'other.bin'" in ended.err


@pytest.mark.parametrize("on", [(), ("--on", "HEAD")])
def test_the_newest_of_a_registry(
    project: Project, run: Run, packages: Path, oci: OciDouble, tmp_path: Path, on: tuple[str, ...]
) -> None:
    push(oci, project, packages)
    # another gate's, and something else under a tag
    push(oci, project, packages, gate_id="other")
    oci.manifests["latest"] = b"{}"
    words = ("--from", f"{oci.address}/team/runs", *trust(packages), "--out", tmp_path / "back")
    ended = run("rollback", *words, "--json", *on)
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["commit"] == hashes(project)["newest"]
    assert document["reference"].startswith(f"{oci.address}/team/runs@sha256:")
    assert Path(document["model"][0]["path"]).is_file()


def test_the_packages_of_a_registry_are_listed_newest_first(
    oci: OciDouble, project: Project, packages: Path, run: Run
) -> None:
    push(oci, project, packages)
    at = ("--from", f"{oci.address}/team/runs")
    *lines, total = run("fetch", "--list", *at).out.splitlines()
    times = [line.split()[0] for line in lines]
    assert times == sorted(times, reverse=True)
    assert {line.split()[1] for line in lines} == {*hashes(project).values()}
    assert total.endswith("in " + f"{oci.address}/team/runs; nothing is verified yet")
    listed = json.loads(run("fetch", "--list", *at, "--json").out)
    assert [one["commit"] for one in listed] == [line.split()[1] for line in lines]
    on = run("fetch", "--list", *at, "--on", "HEAD", "--most", "2", "--json")
    assert [one["commit"] for one in json.loads(on.out)] == [one["commit"] for one in listed[:2]]
    other = run("fetch", "--list", *at, "--gate-id", "other")
    assert other.out.startswith("0 packages in ")


def test_fetch_takes_a_commit_or_lists(run: Run) -> None:
    place = ("--from", "registry.example.org/team/runs")
    neither, both = run("fetch", *place), run("fetch", "HEAD", "--list", *place)
    assert (neither.code, both.code) == (2, 2)
    assert "--on is for --list" in run("fetch", "HEAD", "--on", "main", *place).err
    assert "error: which commit's package?" in neither.err
    assert "exclude each other" in both.err


def test_a_registry_cannot_make_an_old_package_the_newest(
    project: Project, run: Run, packages: Path, oci: OciDouble, tmp_path: Path
) -> None:
    push(oci, project, packages)
    tag = f"commit-{hashes(project)['good']}"
    manifest = json.loads(oci.manifests[tag])
    later = "2099-01-01T00:00:00+00:00"
    manifest["annotations"]["org.opencontainers.image.created"] = later
    content = json.dumps(manifest).encode()
    package = hashlib.sha256(content).hexdigest()
    index = oci.manifests[hashlib.sha256(oci.manifests[tag]).hexdigest().join(("sha256-", ""))]
    seals = json.loads(index)["manifests"][0]["digest"]
    own = json.loads(oci.manifests[seals])
    own["subject"] |= {"digest": f"sha256:{package}", "size": len(content)}
    body = json.dumps(own).encode()
    name = f"sha256:{hashlib.sha256(body).hexdigest()}"
    row = json.loads(index)["manifests"][0] | {"digest": name, "size": len(body)}
    whole = json.dumps(json.loads(index) | {"manifests": [row]}).encode()
    kind = oci.types[tag]
    for key, value in ((tag, content), (f"sha256:{package}", content), (name, body)):
        oci.manifests[key], oci.types[key] = value, kind
    oci.manifests[f"sha256-{package}"] = whole
    oci.types[f"sha256-{package}"] = "application/vnd.oci.image.index.v1+json"
    words = ("--from", f"{oci.address}/team/runs", *trust(packages), "--out", tmp_path / "back")
    ended = run("rollback", *words)
    assert ended.code == 1
    assert f"it was listed as made at {later}, and its seal says 20" in " ".join(ended.err.split())


def test_what_is_rehearsed_is_run_again_first(
    run: Run, packages: Path, project: Project, tmp_path: Path
) -> None:
    words = ("--packages", packages, *trust(packages), "--out", tmp_path / "back", "--rehearse")
    ended = run("rollback", *words, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["rehearsal"] == "reproduced"
    assert project.path.is_dir()


def test_an_artifact_of_another_gate_is_none_of_this_one(oci: OciDouble, tmp_path: Path) -> None:
    artifact = sealed_artifact(tmp_path, gate_id="a-b")
    registry(oci).push(artifact)
    registry(oci).push(replace(artifact, gate_id="a"))
    (found,) = registry(oci).listed("a")
    assert (found.commit, found.tag) == (COMMIT, f"commit-{COMMIT}-a")


def test_a_history_counts_rollbacks_that_work_and_that_do_not(
    project: Project, run: Run, packages: Path, tmp_path: Path
) -> None:
    history = tmp_path / "history"
    words = ("--packages", packages, *trust(packages), "--out", tmp_path / "back")
    assert run("rollback", *words, "--history", history).code == 0
    except_all = [word for one in hashes(project).values() for word in ("--except", one)]
    assert run("rollback", *words, *except_all, "--history", history).code == 3
    shown = run("history", "show", "--history", history, "--json").out
    lines = [json.loads(line) for line in shown.splitlines()]
    # lines of one second stand in no certain order
    assert sorted((line["kind"], line["succeeded"], line["commit"]) for line in lines) == [
        ("rollback", False, ""),
        ("rollback", True, hashes(project)["newest"]),
    ]
