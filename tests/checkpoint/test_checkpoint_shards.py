from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_digests import content_of, root_of
from each_row import each_row
from harness_folder import safetensors_bytes
from sharded_states import FIRST, INDEX, SECOND, TENSORS, index, sharded, whole

from gate.errors import EvidenceError


def test_shards_have_the_root_of_one_file(tmp_path: Path) -> None:
    folder, expected = sharded(tmp_path), root_of(whole(tmp_path))
    assert root_of(folder) == expected
    assert root_of(folder / INDEX) == expected
    assert content_of(folder).format == "safetensors in shards"


def test_another_layout_of_shards_has_the_same_root(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    (folder / FIRST).write_bytes(safetensors_bytes({k: TENSORS[k] for k in ("a.w", "b")}))
    (folder / SECOND).write_bytes(safetensors_bytes({"c": TENSORS["c"]}))
    index(folder, {"a.w": FIRST, "b": FIRST, "c": SECOND})
    assert root_of(folder) == root_of(whole(tmp_path))


def test_an_index_of_another_name_is_known_by_its_content(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    (folder / INDEX).rename(folder / "places.txt")
    assert root_of(folder / "places.txt") == root_of(whole(tmp_path))


def link(folder: Path) -> None:
    (folder / SECOND).rename(folder.parent / "outside")
    (folder / SECOND).symlink_to(folder.parent / "outside")


def pipe(folder: Path) -> None:
    (folder / SECOND).unlink()
    os.mkfifo(folder / SECOND)


def both(folder: Path) -> None:
    (folder / FIRST).write_bytes(safetensors_bytes({k: TENSORS[k] for k in ("a.w", "b")}))


def old(folder: Path) -> None:
    (folder / "model-00003-of-00003.safetensors").write_bytes(b"")


PLACES = {"a.w": FIRST, "b": SECOND, "c": SECOND}
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda folder: (folder / SECOND).unlink(), f"shard '{SECOND}' is missing, which"),
    "left over": (old, "holds the shard 'model-00003-of-00003.safetensors', which no index names"),
    "lost": (lambda folder: index(folder, {**PLACES, "d": FIRST}), "'/d' is missing, although"),
    "unnamed": (
        lambda folder: index(folder, {"a.w": FIRST, "b": SECOND}),
        "'/c' is in this shard, but not according to the index",
    ),
    "twice": (both, "'/b' is in this shard, but not according to the index"),
    "up": (lambda folder: index(folder, {"b": "../x"}), "points to '../x', which is not a file in"),
    "dots": (lambda folder: index(folder, {"b": ".."}), "points to '..', which is not a file in"),
    "root": (lambda folder: index(folder, {"b": "/etc/x"}), "points to '/etc/x', which is no"),
    "number": (lambda folder: index(folder, {"b": 5}), "has a value that is not a name"),
    "empty": (lambda folder: index(folder, {}), "its weight_map is empty"),
    "cut": (lambda folder: os.truncate(folder / SECOND, 40), "is truncated or points past"),
    "text": (
        lambda folder: (folder / SECOND).write_bytes(b"text"), "has an unknown format",
    ),
    "link": (link, "is a link, not a regular file"),
    "pipe": (pipe, "is a FIFO, not a regular file"),
}  # fmt: skip


@each_row("defect", BROKEN)
@each_row("name", ["shards", f"shards/{INDEX}"])
def test_broken_shards_are_refused(tmp_path: Path, defect: str, name: str) -> None:
    breaks, told = BROKEN[defect]
    breaks(sharded(tmp_path))
    with pytest.raises(EvidenceError) as caught:
        content_of(tmp_path / name)
    assert told in caught.value.message
    assert caught.value.hint


def test_an_index_that_names_a_key_twice_is_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    (folder / INDEX).write_text(f'{{"weight_map": {{"b": "{FIRST}", "b": "{SECOND}"}}}}')
    with pytest.raises(EvidenceError, match="key 'b' is given twice"):
        content_of(folder)
