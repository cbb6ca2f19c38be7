"""Lines of optimizers that step together, put into an order that the harness tells."""

from __future__ import annotations

from itertools import permutations

import pytest
from harness_folder import step_line

from gate.errors import EvidenceError
from gate.evidence.harness_files import StepLine
from gate.evidence.python_processes import renumbered_lines

NAME = "summary-r0-11.json"
ABSENT = {"loss": None, "backwards": 0, "seconds": 0.0}


def lines_of(order: tuple[int, ...]) -> tuple[StepLine, ...]:
    """Two steps of three optimizers, which step in that order after one backward pass."""
    return tuple(
        StepLine.model_validate(
            step_line(
                step,
                optimizer=came,
                parameters=f"sha256:{which}",
                **({} if came == 0 else ABSENT),
            )
        )
        for step in (1, 2)
        for came, which in enumerate(order)
    )


def test_the_order_in_which_they_stepped_is_not_seen_afterwards() -> None:
    lines, *others = (
        renumbered_lines(lines_of(order), order, NAME) for order in permutations(range(3))
    )
    assert others == [lines] * 5
    assert [line.optimizer for line in lines] == [0, 1, 2] * 2
    assert [line.loss is not None for line in lines] == [True, False, False] * 2


def test_optimizers_with_a_backward_pass_in_between_keep_their_order() -> None:
    lines = tuple(
        StepLine.model_validate(step_line(step, optimizer=number))
        for step in (1, 2)
        for number in (0, 1)
    )
    assert renumbered_lines(lines, (0, 1), NAME) == lines


def test_a_model_may_have_an_optimizer_for_each_of_thousands_of_parameters() -> None:
    order = tuple(reversed(range(2500)))
    lines = renumbered_lines(lines_of(order), order, NAME)
    assert [line.optimizer for line in lines] == list(range(2500)) * 2


@pytest.mark.parametrize("numbers", [(0,), (0, 0), (1, 2), (5,)])
def test_numbers_that_are_no_order_are_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(EvidenceError, match="optimizer_numbers are not an order of its optimizers"):
        renumbered_lines(lines_of((0, 1, 2)), numbers, NAME)
