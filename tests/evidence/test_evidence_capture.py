"""What is kept is copied first: what happens to the training's own file later changes nothing."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from harness_folder import HarnessFolder

from gate.errors import EvidenceError
from gate.evidence.capture import CapturedFile, capture_files
from gate.evidence.saved_state import captured_state
from gate.system.files.files import LocalFiles


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "taken"
    folder.mkdir()
    return folder


def take(harness: HarnessFolder, target: Path) -> tuple[CapturedFile, ...]:
    return capture_files(LocalFiles(), harness.path, target, ("state", "gradients"))


def refusal(harness: HarnessFolder, target: Path) -> EvidenceError:
    with pytest.raises(EvidenceError) as caught:
        take(harness, target)
    return caught.value


def test_the_state_is_copied_under_the_digest_of_its_bytes(
    harness: HarnessFolder, target: Path
) -> None:
    harness.whole()
    (taken,) = take(harness, target)
    content = taken.path.read_bytes()
    assert (taken.kept_name, taken.path.parent) == ("state.safetensors", target)
    assert taken.sha256 == hashlib.sha256(content).hexdigest()


def test_a_file_that_is_swapped_after_that_changes_nothing(
    harness: HarnessFolder, target: Path
) -> None:
    harness.whole()
    held_open = harness.file("state", ".safetensors").open("r+b")
    (taken,) = take(harness, target)
    before = captured_state(LocalFiles(), taken.path, 0)
    with held_open:
        held_open.seek(-1, os.SEEK_END)
        held_open.write(b"X")
    harness.file("state", ".safetensors").unlink()
    harness.file("state", ".safetensors").symlink_to("/etc/passwd")
    assert captured_state(LocalFiles(), taken.path, 0) == before


def test_a_link_is_not_followed(harness: HarnessFolder, target: Path) -> None:
    (target.parent / "secret").write_text("canary")
    harness.file("state", ".safetensors").symlink_to(target.parent / "secret")
    error = refusal(harness, target)
    assert error.message.startswith("the run's files cannot be copied: ")
    assert "a link, not a regular file" in error.message
    assert error.hint == "Only regular files are read and written; links are not followed."
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_only_a_regular_file_is_taken(harness: HarnessFolder, target: Path, kind: str) -> None:
    path = harness.file("state", ".safetensors")
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    assert "not a regular file" in refusal(harness, target).message


def test_two_states_of_one_rank_are_refused(harness: HarnessFolder, target: Path) -> None:
    harness.whole()
    harness.of(pid=12).state(b"another.")
    assert refusal(harness, target).message == "2 processes trained without ranks (pids 11, 12)"


def test_a_state_that_is_not_there_is_the_readers_business(
    harness: HarnessFolder, target: Path
) -> None:
    assert take(harness, target) == ()
