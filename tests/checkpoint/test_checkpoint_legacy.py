from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import torch
from checkpoint_digests import content_of, leaves_of, root_of
from hostile_archives import Opcodes, name, pickled, push
from torch_states import WEIGHT, Save

from gate.checkpoint.formats import torch_files
from gate.checkpoint.formats.torch_files import MAGIC_NUMBER, PROTOCOL_VERSION
from gate.errors import EvidenceError

pytestmark = pytest.mark.torch
FACTS = Opcodes(b"}" + push("little_endian") + b"\x88s")


def legacy(folder: Path, state: object, protocol: int = 2) -> Path:
    path = folder / f"legacy{protocol}.pt"
    torch.save(state, path, _use_new_zipfile_serialization=False, pickle_protocol=protocol)
    return path


def states() -> dict[str, object]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {
        "nested": {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3},
        "module": model,
        "views": {"a": WEIGHT[1:], "b": WEIGHT.t(), "c": WEIGHT[:, 1]},
        "dtypes": [torch.ones(3, dtype=torch.uint16), torch.ones(2, dtype=torch.bfloat16), WEIGHT],
        "empty": [torch.zeros(0, 3), {}, 5],
    }


@pytest.mark.parametrize("which", ["nested", "module", "views", "dtypes", "empty"])
def test_a_legacy_file_has_the_root_of_the_archive(save: Save, tmp_path: Path, which: str) -> None:
    state = states()[which]
    for protocol in (2, 4):
        assert root_of(legacy(tmp_path, state, protocol)) == root_of(save(state))


def test_pickles_larger_than_the_first_read(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_files, "FIRST_READ_BYTES", 100)
    state = states()["nested"]
    assert root_of(legacy(tmp_path, state)) == root_of(save(state))


def by_hand(
    folder: Path,
    state: Opcodes,
    keys: object = ("0",),
    data: bytes = b"",
    *,
    facts: Opcodes = FACTS,
) -> Path:
    names = Opcodes(b"](" + b"".join(map(push, keys)) + b"e") if isinstance(keys, tuple) else keys
    pickles = [MAGIC_NUMBER, PROTOCOL_VERSION, facts, state, names]
    path = folder / "bad.pt"
    path.write_bytes(b"".join(map(pickled, pickles)) + data)
    return path


def stored(part: object = None, *, kind: str = "FloatStorage", elements: int = 4) -> Opcodes:
    identity = ("storage", name("torch", kind), "0", "cpu", elements, part)
    return Opcodes(push(identity) + b"Q")


FOUR = (4).to_bytes(8, "little") + b"0123456789abcdef"


def test_a_part_of_a_storage_is_read(tmp_path: Path) -> None:
    path = by_hand(tmp_path, stored(("1", 1, 2)), data=FOUR)
    assert leaves_of(path) == {"": ("F32", (2,))}
    assert root_of(path) != root_of(by_hand(tmp_path, stored(("1", 2, 2)), data=FOUR))


TWO_SIZES = Opcodes(push((stored(), stored(elements=3))))
TWO_VIEWS = Opcodes(push((stored(("1", 0, 2)), stored(("1", 2, 2)))))
VIEW_OF_ITSELF = stored(("0", 0, 2))
TWO_TYPES = Opcodes(push((stored(), stored(kind="IntStorage"))))


@pytest.mark.parametrize(
    ("state", "keys", "data", "told"),
    [
        (stored(), ("0",), FOUR[:-1], "is truncated or points past its own end"),
        (stored(), ("0",), b"", "is truncated or points past its own end"),
        (stored(), ("0",), FOUR + b"x", "has bytes after its last storage"),
        (stored(), ("0",), b"\xff" * 24, "elements, not the 4 that the state says"),
        (stored(), (), b"", "storage '0' is missing"),
        (stored(), ("0", "0"), FOUR * 2, "storage '0' is listed twice or never used"),
        (stored(), ("0", "1"), FOUR * 2, "storage '1' is listed twice or never used"),
        (stored(), push(5), b"", "its list of storages is invalid"),
        (stored(("1", 3, 2)), ("0",), FOUR, "a part of storage '0' reaches outside it"),
        (TWO_TYPES, ("0",), FOUR, "uses one storage under two types"),
        (TWO_SIZES, ("0",), FOUR, "gives storage '0' two sizes"),
        (TWO_VIEWS, ("0",), FOUR, "uses the key '1' for two storages"),
        (VIEW_OF_ITSELF, ("0",), FOUR, "uses the key '0' for two storages"),
    ],
)
def test_a_legacy_file_that_lies_is_refused(
    tmp_path: Path, state: Opcodes, keys: object, data: bytes, told: str
) -> None:
    with pytest.raises(EvidenceError) as caught:
        content_of(by_hand(tmp_path, state, keys, data))
    assert caught.value.message.startswith("bad.pt: ")
    assert told in caught.value.message


def test_a_legacy_file_has_no_room_for_anything_else(tmp_path: Path) -> None:
    more = Opcodes(FACTS + push("note") + push("x" * 300) + b"s")
    with pytest.raises(EvidenceError, match="notes more of the machine that wrote it than torch"):
        content_of(by_hand(tmp_path, stored(), data=FOUR, facts=more))


def test_a_legacy_file_that_is_a_tar_archive_too_is_refused(tmp_path: Path) -> None:
    """Torch would open the archive: its members are another state."""
    path = by_hand(tmp_path, push("0" * 600))
    head = bytearray(path.read_bytes())
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head[: tarfile.BLOCKSIZE])
    path.write_bytes(head)
    tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    with pytest.raises(EvidenceError, match="is a tar archive as well as a legacy torch file"):
        content_of(path)


def test_every_cut_of_a_legacy_file_is_refused(tmp_path: Path) -> None:
    path = legacy(tmp_path, {"w": WEIGHT})
    whole = path.read_bytes()
    for end in range(20, len(whole), 9):
        path.write_bytes(whole[:end])
        with pytest.raises(EvidenceError, match=r"legacy2.pt: "):
            content_of(path)


def test_a_big_endian_or_newer_file_is_refused(tmp_path: Path) -> None:
    whole = legacy(tmp_path, {"w": WEIGHT}).read_bytes()
    for old, new, told in (
        (b"little_endianq\x02\x88", b"little_endianq\x02\x89", "was written on a big-endian"),
        (b"little_endianq\x02\x88", b"little_endianq\x02N", "does not say in which byte order"),
        (b"little_endian", b"middle_endian", "does not say in which byte order it was written"),
        (b"\x80\x02M\xe9\x03.", b"\x80\x02M\xea\x03.", "is a legacy torch file of another version"),
    ):
        assert old in whole
        (tmp_path / "other.pt").write_bytes(whole.replace(old, new, 1))
        with pytest.raises(EvidenceError, match=told):
            content_of(tmp_path / "other.pt")
