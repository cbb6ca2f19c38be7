"""`--sign sigstore`, and `verify` with an identity in place of a key."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Ended, Run, record
from fake_sigstore import CERTIFICATE_PATH, IDENTITY, REQUEST_TOKEN, FakeSigstore, Fault
from played_training import Project

NAMED = (
    *("--certificate-identity", IDENTITY.name),
    *("--certificate-oidc-issuer", IDENTITY.issuer),
)


@pytest.fixture
def sigstore(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSigstore]:
    """The services, the settings that name them, and a job that may ask for its token."""
    with FakeSigstore() as server:
        for name, value in server.variables().items():
            monkeypatch.setenv(name, value)
        project.write("trust/root.json", server.trusted_root())
        project.settings(
            f"signing: {{fulcio_url: '{server.url}', rekor_url: '{server.url}', "
            "trusted_root: trust/root.json}\n"
        )
        yield server


@pytest.fixture
def judged(project: Project, run: Run, sigstore: FakeSigstore, tmp_path: Path) -> Ended:
    """A pass that another job's runs came to, sealed by this one."""
    ended = judge(project, run, tmp_path)
    assert ended.code == 0, ended.err
    # a token for each statement
    assert len(sigstore.tokens) == 2
    return ended


def judge(project: Project, run: Run, tmp_path: Path) -> Ended:
    record(project, run)
    project.commit()
    run("run", "-q", "--out", tmp_path / "ran")
    evidence = tmp_path / "ran" / "evidence"
    return run("judge", evidence, "--out", tmp_path / "out", "--sign", "sigstore")


def verify(project: Project, run: Run, tmp_path: Path, *words: str | Path) -> Ended:
    package = tmp_path / "out" / "package.tar"
    return run("verify", package, "--commit", project.git("rev-parse", "HEAD"), *words)


@pytest.mark.usefixtures("judged")
def test_a_keyless_seal_verifies_as_the_comment_says(run: Run, tmp_path: Path) -> None:
    comment = (tmp_path / "out" / "comment.md").read_text()
    line = next(line for line in comment.splitlines() if "repro-gate verify" in line)
    words = shlex.split(line[line.index("repro-gate verify") :].strip("`"))
    ended = run(*words[1:])
    assert ended.code == 0, ended.err
    assert f"  identity    {IDENTITY.name}\n  issuer      {IDENTITY.issuer}\n" in ended.out
    explained = run(*words[1:], "--explain")
    assert explained.out.count("cosign verify-blob-attestation") == 2
    assert "--new-bundle-format --bundle" in explained.out
    assert not (tmp_path / "out" / "package.dsse.json").exists()


@pytest.mark.usefixtures("judged")
def test_a_broken_trusted_root_checks_nothing(project: Project, run: Run, tmp_path: Path) -> None:
    root = tmp_path / "root.json"
    root.write_bytes(b"{}")
    ended = verify(project, run, tmp_path, *NAMED, "--trusted-root", root)
    assert ended.code == 3
    assert "error: the trusted root is not one of Sigstore's" in ended.err


@pytest.mark.usefixtures("judged")
def test_the_bundle_may_lie_elsewhere_and_programs_read_the_answer(
    project: Project, run: Run, tmp_path: Path
) -> None:
    names = ("package.sigstore.json", "package.provenance.sigstore.json")
    moved = [(tmp_path / "out" / name).rename(tmp_path / f"{name[8]}.json") for name in names]
    root = project.path / "trust" / "root.json"
    bundles = [word for path in moved for word in ("--bundle", path)]
    asked = (*NAMED, "--trusted-root", root, *bundles, "--json")
    found = json.loads(verify(project, run, tmp_path, *asked).out)
    assert (found["identity"], found["issuer"]) == (IDENTITY.name, IDENTITY.issuer)
    gone = verify(project, run, tmp_path, *NAMED, "--trusted-root", root)
    assert (gone.code, "no seal found next to package.tar" in gone.err) == (1, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "no trusted key or identity was given"),
        (NAMED[:2], "no trusted key or identity was given"),
        (NAMED[2:], "no trusted key or identity was given"),
        ((*NAMED, "--trusted-keys", "k.json"), "are two ways to verify"),
        (("--trusted-root", "r.json", "--trusted-keys", "k.json"), "are two ways to verify"),
        ((*NAMED, "--trusted-root", "no.json"), "no.json"),
    ],
)
def test_whoever_verifies_says_whom_to_trust(
    project: Project, run: Run, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "package.sigstore.json").write_text("{}")
    ended = verify(project, run, tmp_path, *words)
    assert ended.code in {2, 3}
    assert told in ended.err
    assert "hint: " in ended.err


