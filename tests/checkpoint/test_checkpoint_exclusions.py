from __future__ import annotations

import pickle
from pathlib import Path

from checkpoint_digests import content_of
from each_row import each_row
from hostile_archives import archive, tensor

from gate.checkpoint.leaves import HeldBytes, Leaf, TensorLeaf, ValueLeaf
from gate.checkpoint.parts import MACHINE_PLACE, WALL_CLOCK, Exclusion, without_excluded

LEFT_OUT = {
    "best_model_path": "/mnt/a/last.ckpt",
    "dirpath": "/mnt/a",
    "data_dir": "/data",
    "resume_path": None,
    "log_paths": ["a", "b"],
    "save_dir": Path("/mnt/a"),
    "local_rank": 3,
    "train_time": 12.5,
    "time": "12:00",
    "timestamp": 1700000000,
    "train_samples_per_second": 99.5,
    "train_runtime": 3.5,
    "time_elapsed": 4.5,
    "pytorch-lightning_version": "2.6.0",
    "transformers_version": "5.0",
}
KEPT = {
    "timestep": 7,
    "drop_path": 0.1,
    "embed_time": True,
    "lead_time": 6,
    "max_time": 5,
    "segment_seconds": 2.0,
    "bidir": True,
    "conversion": "linear",
    "model_version": 2,
    "candidate": "x",
    "update": 1.5,
    "timesteps": [1.5],
    "datetimes": 2.5,
    "pathway": "x",
}


def left_out(folder: Path, state: object) -> set[str]:
    found = content_of(archive(folder, pickle.dumps(state, 4)))
    return {rule.pattern for rule in found.excluded}


@each_row(("key", "value"), LEFT_OUT.items(), ids=LEFT_OUT)
def test_places_and_times_are_left_out(tmp_path: Path, key: str, value: object) -> None:
    found = content_of(archive(tmp_path, pickle.dumps({key: value, "x": {key: value}}, 4)))
    assert found.leaves == ()
    assert found.excluded


@each_row(("key", "value"), KEPT.items(), ids=KEPT)
def test_numbers_that_matter_are_kept(tmp_path: Path, key: str, value: object) -> None:
    assert not left_out(tmp_path, {key: value, "x": {key: value}})


def test_a_tensor_is_never_left_out_by_default(tmp_path: Path) -> None:
    tensors = b"".join(f"X{chr(len(key))}\0\0\0{key}".encode() + tensor() for key in LEFT_OUT)
    path = archive(tmp_path, b"\x80\x02}(" + tensors + b"u.")
    assert len(content_of(path).leaves) == len(LEFT_OUT)


def test_what_is_left_out_is_told_with_its_reason(tmp_path: Path) -> None:
    state = {"a_path": "x", "b": {"a_path": "y"}, "a_time": 1.5}
    found = content_of(archive(tmp_path, pickle.dumps(state, 4)))
    told = {(rule.pattern, rule.reason, rule.leaves) for rule in found.excluded}
    assert told == {("**/*_path", MACHINE_PLACE, 2), ("**/*_time", WALL_CLOCK, 1)}


def test_a_rule_of_ones_own_takes_out_tensors_too() -> None:
    leaves: list[Leaf] = [
        TensorLeaf("/ab/c/d", "U8", (0,), HeldBytes(b"")),
        ValueLeaf("/ab/c/e", "int", b""),
        ValueLeaf("/b/c", "int", b""),
    ]
    kept, told = without_excluded(leaves, (Exclusion(pattern="/a*/**", reason="r"),))
    assert [leaf.path for leaf in kept] == ["/b/c"]
    assert [rule.leaves for rule in told] == [2]
