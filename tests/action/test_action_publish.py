"""The action with `publish`: in a trusted call alone, and where the base commit says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from action_scene import Scene
from oci_double import OciDouble

from gate.errors import ExitCode
from gate.package.keys import generate_private_key, private_pem
from gate.system.files.files import LocalFiles

SECRET = "hush-hush"
PASSPHRASE = "a pass phrase of some length"


@pytest.fixture
def oci() -> Iterator[OciDouble]:
    with OciDouble() as server:
        server.login = f"robot:{SECRET}"
        yield server


@pytest.fixture
def key() -> dict[str, str]:
    """The inputs and variables of a job that seals and publishes."""
    pem = private_pem(generate_private_key(), PASSPHRASE.encode())
    return {
        "INPUT_SIGNING_KEY": pem.decode(),
        "INPUT_SIGNING_KEY_PASSPHRASE": PASSPHRASE,
        "REPRO_GATE_REGISTRY_USER": "robot",
        "REPRO_GATE_REGISTRY_PASSWORD": SECRET,
    }


def published_to(oci: OciDouble) -> str:
    return f"publish: {{oci: '{oci.address}/team/runs'}}\n"


def test_a_pass_is_published_where_the_base_says(
    scene: Scene, oci: OciDouble, key: dict[str, str]
) -> None:
    scene.project.settings(published_to(oci))
    scene.with_baseline()
    with OciDouble() as other:
        scene.project.settings(published_to(other))
        assert scene.run(key) == ExitCode.PASS
        assert not other.asked
    (line,) = [said for said in scene.said if said.startswith("published: ")]
    reference = line.removeprefix("published: ")
    assert reference.startswith(f"{oci.address}/team/runs@sha256:")
    assert f"`{reference.partition('@')[2]}`" in scene.comment
    assert f"commit-{scene.project.git('rev-parse', 'HEAD')}" in oci.manifests
    assert not [said for said in scene.said if SECRET in said]
    # the comment tells what the pull request would change
    assert "publish.oci" in scene.comment


def test_what_a_pull_request_brings_is_not_obeyed(
    scene: Scene, oci: OciDouble, key: dict[str, str]
) -> None:
    scene.project.settings(published_to(oci))
    with_entry = scene.propose()
    path = scene.project.path / "repro-gate.yml"
    text = path.read_text()
    path.unlink()
    scene.base = scene.project.commit()
    assert with_entry != scene.base
    scene.project.write("repro-gate.yml", text)
    scene.project.commit()
    assert scene.run(key) == ExitCode.USAGE
    assert not oci.asked
    assert "publish.oci: sends packages out with the gate's credentials" in scene.comment


def test_of_a_fork_nothing_is_published(scene: Scene, oci: OciDouble, key: dict[str, str]) -> None:
    scene.project.settings(published_to(oci))
    scene.with_baseline()
    assert scene.run(key, fork=True) == ExitCode.PASS
    assert not oci.asked


def test_the_training_has_ended_before_anybody_is_asked(
    scene: Scene, oci: OciDouble, key: dict[str, str]
) -> None:
    scene.project.settings(published_to(oci))
    scene.with_baseline()
    scene.project.play(exit=1)
    assert scene.run(key) == ExitCode.ERROR
    assert not oci.asked
    assert not [
        path
        for path in (scene.project.path / "repro-gate-out").rglob("*")
        if path.is_file() and SECRET.encode() in LocalFiles().read_bytes(path, max_bytes=10**8)
    ]