def test_the_services_are_those_of_the_settings(
    project: Project, run: Run, sigstore: FakeSigstore, tmp_path: Path
) -> None:
    fulcio_url, rekor_url = "http://127.0.0.1:1", sigstore.url
    project.settings(
        f"signing: {{fulcio_url: '{fulcio_url}', rekor_url: '{rekor_url}', "
        "trusted_root: trust/root.json}\n"
    )
    ended = judge(project, run, tmp_path)
    assert "error: Fulcio at http://127.0.0.1:1 cannot be reached" in ended.err


def test_a_service_that_fails_seals_nothing_and_the_answer_is_told(
    project: Project, run: Run, sigstore: FakeSigstore, tmp_path: Path
) -> None:
    sigstore.fail_next(CERTIFICATE_PATH, Fault(status=400, body=b'{"message": "not today"}'))
    ended = judge(project, run, tmp_path)
    assert ended.code == 3
    assert f"error: Fulcio at {sigstore.url} answered 400" in ended.err
    assert "not today" in ended.err
    assert "the runs themselves were judged: reproduced" in ended.err
    assert REQUEST_TOKEN not in ended.err
    assert not (tmp_path / "out" / "package.sigstore.json").exists()
    assert "the runs themselves were judged" in (tmp_path / "out" / "comment.md").read_text()


@pytest.mark.parametrize(
    ("root", "told"),
    [
        ("trust/other.json", "error: trust/other.json: not in commit"),
        ("../root.json", "must be a relative path inside the project"),
        ("trust", "trust is not a file in commit"),
    ],
)
def test_a_trusted_root_is_a_file_that_was_committed(
    project: Project, run: Run, sigstore: FakeSigstore, root: str, told: str
) -> None:
    project.settings(f"signing: {{trusted_root: {root}}}\n")
    ended = run("gate", "--sign", "sigstore")
    assert ended.code in {2, 3}
    assert told in ended.err
    assert not sigstore.tokens


@pytest.mark.parametrize("text", [b"", b"{}", b"not JSON"])
def test_a_broken_trusted_root_is_told_before_anything_is_trained(
    project: Project, run: Run, sigstore: FakeSigstore, text: bytes
) -> None:
    project.write("trust/root.json", text)
    project.commit()
    ended = run("gate", "--sign", "sigstore")
    assert ended.code == 2
    assert "error: trust/root.json: the trusted root is not one of Sigstore's" in ended.err
    assert "hint: It is a JSON document" in ended.err
    assert "strict-1" not in ended.err + ended.out
    assert not (project.path / "repro-gate-out" / "verdict.json").exists()
    assert sigstore.seen == []


@pytest.mark.usefixtures("project")
def test_outside_a_job_it_is_refused_before_anything_is_trained(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", raising=False)
    ended = run("gate", "--sign", "sigstore")
    assert ended.code == 2
    assert "sign: sigstore needs the job's identity token" in ended.err
    assert "`id-token: write`" in ended.err


@pytest.mark.usefixtures("project")
def test_two_ways_to_sign_are_one_too_many(run: Run) -> None:
    ended = run("gate", "--sign", "sigstore", "--signing-key", "key.pem")
    assert ended.code == 2
    assert "--sign sigstore takes no --signing-key" in ended.err


def test_a_training_under_the_gates_own_account_is_not_started(
    run: Run, sigstore: FakeSigstore
) -> None:
    # the settings of a played training ask for it
    ended = run("gate", "--sign", "sigstore")
    assert ended.code == 2
    assert "the training would share the" in ended.err
    assert not sigstore.tokens


@pytest.mark.parametrize(
    "address",
    ["http://fulcio.example", "ftp://x", "https://", "https://u:p@h", "https://h?q", "https://h\n"],
)
def test_an_address_that_would_carry_a_token_in_the_clear_is_refused(
    project: Project, run: Run, address: str
) -> None:
    project.settings(f"signing: {{fulcio_url: {json.dumps(address)}}}\n")
    ended = run("gate")
    assert ended.code == 2
    assert "signing.fulcio_url" in ended.err
    assert "must be an address that begins with https://" in ended.err
