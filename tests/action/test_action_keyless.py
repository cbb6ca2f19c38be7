"""The action with `sign: sigstore`: whose job seals, and when nobody is asked at all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest
from action_scene import Scene
from fake_sigstore import (
    CERTIFICATE_PATH,
    ENTRIES_PATH,
    IDENTITY,
    REQUEST_TOKEN,
    TOKENS_PATH,
    FakeSigstore,
    Fault,
)

from gate.errors import ExitCode
from gate.settings.event import read_inputs

KEYLESS = {"INPUT_SIGN": "sigstore"}
PLAIN = "version: 1\ntrain: {command: python3 train.py, max_steps: 3}\n"
FAULTS = {
    TOKENS_PATH: Fault(status=400, body=b'{"message": "no"}'),
    CERTIFICATE_PATH: Fault(body=b" " * (5 * 1024 * 1024)),
    ENTRIES_PATH: Fault(body=b"[]"),
}


@pytest.fixture
def sigstore(scene: Scene) -> Iterator[FakeSigstore]:
    """The services, and a base commit whose settings name them."""
    with FakeSigstore() as server:
        scene.project.write("root.json", server.trusted_root())
        scene.project.settings(
            f"signing: {{fulcio_url: '{server.url}', rekor_url: '{server.url}', "
            "trusted_root: root.json}\n"
        )
        scene.with_baseline()
        scene.said.clear()
        yield server


def run(
    scene: Scene,
    sigstore: FakeSigstore,
    changed: Mapping[str, str] = KEYLESS,
    *,
    fork: bool = False,
) -> ExitCode:
    return scene.run({**sigstore.variables(), **changed}, fork=fork)


def everything(scene: Scene) -> str:
    """All that the action said and wrote outside the package."""
    out = scene.project.path / "repro-gate-out"
    files = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".tar"]
    written = [path.read_bytes().decode("utf-8", "replace") for path in files]
    files = [scene.folder / "output", scene.folder / "summary"]
    return "\n".join([*scene.said, *written, *(path.read_text() for path in files)])


def test_a_pass_is_sealed_by_the_job_and_no_secret_is_told(
    scene: Scene, sigstore: FakeSigstore
) -> None:
    assert run(scene, sigstore) == ExitCode.PASS
    assert scene.output("bundle_path") == "repro-gate-out/package.sigstore.json"
    assert f"--certificate-identity {IDENTITY.name}" in scene.comment
    assert "--trusted-root root.json" in scene.comment
    secrets = (REQUEST_TOKEN, *sigstore.tokens)
    assert [secret for secret in secrets if secret in everything(scene)] == []


def test_the_token_is_asked_for_when_nothing_is_left_to_train(
    scene: Scene, sigstore: FakeSigstore
) -> None:
    scene.project.play(exit=1)
    assert run(scene, sigstore) == ExitCode.ERROR
    assert sigstore.seen == []


def test_a_fork_is_never_sealed(scene: Scene, sigstore: FakeSigstore) -> None:
    assert run(scene, sigstore, fork=True) == ExitCode.PASS
    assert "not sealed: a pull request from a fork is never sealed" in scene.said
    assert sigstore.seen == []


def test_a_fork_needs_no_permission(scene: Scene, sigstore: FakeSigstore) -> None:
    assert scene.run(KEYLESS, fork=True) == ExitCode.PASS
    assert sigstore.seen == []


def test_a_missing_permission_is_told_before_the_training(
    scene: Scene, sigstore: FakeSigstore
) -> None:
    asked = len(scene.asked)
    assert scene.run(KEYLESS) == ExitCode.USAGE
    assert any("sign: sigstore needs the job's identity token" in line for line in scene.said)
    assert any("`id-token: write`" in line for line in scene.said)
    assert (len(scene.asked), sigstore.seen) == (asked, [])


def test_the_job_that_runs_seals_nothing(scene: Scene, sigstore: FakeSigstore) -> None:
    assert run(scene, sigstore, {**KEYLESS, "INPUT_MODE": "run"}) == ExitCode.USAGE
    assert any("mode run seals nothing" in line for line in scene.said)


def test_settings_of_the_pull_request_choose_nobody(scene: Scene, sigstore: FakeSigstore) -> None:
    # the base has no settings: those of the head are used, and say where a token would go
    scene.project.git("rm", "-q", "repro-gate.yml")
    text = scene.project.git("show", "HEAD:repro-gate.yml")
    scene.base = scene.project.commit()
    scene.project.write("repro-gate.yml", f"{text}\n")
    scene.project.commit()
    assert run(scene, sigstore) == ExitCode.USAGE
    assert "signing.fulcio_url: decides whose seals are trusted" in "\n".join(scene.said)
    assert sigstore.seen == []


def test_a_pass_by_the_pull_requests_own_settings_has_no_seal(
    scene: Scene, sigstore: FakeSigstore
) -> None:
    scene.project.git("rm", "-q", "repro-gate.yml")
    scene.base = scene.project.commit()
    scene.project.write("repro-gate.yml", PLAIN)
    scene.project.commit()
    assert run(scene, sigstore) == ExitCode.PASS, scene.said
    assert "not sealed: the settings, which decide, come with the pull request" in scene.said
    assert sigstore.seen == []


@pytest.mark.parametrize("path", FAULTS)
def test_a_service_that_fails_is_an_error_with_the_answer_beside_it(
    scene: Scene, sigstore: FakeSigstore, path: str
) -> None:
    sigstore.fail_next(path, FAULTS[path])
    assert run(scene, sigstore) == ExitCode.ERROR
    assert scene.output("verdict") == "error"
    assert scene.output("bundle_path") == ""
    assert "the runs themselves were judged: reproduced" in scene.comment
    assert not re.search("|".join([REQUEST_TOKEN, *sigstore.tokens]), everything(scene))
    assert not (scene.project.path / "repro-gate-out" / "package.sigstore.json").exists()


def test_input_sign_is_one_of_two_words(scene: Scene) -> None:
    assert scene.run({"INPUT_SIGN": "gpg"}) == ExitCode.USAGE
    assert any("input sign: 'gpg' is not one of key, sigstore" in line for line in scene.said)
    assert read_inputs({"INPUT_SIGN": ""}).sign == "key"


def test_a_key_beside_it_is_refused(scene: Scene) -> None:
    assert scene.run({**KEYLESS, "INPUT_SIGNING_KEY": "pem"}) == ExitCode.USAGE
    assert any("input sign: sigstore takes no signing_key" in line for line in scene.said)


def test_a_root_that_the_pull_request_brings_is_shown_and_not_trusted(
    scene: Scene, sigstore: FakeSigstore
) -> None:
    with FakeSigstore() as another:
        scene.project.write("root.json", another.trusted_root())
        scene.project.commit()
    assert run(scene, sigstore) == ExitCode.PASS
    shown = (scene.folder / "summary").read_text()
    # both logs and the authority, each gone and there; the address cannot become a link
    rows = [line for line in shown.splitlines() if line.startswith("| `root.json` |")]
    assert len(rows) == 6
    assert sum("`log https:" in row for row in rows) == 2
    assert "changes root.json; the base commit's version was used" in shown


def test_a_broken_root_of_the_base_ends_the_call_before_anything_is_trained(
    scene: Scene, sigstore: FakeSigstore
) -> None:
    scene.project.write("root.json", "{}")
    scene.base = scene.project.commit()
    assert run(scene, sigstore) == ExitCode.USAGE
    said = "\n".join(scene.said)
    assert "root.json: the trusted root is not one of Sigstore's" in said
    assert "strict-1" not in said
    assert sigstore.seen == []
