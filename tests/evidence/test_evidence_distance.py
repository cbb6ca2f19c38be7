"""How far two kept states are apart, measured by a process of its own."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness_folder import safetensors_bytes
from real_reader import real_reader

from gate.errors import EvidenceError, GateError
from gate.evidence.run_evidence import StateDistance, TensorDistance
from gate.pipelines.reader_questions import AllReduceQuestion, ReductionQuestion, WeightsQuestion
from gate.system.console import QuietProgress


@dataclass
class Told(QuietProgress):
    """Remembers what was said."""

    steps: list[str] = field(default_factory=list)

    def step(self, text: str) -> None:
        self.steps.append(text)


def state(path: Path, *values: float, dtype: str = "F32") -> Path:
    content = struct.pack(f"<{len(values)}f", *values)
    shape = [len(content) // (4 if dtype == "F32" else 2)]
    path.write_bytes(safetensors_bytes({"model/0/head.weight": (dtype, shape, content)}))
    return path


@pytest.fixture
def told() -> Told:
    return Told()


def distance(tmp_path: Path, told: Told, second: Path, *, sha256: str = "") -> StateDistance | None:
    first = state(tmp_path / "one", 3.0, 4.0, 0.0)
    digest = sha256 or hashlib.sha256(first.read_bytes()).hexdigest()
    folder = tmp_path / "taken"
    folder.mkdir()
    with real_reader(told) as reader:
        return reader.distance((first, digest), second, folder)


def test_a_tensor_that_moved_has_its_numbers(tmp_path: Path, told: Told) -> None:
    found = distance(tmp_path, told, state(tmp_path / "two", 0.0, 4.0, 0.0))
    assert found is not None
    (one,) = found.tensors
    assert one == TensorDistance(
        name="state/model/0/head.weight",
        elements=3,
        differing=1,
        relative_l2=3 / 5,
        max_absolute=3.0,
    )
    assert told.steps == []


def test_a_tensor_of_another_type_has_none(tmp_path: Path, told: Told) -> None:
    found = distance(tmp_path, told, state(tmp_path / "two", 3.0, 4.0, 0.0, dtype="BF16"))
    assert found == StateDistance(total=0, tensors=())


def test_a_state_that_cannot_be_read_leaves_the_numbers_out_and_says_so(
    tmp_path: Path, told: Told
) -> None:
    second = tmp_path / "two"
    second.write_bytes(b"no state")
    assert distance(tmp_path, told, second) is None
    assert told.steps[0].startswith("the distance between the two states is not known: two")


def test_a_first_state_that_changed_since_is_not_measured(tmp_path: Path, told: Told) -> None:
    second = state(tmp_path / "two", 3.0, 4.5, 0.0)
    assert distance(tmp_path, told, second, sha256="0" * 64) is None
    assert told.steps == [
        "the distance between the two states is not known: one changed after it was kept"
    ]


def test_the_weights_of_two_states_are_read_together(tmp_path: Path, told: Told) -> None:
    first, second = state(tmp_path / "one", 3.0, 4.0), state(tmp_path / "two", 0.0, 4.0)
    digest = hashlib.sha256(first.read_bytes()).hexdigest()
    question = WeightsQuestion(first=first, second=second)
    with real_reader(told) as reader:
        weights = reader.ask_of_kept(question, digest, tmp_path)
    assert (weights.elements, weights.differing, weights.relative_l2) == (2, 1, 3 / 5)
    assert not (tmp_path / "first.safetensors").exists()


def test_a_kept_file_that_changed_since_is_not_read(tmp_path: Path, told: Told) -> None:
    question = ReductionQuestion(first=state(tmp_path / "one", 3.0))
    changed = pytest.raises(EvidenceError, match="one changed after it was kept")
    with real_reader(told) as reader, changed:
        reader.ask_of_kept(question, "0" * 64, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[" * 10_000,
        '{"schema_version": "repro-gate.all-reduce/1", "ranks": 1e99}',
        "x" * 70_000,
    ],
)
def test_what_ranks_told_of_an_all_reduce_is_read_strictly(
    tmp_path: Path, told: Told, text: str
) -> None:
    (tmp_path / "all-reduce.json").write_text(text)
    with real_reader(told) as reader, pytest.raises(GateError, match=r"all-reduce\.json"):
        reader.ask(AllReduceQuestion(out=tmp_path))


def test_an_all_reduce_is_not_read_through_a_link(tmp_path: Path, told: Told) -> None:
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "all-reduce.json").symlink_to(tmp_path / "elsewhere")
    with real_reader(told) as reader, pytest.raises(GateError, match="link"):
        reader.ask(AllReduceQuestion(out=tmp_path))
