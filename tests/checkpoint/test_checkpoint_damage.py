"""One changed byte of a zip archive is an error, or a byte that no reader of the archive sees."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_digests import MAX_BYTES, content_of, root_of
from hostile_archives import without_checksums

from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.formats.formats import open_state
from gate.errors import EvidenceError, ExitCode
from gate.system.files.files import LocalFiles

SMALL, LARGE = torch.arange(6.0), torch.arange(300_000, dtype=torch.int64)
FIRST, SECOND = np.arange(6.0), np.ones(3, dtype=np.float32)
WRONG = "its bytes do not match the CRC-32 in the archive"


WRITERS: dict[str, Callable[[Path], object]] = {
    "torch": lambda path: torch.save({"w": torch.arange(6.0), "step": 3}, path),
    "npz": lambda path: np.savez(path, a=FIRST, b=SECOND),
    "packed npz": lambda path: np.savez_compressed(path, a=FIRST, b=SECOND),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.save({"w": SMALL, "big": LARGE, "step": 3}, tmp_path / "model.pt")
    return tmp_path / "model.pt"


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def damage(path: Path, data: bytes) -> EvidenceError:
    """The error of a file after one bit of `data`, which occurs in it, is flipped."""
    flip(path, path.read_bytes().index(data) + len(data) // 2)
    with pytest.raises(EvidenceError) as caught:
        content_of(path)
    return caught.value


def test_a_flipped_bit_of_a_tensor_names_the_damaged_entry(saved: Path) -> None:
    error = damage(saved, SMALL.numpy().tobytes())
    assert error.message == f"model.pt: zip entry 'model/data/0' is damaged: {WRONG}"
    assert "Copy it again from where it was saved" in error.hint
    assert error.exit_code is ExitCode.ERROR


def test_a_flipped_bit_of_a_large_tensor_names_the_damaged_entry(saved: Path) -> None:
    error = damage(saved, LARGE.numpy().tobytes())
    assert error.message == f"model.pt: zip entry 'model/data/1' is damaged: {WRONG}"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("unknown", UnknownContent)
def test_a_flipped_bit_of_an_archive_that_is_not_understood_is_an_error(
    tmp_path: Path, method: int, unknown: UnknownContent
) -> None:
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", method) as target:
        target.writestr("model.weights.h5", np.random.default_rng(1).bytes(500))
    flip(path, 300)
    with (
        pytest.raises(EvidenceError, match=r"'model.weights.h5'.* (?:damaged|cannot be unpacked)"),
        open_state(LocalFiles(), path, path.name, max_bytes=MAX_BYTES, unknown=unknown),
    ):
        pass


@pytest.mark.parametrize("writer", WRITERS)
def test_a_flipped_bit_is_an_error_or_changes_nothing(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "state.npz")
    path = tmp_path / "state.npz"
    before = root_of(path)
    for place in range(0, path.stat().st_size, 5):
        flip(path, place)
        with suppress(EvidenceError):
            assert root_of(path) == before, place
        flip(path, place)


def test_an_archive_that_torch_saved_without_checksums_is_read(saved: Path) -> None:
    before = root_of(saved)
    saved.write_bytes(without_checksums(saved.read_bytes()))
    assert root_of(saved) == before


def test_names_that_are_not_printable_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "n.npz", **{"a\x1b": FIRST})  # type: ignore[arg-type] # by name
    with pytest.raises(EvidenceError, match=r"the name 'a\\x1b.npy' is too long or not printable"):
        content_of(tmp_path / "n.npz")
