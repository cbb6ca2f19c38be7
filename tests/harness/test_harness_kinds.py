"""Every kind of tensor at every place: its digest, or one sentence; never a lost line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensor_kinds import LEFT_OUT, RECORDED, Float8, Make, Wrapper
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from gate.harness.output import Output, Problems
from gate.harness.plain_tensors import write_safetensors
from gate.harness.recording.gradients import HandUpdates
from gate.harness.recording.observer import Schedule
from gate.harness.recording.recorder import Recorder
from gate.harness.recording.state import TensorOrder, capture

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.conftest import PlainTensor

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
KINDS: Mapping[str, Make] = {**RECORDED, **{name: make for name, (make, _) in LEFT_OUT.items()}}
# What a place's sentence is about, and the fingerprint that its digest stands in.
PLACES = {
    "parameter": ("parameter 1", "initial"),
    "gradient": ("gradients 1", "gradients"),
    "optimizer": ("optimizer 1/kind", "optimizer"),
    "batch": ("batch /'x'", "batch"),
}


class Held(nn.Parameter):
    """A parameter that takes a gradient of any kind, as fused kernels leave them."""

    grad: torch.Tensor | None = None


class Told:
    """One step of a training that holds a tensor at one place."""

    def __init__(self, folder: Path, place: str, held: torch.Tensor) -> None:
        self.problems = Problems()
        self.output = Output(str(folder), 0, 1)
        schedule = Schedule(1.0, 1, 1e9)
        recorder = Recorder(self.output, self.problems, schedule, observe=True)
        weight = Held(torch.ones(4))
        optimized = [weight, held] if place == "parameter" else [Held(torch.ones(3)), weight]
        with torch._C.DisableTorchFunctionSubclass():  # no optimizer asks a class that refuses
            self.optimizer = torch.optim.SGD(optimized)
        self.model = nn.Module()
        # known beforehand: to look for them would be a walk over all objects of the tests
        vars(self.model)["_parameters"] = {f"p{at}": each for at, each in enumerate(optimized)}
        recorder.modules.append(self.model)
        weight.grad = held if place == "gradient" else None
        if place == "optimizer":
            self.optimizer.state[weight]["kind"] = held
        if place == "batch":
            recorder.note_batch({"x": held, "y": 1}, collated=True)
        if place == "buffer":
            self.model.register_buffer("kind", held)
        if place == "loss":
            recorder.note_backward(held)
        recorder.before(self.optimizer)
        recorder.observe(self.optimizer)

    @property
    def line(self) -> dict[str, Any]:
        (found,) = self.output.path("steps", ".jsonl").read_bytes().splitlines()
        line: dict[str, Any] = json.loads(found)
        return line

    def state(self) -> Path:
        path = self.output.path("state", ".safetensors")
        found = capture([self.model], [self.optimizer], TensorOrder(), self.problems)
        write_safetensors(path, found, self.problems.leave_out)
        return path


def told(folder: Path, place: str, held: torch.Tensor) -> Told:
    folder.mkdir(parents=True)
    found = Told(folder, place, held)
    assert found.problems.sentences == []
    return found


@pytest.mark.parametrize("place", PLACES)
def test_what_can_be_read_is_recorded_and_its_change_is_seen(tmp_path: Path, place: str) -> None:
    fingerprint = PLACES[place][1]
    for number, kind in enumerate(RECORDED):
        first, same, other = (
            told(tmp_path / str(number) / name, place, KINDS[kind](value))
            for name, value in (("first", 1.0), ("same", 1.0), ("other", 2.0))
        )
        assert first.problems.left_out == [], kind
        seen, seen_again, seen_other = (
            one.line["fingerprints"][fingerprint] for one in (first, same, other)
        )
        assert seen == seen_again, kind
        assert seen != seen_other, kind
        assert first.line["parameters"] is not None, kind
        moved = first.line["parameters"] != other.line["parameters"]
        assert moved is (place == "parameter"), kind


@pytest.mark.parametrize("place", PLACES)
def test_what_cannot_be_read_is_left_out_in_one_sentence(tmp_path: Path, place: str) -> None:
    for number, (make, why) in enumerate(LEFT_OUT.values()):
        found = told(tmp_path / str(number), place, make(1.0))
        sentence = f"{PLACES[place][0]} is left out of the digest: {why}"
        about_it = [one for one in found.problems.left_out if one.startswith(PLACES[place][0])]
        if place == "parameter":
            about_it = [one for one in found.problems.left_out if one.startswith("parameter ")]
            sentence = f"parameter {about_it[0].split()[1]} is left out of the digest: {why}"
        assert about_it == [sentence]
        assert found.line["parameters"] is not None, why
        assert found.line["step"] == 1, why


def test_a_buffer_is_in_the_state_or_told(
    tmp_path: Path, read_state: Callable[[Path], dict[str, PlainTensor]]
) -> None:
    for number, (kind, make) in enumerate(KINDS.items()):
        found = told(tmp_path / str(number), "buffer", make(1.0))
        names = [name for name in read_state(found.state()) if name.startswith("model/0/kind")]
        assert found.problems.sentences == [], kind
        why = LEFT_OUT[kind][1] if kind in LEFT_OUT else ""
        left_out = [f"model/0/kind is left out of the state: {why}"] if why else []
        assert found.problems.left_out == left_out, kind
        assert bool(names) is not bool(why), kind


def test_no_kind_of_loss_costs_the_line(tmp_path: Path) -> None:
    for number, (kind, make) in enumerate(KINDS.items()):
        found = told(tmp_path / str(number), "loss", make(1.0))
        assert found.line["backwards"] == 1, kind
        read = {"dtype": "float32", "hex": (1.0).hex()} if kind == "scalar" else None
        assert found.line["loss"] == read, kind
        left_out = found.problems.left_out
        assert all(one.startswith("a loss is left out: ") for one in left_out), kind


def test_a_complex_loss_is_left_out_and_told(tmp_path: Path) -> None:
    found = told(tmp_path / "run", "loss", torch.tensor(1j))
    assert found.line["losses"] == [None]
    assert found.problems.left_out == ["a loss is left out: it is of type torch.complex64"]


def test_a_fingerprint_of_which_nothing_could_be_read_is_not_there(tmp_path: Path) -> None:
    """Else two such runs would have equal digests of nothing."""
    (tmp_path / "run").mkdir()
    problems = Problems()
    recorder = Recorder(
        Output(str(tmp_path / "run"), 0, 1), problems, Schedule(1.0, 1), observe=True
    )
    optimizer = torch.optim.SGD([Wrapper((2, 4), 1.0), Wrapper((2, 4), 2.0)])
    recorder.before(optimizer)
    recorder.observe(optimizer)
    line = json.loads(Output(str(tmp_path / "run"), 0, 1).path("steps", ".jsonl").read_bytes())
    assert "initial" not in line["fingerprints"]
    assert "gradients" in line["fingerprints"]  # none of them has one, which is something


def test_weights_of_which_none_can_be_read_are_a_problem_and_no_pass() -> None:
    problems = Problems()
    hidden = torch.optim.SGD([Wrapper((2, 4), 1.0)])
    capture([], [hidden], TensorOrder(), problems)
    told_of = ["no optimized parameter can be read, so nothing of the weights was compared"]
    assert problems.sentences == told_of
    capture([], [hidden, torch.optim.SGD([torch.ones(1)])], TensorOrder(), problems)
    assert problems.sentences == told_of


def test_inner_tensors_stand_under_their_names(
    tmp_path: Path, read_state: Callable[[Path], dict[str, PlainTensor]]
) -> None:
    write_safetensors(tmp_path / "x", {"w": Float8((2, 4), 1.0)}, print)
    assert {name: kind for name, (kind, _, _) in read_state(tmp_path / "x").items()} == {
        "w/data_": "F8_E4M3",
        "w/scale": "F32",
    }


def test_a_state_is_read_of_weights_that_cannot_be_detached(tmp_path: Path) -> None:
    found = told(tmp_path / "run", "buffer", Float8((2, 4), 1.0))
    assert "model/0/kind" in capture([found.model], [], TensorOrder(), found.problems)
    assert found.problems.sentences == []


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A process group of this process only."""
    store = HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("inner", [torch.ones(2, 4), Float8((2, 4), 1.0)], ids=["plain", "fp8"])
