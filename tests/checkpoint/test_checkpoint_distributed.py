from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_digests import content_of, leaves_of, root_of
from distributed_states import altered, in_chunks, saved
from hypothesis import given
from hypothesis import strategies as st
from torch_states import WEIGHT, Save

from gate.checkpoint.formats import distributed, tensor_sources
from gate.checkpoint.formats.tensor_sources import Box, assembled
from gate.checkpoint.leaves import HeldBytes
from gate.errors import EvidenceError

pytestmark = pytest.mark.torch
Boxes = list[tuple[tuple[int, ...], tuple[int, ...]]]
HALVES: Boxes = [((0, 0), (1, 4)), ((1, 0), (2, 4))]


def state() -> dict[str, object]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return {
        "model": model.state_dict(),
        "optimizer": {"param_groups": [{"lr": 0.1, "params": [0, 1], "betas": (0.9, 0.99)}]},
        "list": [WEIGHT, 5, {"deep": [WEIGHT.t(), None]}],
        "epoch": 3,
        "dtypes": {"b": torch.ones(2, dtype=torch.bfloat16), "s": torch.tensor(1.5)},
        "a/b.c": {"rng": torch.get_rng_state()},
        "empty": torch.zeros(0, 4),
    }


def test_a_folder_has_the_root_of_one_file(save: Save, tmp_path: Path) -> None:
    one = saved(tmp_path, state())
    assert root_of(one) == root_of(save(state()))
    assert root_of(saved(tmp_path, state(), "elsewhere")) == root_of(one)
    assert content_of(one).format == "distributed checkpoint"


def test_a_folder_beside_other_files_is_read_with_them(save: Save, tmp_path: Path) -> None:
    folder = saved(tmp_path, {"w": WEIGHT})
    (folder / "common.json").write_text('{"iteration": 7}')
    assert root_of(folder) == root_of(save({"w": WEIGHT, "common": {"iteration": 7}}))


def grid(shape: tuple[int, ...], cuts: list[list[int]]) -> Boxes:
    axes = [list(pairwise([0, *inner, whole])) for inner, whole in zip(cuts, shape, strict=True)]
    return [(tuple(a for a, _ in cell), tuple(b - a for a, b in cell)) for cell in product(*axes)]


@pytest.mark.parametrize(
    ("shape", "cuts"),
    [
        ((12,), [[5]]),
        ((4, 6), [[1, 3], []]),
        ((4, 6), [[], [1, 2]]),
        ((4, 6), [[2], [5]]),
        ((3, 4, 5), [[1], [1, 2], []]),
        ((3, 4, 5), [[], [2], [3]]),
        ((3, 4, 5), [[2], [], [1]]),
        ((2, 3, 2, 5), [[1], [2], [1], [4]]),
        ((900, 700), [[300], [5, 600]]),
        ((2, 600_000), [[], [100_000]]),
    ],
)
def test_chunks_are_put_together(
    save: Save, tmp_path: Path, shape: tuple[int, ...], cuts: list[list[int]]
) -> None:
    tensor = torch.randn(shape)
    assert root_of(in_chunks(tmp_path, tensor, grid(shape, cuts))) == root_of(save({"w": tensor}))


@st.composite
def grids(draw: st.DrawFn) -> tuple[tuple[int, ...], list[list[int]]]:
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    return tuple(shape), [
        sorted(draw(st.sets(st.integers(1, size - 1)))) if size > 1 else [] for size in shape
    ]


def held_box(tensor: torch.Tensor, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Box:
    part = tensor[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))]
    return Box(offsets, sizes, HeldBytes(part.contiguous().numpy().tobytes()))


@given(cut=grids(), size=st.integers(1, 64))
def test_any_grid_is_put_together_at_any_size_of_piece(
    cut: tuple[tuple[int, ...], list[list[int]]], size: int
) -> None:
    shape, cuts = cut
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).reshape(shape)
    boxes = [held_box(tensor, *box) for box in grid(shape, cuts)]
    source = assembled(shape, 4, boxes)
    assert b"".join(map(bytes, source.pieces(size))) == tensor.numpy().tobytes()


