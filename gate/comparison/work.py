"""Compare what steps were given: samples, backward passes, and the optimizers' settings.

Settings are compared at the same step. The end of a schedule depends on the number of steps, so end
values are compared only where both sides took the same number of steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Protocol

from gate.comparison.differences import OptimizerSettingChange, TensorDelta, WorkChange, WorkKind
from gate.evidence.run_evidence import CheckpointManifest, MetricSeries
from gate.evidence.step_columns import StepDigests, of_optimizer
from gate.evidence.step_work import StepGiven, given_at, is_told, turn_of

OPTIMIZER_SETTING: Final = re.compile(
    r"state(?:\.rank\d+)?/optimizer/(?P<optimizer>\d{1,9})/group/(?P<group>\d+)/(?P<setting>.+)",
    re.ASCII,
)
RATE: Final = "lr"
LOSS: Final = "loss"
# The name under which a changed optimizer class is reported.
CLASS: Final = "class"
# Rates that torch's schedulers store beside the current one: what the script gave them. For a
# cyclic schedule the script names the highest rate, and the initial one is computed from it.
GIVEN_RATES: Final = ("max_lr", "initial_lr")
# The optimizer's own bookkeeping, which nobody sets.
BOOKKEEPING: Final = frozenset((*GIVEN_RATES, "min_lr", "max_momentum", "base_momentum", "params"))
# A schedule computes its rates, so the last bits of two proportional rates may differ.
PROPORTIONAL: Final = 1e-6
# Up to this number of groups of one optimizer, each is named.
NAMED_GROUPS: Final = 2
# The harness may leave out further groups, so beyond this nobody knows how many there are.
COUNTED_GROUPS: Final = 20


class WorkingResult(Protocol):
    """The part of a result that shows the settings it was made under."""

    @property
    def steps(self) -> StepDigests:
        """Every step."""
        ...

    @property
    def given(self) -> tuple[StepGiven, ...]:
        """What the optimizer steps were given."""
        ...

    @property
    def metrics(self) -> tuple[MetricSeries, ...]:
        """Every series, including the harness's own."""
        ...

    @property
    def checkpoint(self) -> CheckpointManifest:
        """Every number of the final state."""
        ...


def compare_work(expected: WorkingResult, observed: WorkingResult) -> tuple[WorkChange, ...]:
    """Return the amounts of work that differ, where both sides know them."""
    pairs = _at_common_steps(expected, observed)
    in_a_step = (
        _work(kind, [(step, count(left), count(right)) for step, (left, right) in pairs])
        for kind, count in COUNTS.items()
    )
    others = sorted({int(name) for _, both in pairs for side in both for name in side.after})
    turns = (
        (
            optimizer,
            _work(
                WorkKind.TURNS,
                [
                    (step, _turn(expected, left, optimizer), _turn(observed, right, optimizer))
                    for step, (left, right) in pairs
                ],
            ),
        )
        for optimizer in others
        if not all(_trained_later(side, optimizer) for side in (expected, observed))
    )
    return (
        *(change for change in in_a_step if change),
        *(
            change.model_copy(update={"optimizer": optimizer})
            for optimizer, change in turns
            if change
        ),
    )


def _trained_later(side: WorkingResult, optimizer: int) -> bool:
    """Return whether an optimizer starts after the last step of the first one, as with folds.

    Its later start then only follows from the number of steps, and is no change of turns.
    """
    return turn_of(side.given, optimizer, 1) == _steps_of(side, 0) > 1


def _steps_of(side: WorkingResult, optimizer: int) -> int:
    """Return how many steps an optimizer took, judging by its losses; 0 for one without a loss."""
    name = of_optimizer(LOSS, optimizer)
    return max(
        (max(metric.points.steps, default=0) for metric in side.metrics if metric.name == name),
        default=0,
    )


COUNTS: Final[Mapping[WorkKind, Callable[[StepGiven], int | None]]] = {
    WorkKind.SAMPLES: attrgetter("samples"),
    WorkKind.ROWS: attrgetter("rows"),
    WorkKind.PASSES: attrgetter("passes"),
}


def _turn(side: WorkingResult, given: StepGiven, optimizer: int) -> int | None:
    """Return how many steps the first optimizer had made, None if this one may not have stepped.

    An optimizer that steps after another's backward pass has no loss. It is then known only at step
    1.
    """
    there = given.step == 1 and str(optimizer) in given.kinds
    there = there or given.step <= _steps_of(side, optimizer)
    return given.after.get(str(optimizer), given.step if there else None)


def _work(kind: WorkKind, rows: list[tuple[int, int | None, int | None]]) -> WorkChange | None:
    # 0 means that no loader was seen, so nothing is known about its batches.
    known = [(step, left, right) for step, left, right in rows if left and right]
    differing = [row for row in known if row[1] != row[2]]
    if not differing:
        return None
    step, before, after = differing[0]
    # A loader that reads ahead gives its first step more samples, so all steps must agree.
    every = all(row[1:] == (before, after) for row in known)
    return WorkChange(kind=kind, step=step, before=before, after=after, every=every)