def test_a_distributed_tensor_is_its_own_part(
    tmp_path: Path, place: str, inner: torch.Tensor
) -> None:
    mesh = init_device_mesh("cpu", (1,))
    told_of = TensorMeta(inner.shape, (4, 1), inner.dtype)
    spread = DTensor(inner, DTensorSpec(mesh, (Shard(0),), told_of), requires_grad=False)  # type: ignore[no-untyped-call] # torch's own lacks types
    one, other = (
        told(tmp_path / name, place, held) for name, held in (("one", spread), ("other", inner))
    )
    assert one.problems.left_out == []
    if type(inner) is torch.Tensor:
        assert one.line["fingerprints"] == other.line["fingerprints"]
    assert one.line["fingerprints"][PLACES[place][1]]


@pytest.mark.usefixtures("alone")
def test_a_loss_that_is_part_of_a_sum_starts_no_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = init_device_mesh("cpu", (1,))
    loss = DTensor.from_local(torch.tensor(0.5), mesh, [Partial()], run_check=False)

    def talk(*_: object, **__: object) -> None:
        raise AssertionError("a collective")

    monkeypatch.setattr(DTensor, "redistribute", talk)
    monkeypatch.setattr(DTensor, "full_tensor", talk)
    monkeypatch.setattr(DTensor, "__torch_dispatch__", talk)
    assert told(tmp_path / "run", "loss", loss).line["loss"]["hex"] == (0.5).hex()


class _Node:
    """The last node of a graph, which holds a leaf."""

    def __init__(self, variable: torch.Tensor) -> None:
        self.variable = variable


class _Loss(torch.Tensor):
    grad_fn: Any = None


def _looked_at(watch: HandUpdates, parameter: torch.Tensor) -> int:
    loss = torch.zeros(()).as_subclass(_Loss)
    loss.grad_fn = _Node(parameter)
    watch.note(loss)
    return watch.count


def test_looking_for_updates_by_hand_takes_every_kind() -> None:
    for kind, make in KINDS.items():
        watch, parameter = HandUpdates(), make(1.0)
        for _ in range(3):
            assert _looked_at(watch, parameter) == 0, kind


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex32, torch.bfloat16])
def test_a_parameter_that_moved_between_two_passes_was_updated_by_hand(dtype: torch.dtype) -> None:
    watch, parameter = HandUpdates(), torch.ones(3, dtype=dtype)
    assert _looked_at(watch, parameter) == 0
    parameter.copy_(torch.zeros(3, dtype=dtype))
    assert _looked_at(watch, parameter) == 1
    parameter.copy_(torch.full((3,), torch.nan).to(dtype))
    assert [_looked_at(watch, parameter) for _ in range(2)] == [2, 2]


def test_another_parameter_is_none_that_moved() -> None:
    watch, first = HandUpdates(), torch.ones(3)
    assert _looked_at(watch, first) == 0
    assert _looked_at(watch, torch.zeros(3)) == 0
    assert _looked_at(watch, first) == 0