def test_boxes_that_are_no_grid_are_put_together(save: Save, tmp_path: Path) -> None:
    boxes: Boxes = [((0, 0), (1, 4)), ((1, 0), (2, 1)), ((1, 1), (1, 3)), ((2, 1), (1, 3))]
    assert root_of(in_chunks(tmp_path, WEIGHT, boxes)) == root_of(save({"w": WEIGHT}))


def test_strided_chunks_are_put_together(save: Save, tmp_path: Path) -> None:
    folder = in_chunks(tmp_path, WEIGHT, HALVES)
    part = save(WEIGHT[1:].t().contiguous().t()).read_bytes()
    (folder / "__1_0.distcp").write_bytes(part)

    def move(told: Any) -> None:  # noqa: ANN401 - the real metadata, as in all changes below
        info = next(info for info in told.storage_data.values() if info.relative_path[2] == "1")
        info.offset, info.length = 0, len(part)

    assert root_of(altered(folder, move)) == root_of(save({"w": WEIGHT}))


def told(folder: Path) -> str:
    with pytest.raises(EvidenceError) as caught:
        content_of(folder)
    assert caught.value.exit_code == 3
    return caught.value.message


@pytest.mark.parametrize(
    ("boxes", "problem"),
    [
        ([((0, 0), (2, 4)), ((1, 0), (2, 4))], "holds a tensor whose chunks overlap"),
        ([((0, 0), (1, 4)), ((2, 0), (1, 4))], "holds a tensor whose chunks leave a hole"),
        ([((0, 0), (3, 3))], "holds a tensor whose chunks leave a hole"),
    ],
)
def test_holes_and_overlaps_are_refused(tmp_path: Path, boxes: Boxes, problem: str) -> None:
    assert told(in_chunks(tmp_path, WEIGHT, boxes)) == f"dcp/.metadata: '/w': {problem}"


def test_too_many_cells_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_sources, "MAX_CELLS", 1)
    problem = "holds a tensor in too many chunks of irregular shapes"
    assert problem in told(in_chunks(tmp_path, WEIGHT, HALVES))


def test_missing_and_extra_shards_are_refused(tmp_path: Path) -> None:
    folder = in_chunks(tmp_path, WEIGHT, HALVES)
    (folder / "__9_0.distcp").write_bytes(b"")
    assert told(folder) == "dcp: holds the shard '__9_0.distcp', which .metadata does not name"
    (folder / "__9_0.distcp").unlink()
    (folder / "__1_0.distcp").unlink()
    assert told(folder) == "dcp: shard '__1_0.distcp' is missing, which .metadata names"


def test_too_many_values_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "MAX_VISITS", 1)
    folder = saved(tmp_path, {"a": WEIGHT, "b": WEIGHT})
    assert told(folder) == "dcp: holds more than 1 values"


def test_links_and_pipes_are_refused(tmp_path: Path) -> None:
    folder = in_chunks(tmp_path, WEIGHT, HALVES)
    shard = folder / "__1_0.distcp"
    shard.rename(tmp_path / "outside")
    shard.symlink_to(tmp_path / "outside")
    assert "is a link, not a regular file" in told(folder)
    shard.unlink()
    os.mkfifo(shard)
    assert "is a FIFO, not a regular file" in told(folder)


def _info(change: dict[str, object]) -> Callable[[Any], None]:
    def apply(metadata: Any) -> None:  # noqa: ANN401 - as above
        info = next(iter(metadata.storage_data.values()))
        for name, value in change.items():
            setattr(info, name, value)

    return apply


def _set(name: str, value: object) -> Callable[[Any], None]:
    return lambda metadata: setattr(metadata, name, value)


def _tensor(name: str, value: object) -> Callable[[Any], None]:
    return lambda metadata: setattr(metadata.state_dict_metadata["w"], name, value)


