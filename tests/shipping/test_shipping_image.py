"""The script that builds the released images: what it asks of Docker, and what it answers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from release_action import git

from gate.system.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
NAME = "ghcr.io/org/repro-gate"
DIGEST = f"sha256:{'c' * 64}"
# a client that writes down what it is asked and answers with one digest
CLIENT = """#!/bin/sh
echo "$*" >>{folder}/asked
while [ $# -gt 0 ]; do
    [ "$1" = --metadata-file ] && printf '{{\\n  "containerimage.digest": "{digest}"\\n}}\\n' >"$2"
    [ "$1" = inspect ] && echo '{{"digest": "{digest}", "manifests": [{{"digest": "sha256:0"}}]}}'
    shift
done
exit 0
"""


def _release(
    folder: Path, *words: str, digest: str = DIGEST
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The script's answer, and the command lines that the client got."""
    client = folder / "docker"
    client.write_text(CLIENT.format(folder=folder, digest=digest))
    client.chmod(0o755)
    asked = folder / "asked"
    asked.write_text("")
    done = subprocess.run(
        (str(ROOT / "scripts" / "release_image.sh"), *words),
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "SOURCE_URL": "https://github.example/org/repro-gate",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done, asked.read_text().splitlines()


def _build(
    folder: Path, kind: str = "full", architecture: str = "arm64", digest: str = DIGEST
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    return _release(folder, "build", NAME, "candidate-1", kind, architecture, digest=digest)


def test_what_is_pushed_is_printed_by_its_digest_and_nothing_else(tmp_path: Path) -> None:
    done, (asked,) = _build(tmp_path)
    assert done.stdout == f"{NAME}@{DIGEST}\n"
    assert asked.startswith("buildx build --platform linux/arm64 --provenance=false --push ")
    assert asked.endswith(f"--tag {NAME}:candidate-1 .")


@pytest.mark.parametrize("command", ["build", "join"])
def test_an_image_without_a_digest_ends_the_release(tmp_path: Path, command: str) -> None:
    last = "amd64" if command == "build" else f"{NAME}@{DIGEST}"
    done, _ = _release(tmp_path, command, NAME, "tag", "full", last, digest="sha256:short")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: no digest of {NAME}:tag, but: sha256:short\n"


def test_only_the_slim_image_leaves_torch_out(tmp_path: Path) -> None:
    asked = {kind: _build(tmp_path, kind)[1][0] for kind in ("full", "slim")}
    for words in ("--build-arg TRAINING_REQUIREMENTS= ", "training code, without torch --label"):
        assert [kind for kind, line in asked.items() if words in line] == ["slim"]


def test_images_of_both_architectures_become_one(tmp_path: Path) -> None:
    images = (f"{NAME}@sha256:{'1' * 64}", f"{NAME}@sha256:{'2' * 64}")
    done, asked = _release(tmp_path, "join", NAME, "candidate-1", "full", *images)
    assert done.stdout == f"{NAME}@{DIGEST}\n"
    assert asked[0].startswith("buildx imagetools create ")
    assert asked[0].endswith(f"--tag {NAME}:candidate-1 {' '.join(images)}")


@pytest.mark.parametrize(
    ("command", "option"), [("build", "--label "), ("join", "--annotation index:")]
)
@pytest.mark.parametrize("kind", ["full", "slim"])
def test_an_image_says_what_it_is(tmp_path: Path, command: str, option: str, kind: str) -> None:
    last = "amd64" if command == "build" else f"{NAME}@{DIGEST}"
    _, (asked, *_) = _release(tmp_path, command, NAME, "tag", kind, last)
    address = "https://github.example/org/repro-gate"
    for label in (
        "title=repro-gate ",
        "description=A reproducibility gate for training code, with",
        "licenses=Apache-2.0 ",
        f"version={VERSION} ",
        f"revision={git(ROOT, 'rev-parse', 'HEAD').strip()} ",
        f"source={address} ",
        f"documentation={address}/blob/v{VERSION}/README.md ",
    ):
        assert f"{option}org.opencontainers.image.{label}" in asked


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("build", NAME, "tag", "tiny", "amd64"), "error: tiny is neither full nor slim\n"),
        (("build", NAME, "tag", "full", "s390x"), "error: s390x is neither amd64 nor arm64\n"),
        (("build", NAME, "tag", "full"), "release_image.sh build NAME TAG full|slim amd64|arm64"),
        (("push", NAME, "tag", "full", "amd64"), "release_image.sh build NAME TAG full|slim"),
    ],
)
def test_a_wrong_call_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done, asked = _release(tmp_path, *words)
    assert (done.returncode, done.stdout, asked) == (2, "", [])
    assert done.stderr.startswith(said)
