from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from checkpoint_digests import content_of, leaves_of, root_of
from torch_states import Save

from gate.checkpoint.byte_sources import Inflated
from gate.checkpoint.formats import npy_reader
from gate.checkpoint.untrusted_files import open_untrusted
from gate.errors import EvidenceError
from gate.system.files.files import LocalFiles

pytestmark = pytest.mark.torch
ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
Array = npt.NDArray[np.generic]


def npy(folder: Path, array: Array) -> Path:
    np.save(folder / "a.npy", array)
    return folder / "a.npy"


def packed(path: Path, arrays: Mapping[str, Array], save: Callable[..., None] = np.savez) -> None:
    save(path, **arrays)


DTYPES = ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_has_the_root_of_its_tensor(save: Save, tmp_path: Path, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    expected = root_of(save(torch.from_numpy(array.copy())))
    for other in (array, np.asfortranarray(array), array.astype(array.dtype.newbyteorder(">"))):
        assert root_of(npy(tmp_path, other)) == expected
        assert root_of(save(other)) == expected
        assert root_of(save(other, protocol=5)) == expected


SHAPES = {
    "scalar": np.float32(1.5), "empty": np.zeros((0, 3), "f4"), "row": np.ones((1, 3), "f4"),
    "cube": np.asfortranarray(ARRAY), "large": np.asfortranarray(np.ones((700, 900), ">f4")),
}  # fmt: skip


@pytest.mark.parametrize("array", SHAPES.values(), ids=SHAPES)
def test_every_shape_and_order_is_read(save: Save, tmp_path: Path, array: Array) -> None:
    tensor = torch.from_numpy(np.array(array, dtype=np.float32, order="C"))
    assert root_of(npy(tmp_path, array)) == root_of(save(tensor))


def test_an_archive_is_a_map_stored_or_deflated(save: Save, tmp_path: Path) -> None:
    arrays = {"w": ARRAY, "a/b": np.arange(300_000.0).reshape(300, 1000).T, "e": np.zeros(0)}
    expected = root_of(save({key: torch.from_numpy(a.copy()) for key, a in arrays.items()}))
    packed(tmp_path / "stored.npz", arrays)
    packed(tmp_path / "deflated.npz", arrays, np.savez_compressed)
    assert root_of(tmp_path / "stored.npz") == expected
    assert root_of(tmp_path / "deflated.npz") == expected
    assert content_of(tmp_path / "stored.npz").format == "NumPy archive"


def test_arrays_of_objects_are_interpreted_and_never_run(tmp_path: Path) -> None:
    array = np.array([None, 1, "x", ARRAY], dtype=object)
    found = leaves_of(npy(tmp_path, array))
    assert found["/~items[1]"] == ("int", None)
    assert found["/~items[3]"] == ("F32", (2, 3, 4))
    np.savez_compressed(tmp_path / "o.npz", o=array)
    assert set(leaves_of(tmp_path / "o.npz")) == {f"/o{path}" for path in found}


class Command:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return exec, (f"open({str(self.canary)!r}, 'w')",)


def test_a_command_in_an_array_is_refused(tmp_path: Path) -> None:
    path = npy(tmp_path, np.array([Command(tmp_path / "canary")], dtype=object))
    with pytest.raises(EvidenceError, match=r"a.npy: calls 'builtins.exec' when it is loaded"):
        content_of(path)
    assert not (tmp_path / "canary").exists()


def test_numpy_1_and_2_write_the_same_array(tmp_path: Path) -> None:
    new = pickle.dumps([ARRAY, np.float64(0.5), np.array(["x"])], 2)
    assert b"numpy._core" in new
    (tmp_path / "new.pkl").write_bytes(new)
    (tmp_path / "old.pkl").write_bytes(new.replace(b"numpy._core", b"numpy.core"))
    assert root_of(tmp_path / "new.pkl") == root_of(tmp_path / "old.pkl")


def test_a_scalar_is_the_number_that_python_has(save: Save) -> None:
    scalars = [
        np.float64(0.1), np.float32(1.5), np.float16(2), np.int8(-3), np.uint64(2**63),
        np.bool_(True), np.complex64(1 + 2j),
    ]  # fmt: skip
    plain = [0.1, 1.5, 2.0, -3, 2**63, True, 1 + 2j]
    assert root_of(save(scalars)) == root_of(save(plain))


def test_other_elements_are_kept_as_they_are(save: Save) -> None:
    record = np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
    other = np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])
    assert root_of(save(record)) != root_of(save(other))
    assert root_of(save(np.array(["ab"]))) != root_of(save(np.array(["ac"])))
    assert root_of(save(np.dtype("f4"))) != root_of(save(np.dtype("f8")))
    assert root_of(save(np.datetime64("2024-01-01"))) != root_of(save(np.datetime64("2024-01-02")))


