"""What the harness does less often where steps are short, and what it must not lose by that."""

from __future__ import annotations

import copy
import gc
import json
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from gate.evidence.step_lines import read_step_lines
from gate.harness import tensor_digests
from gate.harness.output import Output, Problems
from gate.harness.recording import module_search, recorder, time_and_memory
from gate.harness.recording.module_search import Made, known_optimizers, outermost_owners
from gate.harness.recording.observer import Schedule
from gate.harness.recording.recorder import AT_ONCE_STEPS, LINES_SECONDS, Recorder
from gate.harness.tensor_digests import StartedDigest, bodies_once, finish_all, grid_body
from gate.system.files.files import LocalFiles

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

STEPS = 40
STEP_SECONDS = LINES_SECONDS / 4


class Played:
    """A small training whose steps all take `STEP_SECONDS` by a clock that is played."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (time_and_memory, recorder):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)
        self.out = Output(str(folder), 0, 1)
        self.problems = Problems()
        schedule = Schedule(0.02, STEPS)
        self.recorder = Recorder(self.out, self.problems, schedule, observe=True)
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(1, 2)).sum()
        loss.backward()
        self.recorder.note_backward(loss)
        self.recorder.before(self.optimizer)
        self.optimizer.step()
        self.now += STEP_SECONDS
        self.recorder.observe(self.optimizer)

    def steps_on_record(self) -> list[int]:
        text = self.out.path("steps", ".jsonl").read_text("ascii")
        return [json.loads(line)["step"] for line in text.splitlines()]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(tmp_path, monkeypatch)


def test_lines_of_the_first_steps_are_there_at_once_and_later_ones_a_moment_after(
    played: Played,
) -> None:
    seen = []
    for _ in range(STEPS):
        played.step()
        seen.append(len(played.steps_on_record()))
    assert seen[:AT_ONCE_STEPS] == list(range(1, AT_ONCE_STEPS + 1))
    # four steps take as long as lines may wait
    assert all(step - 4 < there <= step for step, there in enumerate(seen, 1))
    assert len(set(seen)) < STEPS
    played.recorder.flush()
    assert played.steps_on_record() == list(range(1, STEPS + 1))
    assert played.problems.sentences == []


def test_a_step_has_its_own_time_however_late_its_line_is_written(played: Played) -> None:
    for _ in range(STEPS):
        played.step()
    played.recorder.flush()
    lines = played.out.path("steps", ".jsonl").read_text("ascii").splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    assert seconds[0] is None
    assert seconds[1:] == pytest.approx([STEP_SECONDS] * (STEPS - 1))


def test_a_step_without_a_digest_is_a_line_that_the_gate_takes_by_its_pattern(
    played: Played,
) -> None:
    played.recorder = Recorder(played.out, played.problems, Schedule(0.02, STEPS), observe=False)
    for _ in range(STEPS):
        played.step()
    played.recorder.flush()
    path = played.out.path("steps", ".jsonl")
    lines = read_step_lines(LocalFiles(), path.parent, path.name)
    assert [line.step for line in lines] == list(range(1, STEPS + 1))
    # the first has the settings of the optimizer
    assert [*lines.records] == [0]


NESTED_AND_FAILING = """
import torch
from torch import nn

class Outer(torch.optim.SGD):
    fails = False
    def step(self, closure=None):
        super().step()
        if Outer.fails:
            raise ValueError("planted")

