"""Steps of optimizers that step one after the other, put into an order that no set decides."""

from __future__ import annotations

from collections.abc import Iterator

from gate.errors import EvidenceError
from gate.evidence.harness_files import StepLine

# What belongs to all optimizers that step after one backward pass, and stands on the first line.
OF_ALL = ("loss", "losses", "backwards", "seconds")


def in_order(
    lines: tuple[StepLine, ...], numbers: tuple[int, ...], name: str
) -> tuple[StepLine, ...]:
    """The lines with their optimizers renumbered: `numbers` has one for each, in the given order.

    Lines of one step without a backward pass in between stand in the order of those numbers, and
    the loss on the first of them. Without numbers nothing is changed. Raises `EvidenceError` when
    they are no order of the optimizers that the lines name.
    """
    if not numbers:
        return lines
    known = max((line.optimizer for line in lines), default=0) < len(numbers)
    if sorted(numbers) != list(range(len(numbers))) or not known:
        raise EvidenceError(
            f"{name}: the summary's optimizer_numbers are no order of its optimizers",
            hint="Only the harness may write into its output folder.",
        )
    ordered: list[StepLine] = []
    for burst in _bursts(lines):
        renumbered = [
            line.model_copy(update={"optimizer": numbers[line.optimizer]}) for line in burst
        ]
        ordered += _arranged(renumbered)
    return tuple(ordered)


def _bursts(lines: tuple[StepLine, ...]) -> Iterator[list[StepLine]]:
    """Lines of one step each, without a backward pass but before the first of them."""
    burst: list[StepLine] = []
    for line in lines:
        if burst and (line.step != burst[0].step or line.backwards or line.loss is not None):
            yield burst
            burst = []
        burst.append(line)
    if burst:
        yield burst


def _arranged(burst: list[StepLine]) -> list[StepLine]:
    ordered = sorted(burst, key=lambda line: line.optimizer)
    first, lowest = burst[0], ordered[0]
    if first is lowest:
        return ordered
    theirs = {name: getattr(first, name) for name in OF_ALL}
    mine = {name: getattr(lowest, name) for name in OF_ALL}
    # the harness wrote loss and time on the line that came first; they belong to the step as a
    # whole
    moved = {first.optimizer: mine, lowest.optimizer: theirs}
    return [line.model_copy(update=moved.get(line.optimizer, {})) for line in ordered]