def test_random_states_of_numpy_are_read(save: Save) -> None:
    state = {"rng": np.random.RandomState(0).get_state()}
    assert leaves_of(save(state))["/rng[1]"] == ("U32", (624,))


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }"


def file_of(folder: Path, header: str, data: bytes = b"\0" * 16, version: int = 1) -> Path:
    text = header.encode()
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    (folder / "bad.npy").write_bytes(b"\x93NUMPY" + bytes([version, 0]) + length + text + data)
    return folder / "bad.npy"


def test_every_version_of_the_header_is_read(tmp_path: Path) -> None:
    assert len({root_of(file_of(tmp_path, GOOD, version=version)) for version in (1, 2, 3)}) == 1


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (GOOD.replace("2, 2", "2, 3"), "declares '(2, 3)' elements of 4 bytes, but 16 bytes"),
        (GOOD.replace("2, 2", "9" * 18 + ", 2"), "but 16 bytes follow"),
        (GOOD.replace("2, 2", "9" * 19), "its shape is not a short list of sizes"),
        (GOOD.replace("2, 2", "-2, 2"), "its header is not what NumPy writes"),
        (GOOD.replace("2, 2", "2 2"), "its shape is not a short list of sizes"),
        (GOOD.replace("2, 2", "2,,2"), "its shape is not a short list of sizes"),
        (GOOD.replace("2, 2", "1," * 33), "its shape is not a short list of sizes"),
        (GOOD.replace("<f4", "<U4"), "holds elements of the type 'U4', which is not supported"),
        (GOOD.replace("'<f4'", "[('a', '<f4')]"), "which is not supported"),
        (GOOD.replace("False", "0"), "its header is not what NumPy writes"),
        ("[" * 60_000, "its header is not what NumPy writes"),
        ("", "its header is not what NumPy writes"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: str, told: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        content_of(file_of(tmp_path, header))
    assert caught.value.message.startswith("bad.npy: ")
    assert told in caught.value.message


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x93NUMPY", "is truncated or a NumPy array of an unknown version"),
        (b"\x93NUMPY\x09\0\0\0\0\0", "is truncated or a NumPy array of an unknown version"),
        (b"\x93NUMPY\x02\0\xff\xff\xff\xff", "its header of 4,294,967,295 bytes is too large"),
        (b"\x93NUMPY\x01\0\xff\x00{}", "its header of 255 bytes is too large"),
    ],
)
def test_a_broken_beginning_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "bad.npy").write_bytes(content)
    with pytest.raises(EvidenceError, match=told):
        content_of(tmp_path / "bad.npy")


def bomb(folder: Path, size: int, says: int) -> Path:
    """A compressed archive whose two headers say another size than the entry unpacks to."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({says},), }}".encode()
    start = b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header
    path = folder / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("w.npy", start + b"\0" * size)
    real, told = len(start) + size, len(start) + says
    content = path.read_bytes()
    size_there, size_told = real.to_bytes(4, "little"), told.to_bytes(4, "little")
    directory = content.rindex(b"PK\x01\x02")
    local, data, central = content[:30], content[30:directory], content[directory:]
    path.write_bytes(
        local.replace(size_there, size_told) + data + central.replace(size_there, size_told)
    )
    return path


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert leaves_of(bomb(tmp_path, 50_000_000, 50_000_000)) == {"/w": ("U8", (50_000_000,))}
    with pytest.raises(EvidenceError, match="unpacks to more than it claims"):
        content_of(bomb(tmp_path, 50_000_000, 1_000_000))
    with pytest.raises(EvidenceError, match="unpacks to less than it claims"):
        content_of(bomb(tmp_path, 1_000_000, 1_000_100))
    with pytest.raises(EvidenceError, match="which no compression can"):
        content_of(bomb(tmp_path, 1_000_000, 4_000_000_000))
    monkeypatch.setattr(npy_reader, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(EvidenceError, match="its compressed entries unpack to more than 1,000"):
        content_of(bomb(tmp_path, 50_000, 50_000))


def test_broken_compression_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes(b"\xff" * 100)
    with open_untrusted(LocalFiles(), path, "broken", max_bytes=1000) as opened:
        source = Inflated(opened, 0, 100, 1000, 0, None)
        with pytest.raises(EvidenceError, match="broken: a compressed entry cannot be unpacked"):
            list(source.pieces(10))


def test_a_large_array_in_fortran_order_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gate.checkpoint.byte_sources.MAX_GATHERED_BYTES", 10)
    with pytest.raises(EvidenceError, match="in Fortran order is too large to gather"):
        content_of(npy(tmp_path, np.asfortranarray(ARRAY)))
