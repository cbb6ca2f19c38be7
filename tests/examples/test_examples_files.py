"""The examples: ordinary scripts, readable settings, data whose origin is told and true."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
from pathlib import Path

import pytest
from each_row import each_row

from gate.settings.gate_settings import GateSettings
from gate.settings.load import parse_settings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/train.py"))
DATA = sorted(
    path
    for path in (EXAMPLES / "data").iterdir()
    if path.name != "README.md" and not path.name.startswith("LICENSE")
)
MEBIBYTE = 1024 * 1024
PINNING_CALLS = {"manual_seed", "seed", "use_deterministic_algorithms", "set_num_threads"}


def _settings(folder: Path) -> GateSettings:
    path = folder / "repro-gate.yml"
    return parse_settings(path.read_bytes(), str(path.relative_to(EXAMPLES)))


def _script(folder: Path) -> ast.Module:
    return ast.parse((folder / "train.py").read_text("utf-8"))


def _constants(folder: Path) -> dict[str, float]:
    """The numbers at the top of a script, by name."""
    return {
        target.id: node.value.value
        for node in _script(folder).body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, int | float)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def test_all_six_examples_are_there() -> None:
    names = [folder.name for folder in FOLDERS]
    assert names == ["chargpt", "declared", "digits", "diverges", "drifts", "resumes"]


@each_row("folder", FOLDERS)
def test_settings_start_the_script_that_lies_beside_them(folder: Path) -> None:
    settings = _settings(folder)
    assert settings.train.command == ("python", "train.py")
    assert 20 <= settings.train.max_steps <= 30


@each_row("folder", FOLDERS)
def test_each_example_has_a_comment_of_its_own(folder: Path) -> None:
    assert _settings(folder).report.gate_id == folder.name


def test_the_authors_are_who_accepted_the_committed_baselines() -> None:
    entries = [
        json.loads(path.read_text("utf-8"))
        for path in EXAMPLES.glob("*/.repro-gate/baseline/*.json")
    ]
    assert len(entries) >= 5
    assert {entry["accepted_by"] for entry in entries} == {"the repro-gate authors"}


@each_row("folder", FOLDERS)
def test_enough_steps_remain_to_measure_the_cost(folder: Path) -> None:
    settings = _settings(folder)
    assert settings.train.max_steps - settings.cost.warmup_steps >= settings.cost.min_steps


@each_row("folder", FOLDERS)
def test_script_pins_nothing_because_the_gate_does_it_from_outside(folder: Path) -> None:
    nodes = ast.walk(_script(folder))
    assert not {node.attr for node in nodes if isinstance(node, ast.Attribute)} & PINNING_CALLS


@each_row("folder", FOLDERS)
def test_script_knows_nothing_of_the_gate(folder: Path) -> None:
    imports = [node for node in ast.walk(_script(folder)) if isinstance(node, ast.Import)]
    names = {alias.name for node in imports for alias in node.names}
    assert "torch" in names
    assert not names & {"gate", "repro_gate_harness"}


@each_row("folder", FOLDERS)
def test_script_takes_a_gpu_when_there_is_one(folder: Path) -> None:
    assert "torch.cuda.is_available()" in (folder / "train.py").read_text("utf-8")


def test_digits_ends_by_itself_so_that_its_checkpoint_is_saved() -> None:
    constants = _constants(EXAMPLES / "digits")
    steps = constants["TRAINING_IMAGES"] // constants["BATCH_SIZE"]
    settings = _settings(EXAMPLES / "digits")
    assert steps < settings.train.max_steps
    assert settings.train.checkpoint == "checkpoint.pt"


def test_chargpt_is_stopped_long_before_its_end() -> None:
    assert (
        _constants(EXAMPLES / "chargpt")["STEPS"] > _settings(EXAMPLES / "chargpt").train.max_steps
    )


def test_drifting_script_no_longer_has_the_learning_rate_of_its_baseline() -> None:
    text = ast.get_docstring(_script(EXAMPLES / "drifts")) or ""
    assert "recorded with `LEARNING_RATE = 0.10`" in text
    assert _constants(EXAMPLES / "drifts")["LEARNING_RATE"] == 0.11


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.name)
def test_origin_of_each_data_file_is_told_with_its_digest(path: Path) -> None:
    readme = (EXAMPLES / "data" / "README.md").read_text("utf-8")
    assert f"## {path.name}\n" in readme
    assert hashlib.sha256(path.read_bytes()).hexdigest() in readme


def test_digits_are_the_1797_images_that_the_readme_promises() -> None:
    rows = gzip.decompress((EXAMPLES / "data" / "digits.csv.gz").read_bytes()).splitlines()
    values = [[int(value) for value in row.split(b",")] for row in rows]
    assert len(values) == 1797
    assert all(len(row) == 65 and max(row[:64]) <= 16 and row[64] <= 9 for row in values)


def test_the_play_is_the_text_that_the_readme_promises() -> None:
    text = (EXAMPLES / "data" / "as-you-like-it.txt").read_text("ascii")
    assert (len(text), len(set(text))) == (125_179, 68)


def test_no_file_of_the_examples_is_large() -> None:
    assert not [path for path in EXAMPLES.rglob("*") if path.stat().st_size >= MEBIBYTE]


def test_readme_names_each_example() -> None:
    readme = (EXAMPLES / "README.md").read_text("utf-8")
    assert all(f"| `{folder.name}/` |" in readme for folder in FOLDERS)