model = nn.Linear(2, 1)
optimizer = Outer(model.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    Outer.fails = step == 1
    try:
        optimizer.step()
    except ValueError:
        pass
"""


@pytest.mark.torch
def test_a_step_inside_a_step_is_one_step_and_a_failed_one_is_none(harness: Harness) -> None:
    outcome = harness.run(NESTED_AND_FAILING, REPRO_GATE_MAX_STEPS="100")
    assert [line["step"] for line in outcome.lines("steps")] == [1, 2, 3, 4, 5]


MADE_IN_ODD_WAYS = """
import copy, gc, io
import torch
from torch import nn

class Holder(nn.Module):  # never called itself
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

def garbage(model):
    one, other = Holder(model), Holder(model)
    one.peer, other.peer = [other], [one]

inner = copy.deepcopy(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
file = io.BytesIO()
torch.save(inner, file)
file.seek(0)
inner = torch.load(file, weights_only=False)
gc.disable()
garbage(inner)
model = Holder(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    inner(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.torch
def test_the_outermost_module_is_found_that_was_copied_loaded_and_never_called(
    harness: Harness,
) -> None:
    """Dead holders in a cycle of references are no part of the state, collected or not."""
    outcome = harness.run(MADE_IN_ODD_WAYS, REPRO_GATE_MAX_STEPS="2")
    names = set(outcome.state())
    assert {f"model/0/inner.{place}.weight" for place in (0, 1)} <= names
    assert not any(name.startswith("model/1") for name in names)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> type[Made]:
    """What `remember` keeps, without its hooks."""
    monkeypatch.setattr(Made, "modules", weakref.WeakValueDictionary())
    monkeypatch.setattr(Made, "optimizers", weakref.WeakValueDictionary())
    monkeypatch.setattr(Made, "called", weakref.WeakValueDictionary())
    return Made


def test_nothing_is_searched_where_the_owners_were_seen_at_work(
    made: type[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(1, 1)
    assert made.modules is not None
    made.modules[id(model)] = model
    module_search.note_called(model)

    def searches(*_: object) -> None:
        raise AssertionError("the collector was asked")

    monkeypatch.setattr(gc, "collect", searches)
    monkeypatch.setattr(gc, "get_objects", searches)
    assert outermost_owners(list(model.parameters()), Problems()) == [model]


@pytest.mark.torch
@pytest.mark.parametrize(("observe", "count"), [("on", 1), ("off", 1), ("off", 2)])
def test_a_training_is_not_interrupted_to_search_for_models_that_were_seen_at_work(
    harness: Harness, observe: str, count: int
) -> None:
    training = f"""
import gc
import torch
gc.disable()
gc.callbacks.append(lambda phase, _: print("collected", phase, flush=True))
models = [torch.nn.Linear(2, 1) for _ in range({count})]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
for _ in range(3):
    for model, optimizer in zip(models, optimizers):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
gc.callbacks.clear()
"""
    outcome = harness.run(training, REPRO_GATE_OBSERVE=observe)
    assert "collected" not in outcome.stdout
    assert {f"model/{number}/weight" for number in range(count)} <= set(outcome.state())


@pytest.mark.usefixtures("made")
def test_all_objects_are_searched_for_an_owner_that_nobody_saw_being_made() -> None:
    model = copy.deepcopy(nn.Linear(1, 1))
    assert outermost_owners(list(model.parameters()), Problems()) == [model]


def test_an_optimizer_without_groups_is_none_yet(made: type[Made]) -> None:
    ready = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    unready = torch.optim.SGD.__new__(torch.optim.SGD)
    assert made.optimizers is not None
    made.optimizers |= {id(one): one for one in (unready, ready)}
    assert known_optimizers() == [ready]


def digest_of(*tensors: torch.Tensor) -> str:
    named = [(str(index), tensor) for index, tensor in enumerate(tensors)]
    return finish_all([StartedDigest(named, "a tensor", lambda _: None, fast=True)])[0]


def test_a_body_that_is_taken_once_is_that_of_its_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.arange(20_000.0)
    complex_numbers = torch.view_as_complex(whole.reshape(-1, 2))
    tensors = (
        whole, whole[::2], whole[:10_000], whole.reshape(100, 200).t(), whole.view(torch.int32),
        complex_numbers, complex_numbers.conj(), complex_numbers.conj().imag,
    )  # fmt: skip
    alone = [digest_of(tensor) for tensor in tensors]
    taken = []

    def body(tensor: torch.Tensor) -> bytes:
        taken.append(tensor)
        return grid_body(tensor)

    monkeypatch.setattr(tensor_digests, "grid_body", body)
    with bodies_once():
        assert [digest_of(tensor) for tensor in (*tensors, *tensors)] == alone * 2
    assert len(taken) == len(tensors)
    whole += 1
    assert digest_of(whole) != alone[0]
