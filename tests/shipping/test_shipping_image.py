from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gate.records.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
NAME = "ghcr.io/org/repro-gate"
DIGEST = f"sha256:{'c' * 64}"


def _release(folder: Path, digests: str, kind: str = "full") -> subprocess.CompletedProcess[str]:
    """The script with a client that writes down what it is asked and knows some digests."""
    client = folder / "docker"
    client.write_text(
        f'#!/bin/sh\necho "$*" >>{folder}/asked\n[ "$1" = image ] && printf \'{digests}\' || true\n'
    )
    client.chmod(0o755)
    return subprocess.run(
        (str(ROOT / "scripts" / "release_image.sh"), NAME, "candidate-1.2.3", kind),
        env={"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_pushed_is_printed_by_its_digest_and_nothing_else(tmp_path: Path) -> None:
    done = _release(tmp_path, f"mirror.example/other@{DIGEST}\\n{NAME}@{DIGEST}\\n")
    assert done.stdout == f"{NAME}@{DIGEST}\n"
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0].endswith(f"--tag {NAME}:candidate-1.2.3 .")
    assert asked[1] == f"push --quiet {NAME}:candidate-1.2.3"


def test_an_image_without_a_digest_ends_the_release(tmp_path: Path) -> None:
    done = _release(tmp_path, f"{NAME}@sha256:short\\n")
    assert (done.returncode, done.stdout) == (1, "")


def test_only_the_slim_image_leaves_torch_out(tmp_path: Path) -> None:
    for kind, words in (("full", 0), ("slim", 1)):
        done = _release(tmp_path, f"{NAME}@{DIGEST}\\n", kind)
        assert done.stdout == f"{NAME}@{DIGEST}\n"
        asked = (tmp_path / "asked").read_text()
        assert asked.count("--build-arg TRAINING_REQUIREMENTS= ") == words
        assert ("image.description=A reproducibility gate for training code, without" in asked) == (
            kind == "slim"
        )


def test_an_image_says_what_it_is(tmp_path: Path) -> None:
    _release(tmp_path, f"{NAME}@{DIGEST}\\n")
    asked = (tmp_path / "asked").read_text()
    for label in ("title=repro-gate", "licenses=Apache-2.0", f"version={VERSION}", "description="):
        assert f"--label org.opencontainers.image.{label}" in asked


def test_another_kind_of_image_is_refused(tmp_path: Path) -> None:
    done = _release(tmp_path, "", "tiny")
    assert (done.returncode, done.stderr) == (2, "error: tiny is neither full nor slim\n")
