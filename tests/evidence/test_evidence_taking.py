"""What is kept is copied first: what happens to the training's own file later changes nothing."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from guest_folder import GuestFolder

from gate.adapters.files.files import LocalFiles
from gate.errors import EvidenceError
from gate.evidence.saved_state import captured_state
from gate.evidence.taking import TakenFile, take_files


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "taken"
    folder.mkdir()
    return folder


def take(guest: GuestFolder, target: Path) -> tuple[TakenFile, ...]:
    return take_files(LocalFiles(), guest.path, target, ("state", "gradients"))


def refusal(guest: GuestFolder, target: Path) -> EvidenceError:
    with pytest.raises(EvidenceError) as caught:
        take(guest, target)
    return caught.value


def test_the_state_is_copied_under_the_digest_of_its_bytes(
    guest: GuestFolder, target: Path
) -> None:
    guest.whole()
    (taken,) = take(guest, target)
    content = taken.path.read_bytes()
    assert (taken.kept_name, taken.path.parent) == ("state.safetensors", target)
    assert taken.sha256 == hashlib.sha256(content).hexdigest()


def test_a_file_that_is_swapped_after_that_changes_nothing(
    guest: GuestFolder, target: Path
) -> None:
    guest.whole()
    held_open = guest.file("state", ".safetensors").open("r+b")
    (taken,) = take(guest, target)
    before = captured_state(LocalFiles(), taken.path, 0)
    with held_open:
        held_open.seek(-1, os.SEEK_END)
        held_open.write(b"X")
    guest.file("state", ".safetensors").unlink()
    guest.file("state", ".safetensors").symlink_to("/etc/passwd")
    assert captured_state(LocalFiles(), taken.path, 0) == before


def test_a_link_is_not_followed(guest: GuestFolder, target: Path) -> None:
    (target.parent / "secret").write_text("canary")
    guest.file("state", ".safetensors").symlink_to(target.parent / "secret")
    error = refusal(guest, target)
    assert error.message.startswith("what the run left cannot be taken over: ")
    assert "a link, not a regular file" in error.message
    assert error.hint == "Only regular files are read and added to; links are not followed."
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_only_a_regular_file_is_taken(guest: GuestFolder, target: Path, kind: str) -> None:
    path = guest.file("state", ".safetensors")
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    assert "not a regular file" in refusal(guest, target).message


def test_two_states_of_one_rank_are_refused(guest: GuestFolder, target: Path) -> None:
    guest.whole()
    guest.of(pid=12).state(b"another.")
    assert refusal(guest, target).message == "2 processes trained without ranks (pids 11, 12)"


def test_a_state_that_is_not_there_is_the_readers_business(
    guest: GuestFolder, target: Path
) -> None:
    assert take(guest, target) == ()