def _at_common_steps(
    expected: WorkingResult, observed: WorkingResult
) -> list[tuple[int, tuple[StepGiven, StepGiven]]]:
    """Return what each recorded step was given on both sides, for steps that both sides took."""
    last = min(len(expected.steps), len(observed.steps))
    steps = _told_until(last)
    pairs = (
        (step, given_at(expected.given, step), given_at(observed.given, step)) for step in steps
    )
    return [(step, (left, right)) for step, left, right in pairs if left and right]


def _told_until(last: int) -> Iterator[int]:
    step = 1
    while step <= last:
        yield step
        # After the first steps, only those at powers of two are recorded (`is_told`).
        step = step + 1 if is_told(step + 1) else 1 << step.bit_length()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Course:
    """A setting on both sides: at common steps, and at the end if both took as many steps."""

    rows: tuple[tuple[int, str, str], ...]
    ends: tuple[str, str]
    same_length: bool

    @property
    def differing(self) -> tuple[int, str, str] | None:
        """The first step at which it differs, with both values."""
        return next((row for row in self.rows if row[1] != row[2]), None)

    @property
    def moves(self) -> bool:
        """Whether the setting changes during the run on either side."""
        fingerprints = {row[1] for row in self.rows} | {self.ends[0]} - {""}
        other = {row[2] for row in self.rows} | {self.ends[1]} - {""}
        return len(fingerprints) > 1 or len(other) > 1

    @property
    def factor(self) -> str:
        """The constant ratio of the second side to the first, empty where no constant fits."""
        pairs = [(left, right) for _, left, right in self.rows]
        if self.same_length and all(self.ends):
            pairs.append(self.ends)
        ratios = [ratio for pair in pairs if (ratio := _ratio(*pair)) is not None]
        if not ratios or any(
            not math.isclose(quotient, ratios[0], rel_tol=PROPORTIONAL) for quotient in ratios
        ):
            return ""
        return _short(ratios[0]) if math.isfinite(ratios[0]) and ratios[0] > 0 else ""


def compare_optimizer_settings(
    expected: WorkingResult, observed: WorkingResult, tensors: Iterable[TensorDelta]
) -> tuple[OptimizerSettingChange, ...]:
    """Return the settings of optimizers that differ, with both numbers where known.

    If the numbers of steps differ, a setting that a schedule moves is skipped, because its value
    follows from the step. It is reported if the schedule was given different numbers. Groups and
    ranks that changed alike count once.
    """
    pairs = _at_common_steps(expected, observed)
    classes = tuple(_classes(pairs))
    replaced = {change.optimizer for change in classes}
    same_length = len(expected.steps) == len(observed.steps)
    ended = {delta.name for delta in tensors} if same_length else set()
    before, after = (side.checkpoint.optimizer_settings for side in (expected, observed))
    names = {name for _, both in pairs for side in both for name in side.settings}
    changes = [
        (change, match["group"])
        for name in sorted(names | ended)
        if (match := OPTIMIZER_SETTING.fullmatch(name)) and match["setting"] not in BOOKKEEPING
        if (change := _change(name, match, pairs, (before, after), name in ended, same_length))
        # A different class naturally has different settings.
        if (change.before and change.after) or change.optimizer not in replaced
    ]
    numbers = _optimizers((*names, *before, *after), pairs)
    counts = _groups((*names, *before, *after))
    return tuple(
        _with_groups(change, counts).model_copy(update={"alone": numbers == {change.optimizer}})
        for change in (*classes, *_merged(changes))
    )


def _groups(names: Iterable[str]) -> dict[tuple[int, str], int]:
    """Return how many parameter groups have each setting of each optimizer, 0 above the limit."""
    groups: dict[tuple[int, str], set[str]] = {}
    for name in names:
        if match := OPTIMIZER_SETTING.fullmatch(name):
            known = groups.setdefault((int(match["optimizer"]), match["setting"]), set())
            known.add(match["group"])
    return {key: len(own) if len(own) <= COUNTED_GROUPS else 0 for key, own in groups.items()}


def _optimizers(
    names: Iterable[str], pairs: list[tuple[int, tuple[StepGiven, StepGiven]]]
) -> set[int]:
    """Return the numbers of all optimizers that either side is known to have."""
    matches = map(OPTIMIZER_SETTING.fullmatch, names)
    kinds = {int(number) for _, both in pairs for side in both for number in side.kinds}
    return kinds | {int(match["optimizer"]) for match in matches if match}


def _classes(
    pairs: list[tuple[int, tuple[StepGiven, StepGiven]]],
) -> Iterator[OptimizerSettingChange]:
    _, (before, after) = pairs[-1] if pairs else (0, (StepGiven(step=1), StepGiven(step=1)))
    for optimizer in sorted(before.kinds.keys() & after.kinds.keys()):
        left, right = before.kinds[optimizer], after.kinds[optimizer]
        if left != right:
            yield OptimizerSettingChange(
                optimizer=int(optimizer), name=CLASS, before=left, after=right, step=1
            )


