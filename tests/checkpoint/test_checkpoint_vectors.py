"""Holds the program and the committed files of `tests/vectors` together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoint_digests import content_of
from each_row import each_row

from gate.checkpoint.tensor_hashing import ALGORITHM

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "vectors"
DOCUMENT = json.loads((FOLDER / "vectors.json").read_text("ascii"))
VECTORS = {vector["file"]: vector for vector in DOCUMENT["vectors"]}
MAX_BYTES = 200_000


@each_row("vector", VECTORS.values(), ids=VECTORS)
def test_every_vector_has_its_digests(vector: dict[str, Any]) -> None:
    found = content_of(FOLDER / vector["file"])
    leaves = {leaf.path: {"part": leaf.part, "leaf": leaf.digest.hex()} for leaf in found.leaves}
    assert leaves == vector["leaves"]
    assert {**found.roots.parts, "whole": found.roots.whole} == vector["roots"]


def test_the_vectors_are_of_this_algorithm() -> None:
    assert (DOCUMENT["algorithm"], DOCUMENT["hash"]) == (ALGORITHM, "sha256")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("values.pt", "values-protocol-4.pt"),
        ("dtypes.pt", "dtypes.safetensors"),
        ("layouts.pt", "layouts.safetensors"),
        ("training.pt", "training-reversed.pt"),
    ],
)
def test_one_state_in_two_files_has_one_root(one: str, other: str) -> None:
    assert VECTORS[one]["roots"] == VECTORS[other]["roots"]


def test_the_vectors_are_small_and_none_is_forgotten() -> None:
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir() if path.is_file()}
    assert set(files) == {*VECTORS, "vectors.json", "make.py"}
    assert sum(files.values()) < MAX_BYTES


@pytest.mark.torch
def test_the_script_makes_the_same_vectors(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, str(FOLDER / "make.py"), str(tmp_path)],
        check=True,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}"},
    )
    assert json.loads((tmp_path / "vectors.json").read_text("ascii")) == DOCUMENT
    for file, vector in VECTORS.items():
        assert content_of(tmp_path / file).roots.whole == vector["roots"]["whole"]