def _chunk(name: str, value: object) -> Callable[[Any], None]:
    return lambda metadata: setattr(metadata.state_dict_metadata["w"].chunks[0], name, value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_info({"relative_path": "../outside"}), "points to '../outside', which is not a file in"),
        (
            _info({"relative_path": "/etc/passwd"}),
            ("points to '/etc/passwd', which is not a file in"),
        ),
        (_info({"relative_path": ".."}), "points to '..', which is not a file in its folder"),
        (_info({"relative_path": 5}), "does not place 'w'"),
        (_info({"offset": -1}), "places 'w' at an invalid range"),
        (_info({"offset": 2**63}), "places 'w' at an invalid range"),
        (_info({"length": 2**40}), "is truncated or points past its own end"),
        (_info({"length": 10}), "is truncated or points past its own end"),
        (_info({"offset": 0}), "zip"),
        (_info({"relative_path": "__1_0.distcp"}), "overlapping entries in '__1_0.distcp'"),
        (_info({"transform_descriptors": ["zstd"]}), "'w' was transformed when it was written"),
        (_set("storage_data", {}), "a chunk of 'w' is not placed"),
        (_set("storage_data", None), "its storage_data is not a map"),
        (_set("storage_data", {"w": 1}), "lacks a MetadataIndex where one is expected"),
        (_set("state_dict_metadata", {}), "places 'w', which is not part of the state"),
        (
            _set("state_dict_metadata", {"w": 5}),
            ("lacks a TensorStorageMetadata where one is expected"),
        ),
        (_set("state_dict_metadata", {7: 5}), "a key that is not text or occurs twice"),
        (_set("planner_data", {"w": (1.5,)}), "a key that is neither text nor a position"),
        (_set("planner_data", {"w": ()}), "'w' has invalid keys"),
        (_set("planner_data", {"w": ("v",)}), "'w' has the keys of another name"),
        (_set("planner_data", {"w": ("w", 0)}), "'w' has the keys of another name"),
        (_set("storage_meta", Fraction(1)), "uses 'fractions.Fraction' when it is loaded"),
        (_set("version", Fraction), "uses 'fractions.Fraction' when it is loaded"),
        (_tensor("chunks", []), "tensor 'w' has no list of chunks"),
        (_tensor("chunks", [5]), "lacks a ChunkStorageMetadata where one is expected"),
        (_tensor("size", torch.Size([2, 4])), "a chunk of 'w' reaches outside its tensor"),
        (_tensor("size", torch.Size([3])), "a chunk of 'w' reaches outside its tensor"),
        (_tensor("size", (-1, 4)), "tensor 'w' has invalid offsets or sizes"),
        (_tensor("size", torch.Size([4, 4])), "chunks leave a hole"),
        (_tensor("size", torch.Size([2**61, 4])), "chunks leave a hole"),
        (_tensor("properties", None), "tensor 'w' has an unknown dtype"),
        (_chunk("sizes", torch.Size([1, 3])), "does not hold the F32 chunk of '/w'"),
        (_chunk("offsets", torch.Size([0, 1])), "reaches outside its tensor"),
    ],
)
def test_metadata_that_lies_is_refused(
    tmp_path: Path, change: Callable[[Any], None], problem: str
) -> None:
    folder = altered(in_chunks(tmp_path, WEIGHT, HALVES), change)
    assert problem in told(folder)


def test_another_dtype_than_told_is_refused(tmp_path: Path) -> None:
    def lie(metadata: Any) -> None:  # noqa: ANN401 - as above
        metadata.state_dict_metadata["w"].properties.dtype = torch.int32

    folder = altered(in_chunks(tmp_path, WEIGHT, HALVES), lie)
    assert "does not hold the I32 chunk of '/w'" in told(folder)


def test_metadata_that_is_something_else_is_refused(tmp_path: Path) -> None:
    folder = in_chunks(tmp_path, WEIGHT, HALVES)
    for content, problem in (
        (b"", "is not a pickle of protocol 2 to 5"),
        (b"\x80\x02}.", "lacks a Metadata where one is expected"),
        (b"\x80\x02cos\nsystem\nX\x01\0\0\0x\x85R.", "calls 'os.system' when it is loaded"),
    ):
        (folder / ".metadata").write_bytes(content)
        assert told(folder).startswith("dcp/.metadata: ")
        assert problem in told(folder)


def test_the_first_element_that_changes_gives_another_root(tmp_path: Path) -> None:
    one = root_of(in_chunks(tmp_path, WEIGHT, HALVES, "one"))
    other = WEIGHT.clone()
    other[2, 3] += 1
    assert root_of(in_chunks(tmp_path, other, HALVES, "two")) != one
    assert leaves_of(tmp_path / "two") == {"/w": ("F32", (3, 4))}