def _change(
    name: str,
    match: re.Match[str],
    pairs: list[tuple[int, tuple[StepGiven, StepGiven]]],
    ends: tuple[Mapping[str, str], Mapping[str, str]],
    ended_apart: bool,  # noqa: FBT001
    same_length: bool,  # noqa: FBT001
) -> OptimizerSettingChange | None:
    course = _Course(
        rows=tuple(
            (step, left.settings.get(name, ""), right.settings.get(name, ""))
            for step, (left, right) in pairs
        ),
        ends=(ends[0].get(name, ""), ends[1].get(name, "")),
        same_length=same_length,
    )
    differing = course.differing
    if differing is None and not ended_apart:
        return None
    step, before, after = differing or (None, *course.ends)
    equal = [row[0] for row in course.rows if step is None or row[0] < step]
    set_before, set_after = _as_given(name, pairs, ends)
    moves = course.moves or bool(set_before)
    named = set_before != set_after
    if moves and not same_length and not named:
        return None
    if named:
        before, after = set_before, set_after
    return OptimizerSettingChange(
        optimizer=int(match["optimizer"]),
        name=match["setting"],
        before=before,
        after=after,
        revert_to=before if named or not moves else "",
        step=step,
        equal_until=max(equal, default=None),
        scheduled=moves and not named,
        factor=course.factor,
    )


def _as_given(
    name: str,
    pairs: list[tuple[int, tuple[StepGiven, StepGiven]]],
    ends: tuple[Mapping[str, str], Mapping[str, str]],
) -> tuple[str, str]:
    """Return what torch's schedule was given for a learning rate on both sides, or ""."""
    group, _, setting = name.rpartition("/")
    if setting != RATE:
        return "", ""
    words = [dict(end) for end in ends]
    for _, both in pairs[-1:]:
        words = [word | side.settings for word, side in zip(words, both, strict=True)]
    for given in GIVEN_RATES:
        left, right = (word.get(f"{group}/{given}", "") for word in words)
        if left and right and left != right:
            return left, right
    begun = words[0].get(f"{group}/{GIVEN_RATES[-1]}", "")
    return begun, begun


def _with_groups(
    change: OptimizerSettingChange, counts: Mapping[tuple[int, str], int]
) -> OptimizerSettingChange:
    """Return the change with the number of all groups if not all changed alike, else without."""
    every = counts.get((change.optimizer, change.name), 0)
    some = change.groups < every
    update = {"groups": change.groups if some else 0, "all_groups": every if some else 0}
    return change.model_copy(update=update)


def _merged(
    changes: Iterable[tuple[OptimizerSettingChange, str]],
) -> Iterator[OptimizerSettingChange]:
    """Merge groups that a schedule moves alike into one change, and many fixed groups too.

    Groups that agree at the first step need not agree later. So only a change with a constant
    factor is reported as one. Each change comes with its group, and leaves with their number.
    """
    groups: dict[OptimizerSettingChange, set[str]] = {}
    for change, group in changes:
        groups.setdefault(change, set()).add(group)
    alike: dict[tuple[object, ...], list[OptimizerSettingChange]] = {}
    for change in groups:
        ratio = change.factor
        if not ratio and change.scheduled and change.before and change.after:
            factor = _ratio(change.before, change.after)
            ratio = _short(factor) if factor is not None and math.isfinite(factor) else ""
        # A change without a ratio is never merged.
        key = (ratio, change.factor, change.step) if ratio else (len(alike),)
        key = (change.optimizer, change.name, change.scheduled, *key)
        alike.setdefault(key, []).append(change)
    for own in alike.values():
        first = own[0]
        together = {"groups": len(set[str]().union(*(groups[change] for change in own)))}
        if first.scheduled:
            yield first.model_copy(update=together)
        elif first.factor and len(own) > NAMED_GROUPS:
            yield first.model_copy(update={**together, "scheduled": True, "revert_to": ""})
        else:
            # The two numbers already show the factor.
            yield from (
                change.model_copy(update={"factor": "", "groups": len(groups[change])})
                for change in own
            )


def _ratio(before: str, after: str) -> float | None:
    """Return after / before; None for two zeros, which fit any ratio; infinity for no ratio."""
    try:
        left, right = float(before), float(after)
    except ValueError:
        return math.inf
    if left == right == 0:
        return None
    return right / left if left and math.isfinite(left) and math.isfinite(right) else math.inf


def _short(ratio: float) -> str:
    """Return a ratio in six digits, or in as many as distinguish it from 1."""
    for digits in range(6, 17):
        word = f"{ratio:.{digits}g}"
        if float(word) != 1:
            return word
    return ""
