"""What is not observed costs nothing: a span of a group is an observation of that group."""

from __future__ import annotations

import random

import torch

from gate.harness.output import Problems
from gate.harness.recording.observer import BATCH, GROUPS, RANDOM, TENSORS, Observer, Schedule
from gate.harness.recording.state import TensorOrder
from gate.harness.recording.time_and_memory import StepClock


class OnlyDue(Schedule):
    """Observes these groups, at every step."""

    def __init__(self, *groups: str) -> None:
        super().__init__(0.02, 100)
        self.groups = groups

    def due(self, group: str, step: int) -> bool:
        return step == 1 or group in self.groups


def spans_of_second_step(*due: str) -> set[str]:
    """The groups on which the second step of two optimizers spends time."""
    models = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    order, clock = TensorOrder(), StepClock()
    for model in models:
        order.learn(model)
    observer = Observer(OnlyDue(*due), Problems(), clock)
    for step in (1, 2):
        clock.take_spans()
        x = torch.ones(3, 2)
        observer.note_batch(x, step)
        observer.note_input((x,), step)
        pairs = [(optimizer, step) for optimizer in optimizers]
        observer.look_at_weights(pairs, order, first_pass=True)
        models[1](x * models[0](x)).sum().backward()
        for number, optimizer in enumerate(optimizers):
            observer.after_backward(optimizer, step, order)
            observer.look_at_structure(number, optimizer, step, order)
            observer.before(optimizer, step, order)
            optimizer.step()
            observer.after(optimizer, step, order).finish()
    # the empty group is what no interval can avoid
    return {span.group for span in clock.take_spans()} - {""}


def test_time_is_spent_on_the_groups_that_are_due_and_on_no_other() -> None:
    """A span of a group that is not would be an observation that cost nothing: the median sinks."""
    assert spans_of_second_step() == set()
    for group in GROUPS:
        assert spans_of_second_step(group) == {group}
    assert spans_of_second_step(BATCH, RANDOM, TENSORS) == {BATCH, RANDOM, TENSORS}


def test_a_generator_that_is_drawn_from_once_in_many_steps_counts_where_few_are_observed() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = TensorOrder()
    order.learn(model)
    observer = Observer(OnlyDue(), Problems(), StepClock())
    looks = 0
    for step in range(1, 101):
        if step % 30 == 0:
            random.seed(step)
        looks += observer.generators.due(step)
        optimizer.step()
        observer.after(optimizer, step, order).finish()
    assert observer.generators.drawn == {"python"}
    assert looks < 20
