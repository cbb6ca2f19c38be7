"""The writer of the safetensors layout, checked by a reader of the tests' own."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from gate.checkpoint.leaves import ELEMENT_BYTES
from gate.harness.plain_tensors import SAFETENSORS_TYPES, byte_size, write_safetensors

if TYPE_CHECKING:
    from tests.harness.conftest import PlainTensor

    Reader = Callable[[Path], dict[str, PlainTensor]]


def write(path: Path, tensors: dict[str, torch.Tensor]) -> list[str]:
    problems: list[str] = []
    write_safetensors(path, tensors, problems.append)
    return problems


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", SAFETENSORS_TYPES, ids=str)
def test_every_type_is_written_bit_for_bit(
    tmp_path: Path, dtype: torch.dtype, read_state: Reader
) -> None:
    size = torch.empty((), dtype=dtype).element_size()
    data = bytes(value % 2 if dtype is torch.bool else value for value in range(3 * size))
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype)
    assert write(tmp_path / "x", {"a": tensor}) == []
    assert read_state(tmp_path / "x") == {"a": (SAFETENSORS_TYPES[dtype], (3,), data)}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_the_gate_reads_every_type_that_the_harness_writes() -> None:
    sizes = {
        name: byte_size(torch.empty(1, dtype=dtype)) for dtype, name in SAFETENSORS_TYPES.items()
    }
    assert sizes.items() <= ELEMENT_BYTES.items()


def test_no_tensor_at_all_is_a_file_too(tmp_path: Path, read_state: Reader) -> None:
    write(tmp_path / "x", {})
    assert read_state(tmp_path / "x") == {}


def test_the_data_begin_at_a_multiple_of_eight(tmp_path: Path) -> None:
    write(tmp_path / "x", {"name": torch.ones(1)})
    assert int.from_bytes((tmp_path / "x").read_bytes()[:8], "little") % 8 == 0


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.ones(2, 2).to_mkldnn(), "layout torch._mkldnn is not supported"),
        (torch.empty(2, device="meta"), "tensors without plain memory are not supported"),
    ],
)
def test_what_has_no_plain_memory_is_left_out(
    tmp_path: Path, tensor: torch.Tensor, reason: str
) -> None:
    problems = write(tmp_path / "x", {"odd": tensor, "plain": torch.ones(1)})
    assert problems == [f"odd is left out of the state: {reason}"]


def test_a_file_that_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(tmp_path / "x", {"a": torch.ones(4000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
