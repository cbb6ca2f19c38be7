from __future__ import annotations

import json
import os
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_digests import content_of, digests_of, leaves_of, root_of, small_tensor
from distributed_states import saved
from harness_folder import safetensors_bytes
from sharded_states import sharded, whole
from torch_states import WEIGHT, Save, row_major

from gate.checkpoint import untrusted_files
from gate.checkpoint.digest import StateDigest, digest_state
from gate.checkpoint.formats import formats
from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.formats.formats import open_state
from gate.errors import EvidenceError
from gate.system.files.files import LocalFiles

pytestmark = pytest.mark.torch


def by_bytes(path: Path) -> StateDigest:
    unknown = UnknownContent.BYTES
    with open_state(LocalFiles(), path, path.name, max_bytes=2**30, unknown=unknown) as content:
        return digest_state(content)


class Arguments:
    """Stands for the arguments that a trainer pickles."""

    def __init__(self, folder: str, rate: float) -> None:
        self.output_dir = folder
        self.learning_rate = rate


def trainer(folder: Path, name: str = "checkpoint-3", rate: float = 0.1) -> Path:
    """What Hugging Face's trainer leaves, file by file, with other places for another name."""
    path = folder / name
    path.mkdir()
    model = {"w": ("F32", [3, 4], row_major(WEIGHT))}
    (path / "model.safetensors").write_bytes(safetensors_bytes(model))
    torch.manual_seed(0)
    moments = {0: {"step": torch.tensor(3.0), "exp_avg": WEIGHT * 2}}
    torch.save({"state": moments, "param_groups": [{"lr": rate}]}, path / "optimizer.pt")
    torch.save({"last_epoch": 3, "_step_count": 4}, path / "scheduler.pt")
    rng = {
        "python": random.Random(0).getstate(),  # noqa: S311 - what a trainer saves
        "numpy": np.random.RandomState(0).get_state(),
        "cpu": torch.get_rng_state(),
    }
    torch.save(rng, path / "rng_state.pth")
    torch.save(Arguments(str(path), rate), path / "training_args.bin")
    log = [{"step": 3, "loss": 0.5}, {"step": 3, "train_runtime": len(name) / 7}]
    state = {"global_step": 3, "log_history": log, "best_model_checkpoint": str(path)}
    (path / "trainer_state.json").write_text(json.dumps(state))
    (path / "config.json").write_text('{"hidden_size": 4, "transformers_version": "4.1"}')
    (path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    (path / "tokenizer.model").write_bytes(b"\x0a\x0bpieces")
    (path / "merges.txt").write_text("a b\n")
    (path / "runs").mkdir()
    (path / "runs" / f"events.out.tfevents.{len(name)}.{name}.7.0").write_bytes(
        b"\0" + name.encode()
    )
    return path


def test_a_trainer_folder_is_a_map_of_its_files(tmp_path: Path) -> None:
    found = by_bytes(trainer(tmp_path))
    assert found.format == "Hugging Face trainer folder"
    parts = {leaf.path: leaf.part for leaf in found.leaves}
    assert parts["/model/w"] == "model"
    assert parts["/optimizer/state{0}/exp_avg"] == "optimizer"
    assert parts["/rng_state/numpy[1]"] == "random"
    assert parts["/scheduler/last_epoch"] == "other"
    assert parts["/training_args/~states[0]/learning_rate"] == "other"
    assert {"/tokenizer.json/model/vocab/a", "/tokenizer.model", "/merges"} <= set(parts)
    assert parts["/merges"] == parts["/tokenizer.model"] == "other"
    told = "its format is unknown, so its bytes were compared as they are"
    assert found.notes[0] == f"merges.txt: {told}"
    assert found.notes[-2] == f"tokenizer.model: {told}"
    assert found.notes[-1] == "loading it runs code of 'test_checkpoint_folder.Arguments'"


def test_places_and_times_of_a_trainer_do_not_count(tmp_path: Path) -> None:
    one, two = trainer(tmp_path, "one"), trainer(tmp_path, "two")
    assert by_bytes(one).roots == by_bytes(two).roots
    assert {rule.pattern for rule in by_bytes(one).excluded} >= {"**/*_dir", "**/*_runtime"}
    assert by_bytes(trainer(tmp_path, "three", rate=0.2)).roots != by_bytes(one).roots


def test_weights_are_the_model_in_every_form(tmp_path: Path) -> None:
    one, two, three = (trainer(tmp_path, name) for name in ("one", "two", "three"))
    (two / "model.safetensors").unlink()
    torch.save({"w": WEIGHT}, two / "pytorch_model.bin")
    (three / "model.safetensors").unlink()
    torch.save({"w": WEIGHT}, three / "pytorch_model-00001-of-00001.bin")
    places = {"weight_map": {"w": "pytorch_model-00001-of-00001.bin"}}
    (three / "pytorch_model.bin.index.json").write_text(json.dumps(places))
    assert by_bytes(one).roots == by_bytes(two).roots == by_bytes(three).roots


def test_two_files_with_weights_are_told_apart(tmp_path: Path) -> None:
    folder = trainer(tmp_path)
    torch.save({"w": WEIGHT}, folder / "pytorch_model.bin")
    paths = {leaf.path for leaf in by_bytes(folder).leaves}
    assert {"/model/w", "/pytorch_model/w"} <= paths


def test_shards_beside_other_files_are_the_model(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    (folder / "config.json").write_text('{"a": 1}')
    expected = {f"/model{path}": digest for path, digest in digests_of(whole(tmp_path)).items()}
    found = digests_of(folder)
    del found["/config/a"]
    assert found == expected


def test_weights_alone_are_the_same_as_their_file(save: Save, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    torch.save({"w": WEIGHT}, tmp_path / "alone" / "pytorch_model.bin")
    assert root_of(tmp_path / "alone") == root_of(save({"w": WEIGHT}))


def test_folders_in_folders_are_maps_in_maps(save: Save, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    (outer / "a" / "b").mkdir(parents=True)
    (outer / "a" / "b" / "n.json").write_text("[1]")
    np.save(outer / "x.npy", WEIGHT.numpy())
    saved(outer, {"v": WEIGHT}, "fsdp")
    expected = {"a": {"b": {"n": [1]}}, "x": WEIGHT, "fsdp": {"v": WEIGHT}}
    assert root_of(outer) == root_of(save(expected))


def test_unknown_files_are_refused_without_the_policy(tmp_path: Path) -> None:
    folder = trainer(tmp_path)
    with pytest.raises(EvidenceError, match=r"checkpoint-3/merges.txt: has an unknown format"):
        content_of(folder)


def test_a_script_is_refused_or_compared_by_its_bytes(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "script.pt", "w") as archive:
        archive.writestr("script/data.pkl", b"")
        archive.writestr("script/constants.pkl", b"")
    with pytest.raises(EvidenceError, match=r"script.pt: is a TorchScript archive, not a state"):
        content_of(tmp_path / "script.pt")
    assert by_bytes(tmp_path / "script.pt").notes[0].startswith("is a TorchScript archive")


def test_lightning_checkpoints_lose_their_places(save: Save) -> None:
    def lightning(folder: str, score: float) -> dict[str, object]:
        best = f"{folder}/epoch=0.ckpt"
        callback = {
            "monitor": "loss", "best_model_score": torch.tensor(score), "dirpath": folder,
            "best_model_path": best, "best_k_models": {best: torch.tensor(score)},
            "last_model_path": best, "kth_value": torch.tensor(score),
        }  # fmt: skip
        return {
            "epoch": 1, "global_step": 3, "pytorch-lightning_version": "2.5",
            "state_dict": {"layer.w": WEIGHT}, "optimizer_states": [{"state": {}}],
            "callbacks": {"ModelCheckpoint{'monitor': 'loss'}": callback},
            "hyper_parameters": {"lr": 0.1},
        }  # fmt: skip

    one = root_of(save(lightning("/home/a", 0.5), "a.ckpt"))
    assert one == root_of(save(lightning("/srv/b", 0.5), "b.ckpt"))
    assert one != root_of(save(lightning("/home/a", 0.25), "c.ckpt"))
    found = digests_of(save(lightning("/home/a", 0.5), "d.ckpt"))
    assert found["/state_dict/layer.w"] == small_tensor("F32", (3, 4), row_major(WEIGHT))


def refusal(folder: Path) -> str:
    with pytest.raises(EvidenceError) as caught:
        content_of(folder)
    return caught.value.message


def test_links_and_pipes_are_never_followed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "f", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "secret.json").write_text("[1]")
    (folder / "x").symlink_to(outside)
    assert refusal(folder).startswith("f/x: cannot be read: ")
    assert "is a link, not a regular file" in refusal(folder)
    (folder / "x").unlink()
    os.mkfifo(folder / "x")
    assert "is a FIFO, not a regular file" in refusal(folder)
    (tmp_path / "link").symlink_to(outside)
    assert "is a link, not a regular file" in refusal(tmp_path / "link")


def test_empty_deep_and_large_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "f"
    (folder / "a").mkdir(parents=True)
    assert refusal(folder) == "f/a: is an empty folder"
    for number in range(3):
        (folder / "a" / f"{number}.json").write_text("[1]")
    assert len(leaves_of(folder)) == 3
    monkeypatch.setattr(formats, "MAX_VISITS", 2)
    assert refusal(folder) == "f/a: holds more than 2 values"
    monkeypatch.undo()
    monkeypatch.setattr(formats, "MAX_DEPTH", 0)
    assert refusal(folder) == "f/a: is nested deeper than 0 folders"
    monkeypatch.undo()
    monkeypatch.setattr(untrusted_files, "MAX_OPEN_FILES", 2)
    assert refusal(folder) == "f/a: has more than 2 files"
    monkeypatch.setattr(untrusted_files, "MAX_NAMES", 2)
    assert "has more than 2 entries" in refusal(folder)


def test_files_together_are_bounded(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "f").mkdir(exist_ok=True)
        (tmp_path / "f" / f"{name}.json").write_text("[" + "1," * 50 + "1]")
    with (
        pytest.raises(EvidenceError, match=r"f/b.json: cannot be read: .* is larger than"),
        open_state(LocalFiles(), tmp_path / "f", "f", max_bytes=150),
    ):
        pass


def test_names_that_are_not_printable_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a\x1b.json").write_text("[]")
    assert refusal(tmp_path / "f") == r"f: the name 'a\x1b.json' is too long or not printable"


def test_stems_and_names_cannot_be_confused(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    for name in ("a.json", "a.txt", "a.json.txt"):
        (tmp_path / "f" / name).write_text("[1]")
    assert refusal(tmp_path / "f") == "f: two of its files would both be 'a.json'"


def test_paths_of_names_and_keys_together_are_bounded(tmp_path: Path) -> None:
    inner = tmp_path / "f" / ("n" * 200)
    inner.mkdir(parents=True)
    (inner / "a.json").write_text('{"' + "k" * 800 + '": 1}')
    assert "is above 900 characters or not printable" in refusal(tmp_path / "f")
    other = saved(tmp_path, {"a\x1b": WEIGHT})
    assert "is above 900 characters or not printable" in refusal(other)
