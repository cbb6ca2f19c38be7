"""What an attacker would write: each ends in its own error, within bounded memory."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from checkpoint_digests import content_of, leaves_of
from each_row import each_row
from harness_folder import safetensors_of
from hostile_archives import Opcodes, archive, call, name, pickled, push, storage, tensor

from gate.errors import EvidenceError

ROOT = Path(__file__).resolve().parents[2]
MAX_MEMORY_BYTES = 500 * 1024**2
MAX_PROCESSOR_SECONDS = 60


def refusal(path: Path) -> str:
    with pytest.raises(EvidenceError) as caught:
        content_of(path)
    assert caught.value.hint
    return caught.value.message


@each_row(
    ("opcodes", "told"),
    [
        (Opcodes(tensor() + b"}b"), "sets attributes of something that cannot have any"),
        (Opcodes(b"N\x85}b"), "sets attributes of something that cannot have any"),
        (Opcodes(name("m", "C") + b"}b"), "sets attributes of something that cannot have any"),
        (Opcodes(push("text") + b"}b"), "sets attributes of something that cannot have any"),
        (Opcodes(storage() + b"}b"), "sets attributes of something that cannot have any"),
        (Opcodes(b")Na"), "adds items to something that cannot hold any"),
        (Opcodes(b")(Ne"), "adds items to something that cannot hold any"),
        (Opcodes(tensor() + b"Na"), "adds items to something that cannot hold any"),
        (Opcodes(b"}(N\x90"), "adds items to something that cannot hold any"),
        (Opcodes(tensor() + b"NNs"), "sets keys in something that cannot have any"),
        (Opcodes(name("m", "C") + b"]R"), "makes a call whose arguments are not a tuple"),
        (Opcodes(push("a") + push("b") + b"\x81"), "makes a call whose arguments are not"),
        (Opcodes(b"K\x01" + push("C") + b"\x93"), "refers to a name that is not text"),
        (Opcodes(push("m") + b"K\x01\x93"), "refers to a name that is not text"),
        (Opcodes(b"K\x01Q"), "refers to an external object that is not a storage"),
        (
            Opcodes(push(("storage", name("torch", "FloatStorage"), "0", "cpu", 4, 5)) + b"Q"),
            "refers to an external object that is not a storage",
        ),
        (tensor(source=storage(key="99")), "storage '99' is missing"),
        (tensor(source=storage(elements=2**61)), "not the 2,305,843,009,213,693,952 elements"),
        (tensor(source=storage(elements=2**62)), "storage '0' has an invalid size"),
        (tensor(shape=(2,), strides=(2**61,)), "a tensor reaches outside its storage"),
        (tensor(shape=(2,), strides=(-(2**63),)), "a tensor's strides has a value that is not"),
        (tensor(offset=2**63), "a tensor's offset, shape and strides do not match"),
        (tensor(offset=2**61, shape=(1,)), "a tensor reaches outside its storage"),
        (tensor(shape=(2**40, 2**40), strides=(0, 0)), "an expanded or strided tensor is too"),
        (call(name("torch._utils", "_rebuild_tensor_v2"), storage()), "from something that is no"),
        (call(name("torch._utils", "_rebuild_tensor_v3"), storage()), "a tensor of an unknown"),
        (Opcodes(b"}q\x00" + push("x") + b"h\x00s"), "nested deeper than 200 levels, or contains"),
        (call(name("runpy", "run_path"), "x"), "calls 'runpy.run_path' when it is loaded"),
        (call(name("nt", "system"), "x"), "calls 'nt.system' when it is loaded"),
        (call(name("__builtin__", "eval"), "x"), "calls 'builtins.eval' when it is loaded"),
    ],
)
def test_a_trick_is_refused(tmp_path: Path, opcodes: Opcodes, told: str) -> None:
    assert told in refusal(archive(tmp_path, pickled(opcodes)))


def test_what_is_called_like_a_function_is_only_kept(tmp_path: Path) -> None:
    data = pickled(Opcodes(tensor() + push((1,)) + b"R"))
    assert leaves_of(archive(tmp_path, data)) == {
        "": ("object", None),
        "/~arguments[0]": ("F32", (4,)),
        "/~arguments[1]": ("int", None),
    }


def test_names_that_climb_are_only_names(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef")
    climbing = pickled(tensor(source=storage(key="../../secret")))
    assert refusal(archive(tmp_path, climbing)) == "bad.pt: storage '../../secret' is missing"
    for name_of_it in ("../secret", "/etc/x", "bad/data/../../secret"):
        path = archive(tmp_path, climbing, {name_of_it: b"0" * 16})
        told = f"bad.pt: zip entry '{name_of_it}' is nothing that torch.save writes"
        assert refusal(path) == told


@pytest.mark.parametrize("shown", ["pipe", "folder", "link"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, shown: str) -> None:
    path = tmp_path / shown
    if shown == "pipe":
        os.mkfifo(path)
    elif shown == "folder":
        path.mkdir()
    else:
        path.symlink_to(path)
    assert shown in refusal(path)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"start": 2**63}, "is truncated or points past its own end"),
        ({"start": 0}, "contradict each other"),
        ({"magic": b"XXXX"}, "contradict each other"),
    ],
)
def test_a_locator_that_lies_is_refused(
    tmp_path: Path, record: dict[str, object], told: str
) -> None:
    path = archive(tmp_path, pickled(tensor()))
    content = path.read_bytes()
    end = content.rindex(b"PK\x05\x06")
    fields = struct.pack(
        "<4sQ2H2I4Q", record.get("magic", b"PK\x06\x06"), 44, 45, 45, 0, 0, *[0] * 4
    )
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, record.get("start", end), 1)
    path.write_bytes(content[:end] + fields + locator + content[end:])
    assert told in refusal(path)


def test_two_names_for_the_same_bytes_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path, pickled(tensor()))
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as whole:
        places = [info.header_offset for info in whole.infolist()]
    central = content.rindex(b"PK\x01\x02")
    content[central + 42 : central + 46] = struct.pack("<I", places[0])
    path.write_bytes(content)
    assert "its two headers contradict each other" in refusal(path)


@each_row(
    ("entry", "told"),
    [
        ({"dtype": "U8", "shape": [2**62, 2**62], "data_offsets": [0, 4]}, "4 bytes do not fit"),
        ({"dtype": "U8", "shape": [1] * 65, "data_offsets": [0, 1]}, "must be sizes from 0"),
        ({"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}, "must be sizes from 0"),
        ({"dtype": "U8", "shape": [1.0], "data_offsets": [0, 1]}, "must be sizes from 0"),
        ({"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 8]}, "needs dtype, shape and"),
        ({"dtype": "U8", "shape": [2**70], "data_offsets": [0, 2**70]}, "must be sizes from 0"),
        ({"dtype": ["U8"], "shape": [4], "data_offsets": [0, 4]}, "needs dtype, shape and"),
        ({"dtype": "U8", "shape": [0, 2**63], "data_offsets": [0, 0]}, "must be sizes from 0"),
    ],
)
def test_a_safetensors_entry_that_lies_is_refused(tmp_path: Path, entry: object, told: str) -> None:
    path = tmp_path / "lies.safetensors"
    path.write_bytes(safetensors_of({"a": entry}, b"1234"))
    assert told in refusal(path)


BOMBS = {
    "containers": (b"}" * 5_000_000, "creates more than 1,500,000 lists, maps and objects"),
    "objects": (b"cm\nC\n)" + b"\x81)" * 2_000_000, "creates more than 1,500,000 lists, maps"),
    "groups": (b"(" * 2_000_000, "ends with unused values"),
    "opcodes": (b"N0" * 3_000_000 + b"N", "has more than 5,000,000 opcodes"),
    "members": (b"](" + b"K\x01" * 2_000_000 + b"e", "holds more than 1,000,000 values"),
    "one text in many places": (
        b"](" + push("v" * 10_000_000) + b"q\0" + b"h\0" * 500_000 + b"e",
        "holds more than 134,217,728 bytes of texts and numbers",
    ),
    "one number in many places": (
        b"](\x8b" + struct.pack("<I", 10_000_000) + b"\x7f" * 10_000_000 + b"q\0" + b"h\0" * 500_000
        + b"e",
        "holds more than 134,217,728 bytes of texts and numbers",
    ),
    "long paths": (
        b"}" + push("k" * 890) + b"(" + b"K\1" * 900_000 + b"ts",
        "has paths of more than 67,108,864 characters together",
    ),
    "sets of sets": (
        b"(" * 8 + b"".join(push(str(number)) for number in range(150_000)) + b"\x91" * 8,
        "holds more than 1,000,000 values",
    ),
    "deep nesting": (b"N" + b"\x85" * 1_000_000, "nested deeper than 200 levels"),
}  # fmt: skip


SLOW = {"containers", "objects", "sets of sets"}


@pytest.mark.parametrize(
    ("opcodes", "told"),
    [
        pytest.param(*bomb, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, bomb in BOMBS.items()
    ],
)
def test_a_bomb_is_refused_in_bounded_memory(tmp_path: Path, opcodes: bytes, told: str) -> None:
    """In a process of its own, which may not have more memory than a gate would spare."""
    path = archive(tmp_path, b"\x80\x04" + opcodes + b".")
    done = bounded(path)
    assert json.loads(done.stdout)["message"].startswith("bad.pt: ")
    assert told in json.loads(done.stdout)["message"]


def bounded(path: Path) -> subprocess.CompletedProcess[str]:
    script = (
        "import json, sys; from pathlib import Path; from checkpoint_digests import content_of\n"
        "from gate.errors import EvidenceError\n"
        "try: content_of(Path(sys.argv[1]))\n"
        "except EvidenceError as error: print(json.dumps({'message': error.message}))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}"},
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=True,
    )


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_PROCESSOR_SECONDS, MAX_PROCESSOR_SECONDS))
