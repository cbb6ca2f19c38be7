"""What the steps of a training were given, and the results of a training with other seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from gate.evidence.columns import MAX_STEP, Point
from gate.text.document import Document

SETTING_PATTERN: Final = r"^(true|false|nan|-?(inf|[0-9][0-9.e+-]{0,30}))$"
MAX_OPTIMIZER_SETTINGS: Final = 1000
# limit for all optimizers of a step together
MAX_SAMPLES: Final = 2**53
# Every step up to this one is reported, because most changes show there. Later only powers of two
# are.
EACH_STEP_UNTIL: Final = 20
# more than the number of reported steps up to the last step that a run may have
MAX_GIVEN: Final = 100
# Limit for one step after the first. A schedule that changes a hundred groups shows in some of
# them.
MAX_MOVED: Final = 40
SettingName = Annotated[str, Field(max_length=1000)]
SettingWord = Annotated[str, Field(pattern=SETTING_PATTERN)]
Settings = Annotated[dict[SettingName, SettingWord], Field(max_length=MAX_OPTIMIZER_SETTINGS)]
# the name of the optimizer's class, for readers
OptimizerKind = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,79}$")]


def is_told(step: int) -> bool:
    """Return whether the input of a step is reported.

    Every run reports the same steps, at any speed.
    """
    return step <= EACH_STEP_UNTIL or step & (step - 1) == 0


class StepGiven(Document):
    """What one step was given; it is recorded only if it differs from the reported step before.

    `samples` is None if a batch had no size. If no DataLoader made the batch, `rows` is the first
    dimension of the model's input. `after` maps an optimizer to the number of steps that the first
    optimizer had taken by then, where that differs from its own step. `settings` are those of the
    optimizers just before the update, by their names in the manifest: all of them at the first
    step, later only those that changed. `kinds` are the classes of the optimizers.
    """

    step: int = Field(ge=1, le=MAX_STEP)
    samples: int | None = Field(default=None, ge=0, le=MAX_SAMPLES)
    rows: int | None = Field(default=None, ge=1, le=MAX_SAMPLES)
    after: Annotated[dict[str, Annotated[int, Field(ge=0, le=MAX_STEP)]], Field(max_length=100)] = (
        Field(default_factory=dict)
    )
    passes: int = Field(default=0, ge=0, le=2**63)
    settings: Settings = Field(default_factory=dict)
    kinds: Annotated[dict[str, OptimizerKind], Field(max_length=100)] = Field(default_factory=dict)


Given = Annotated[tuple[StepGiven, ...], Field(max_length=MAX_GIVEN)]


def only_changes(steps: Iterable[StepGiven]) -> tuple[StepGiven, ...]:
    """Return what is new in each step; `steps` has everything each step was given, in order."""
    return tuple(_changes(steps))[:MAX_GIVEN]


def _changes(steps: Iterable[StepGiven]) -> Iterator[StepGiven]:
    settings: dict[str, str] = {}
    kinds: dict[str, str] = {}
    work: tuple[object, ...] = ()
    for step in steps:
        moved = {name: word for name, word in step.settings.items() if settings.get(name) != word}
        new = {name: kind for name, kind in step.kinds.items() if kinds.get(name) != kind}
        given = (step.samples, step.rows, step.passes, step.after)
        if moved or new or work != given:
            if settings:
                moved = dict(list(moved.items())[:MAX_MOVED])
            settings, kinds, work = settings | moved, kinds | new, given
            yield step.model_copy(update={"settings": moved, "kinds": new})


def given_at(given: tuple[StepGiven, ...], step: int) -> StepGiven | None:
    """Return everything that a reported step was given, or None if nothing is known."""
    before = [line for line in given if line.step <= step]
    if not before:
        return None
    settings: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for latest in before:
        settings |= latest.settings
        kinds |= latest.kinds
    return before[-1].model_copy(update={"step": step, "settings": settings, "kinds": kinds})


def turn_of(given: tuple[StepGiven, ...], optimizer: int, step: int) -> float:
    """Return how many steps the first optimizer had taken when this one took its step.

    After the last reported step, the number is extrapolated in proportion. It differs from the step
    only in a training whose optimizers take turns.
    """
    before = [settings for settings in given if settings.step <= step]
    turn = before[-1].after.get(str(optimizer)) if optimizer and before else None
    if turn is None:
        return step
    return turn if is_told(step) else turn * step / before[-1].step


MAX_FINAL_VALUES: Final = 100
# twenty seeds for each of ten variants
MAX_SEED_RESULTS: Final = 200


class FinalValue(Document):
    """The last value of a metric."""

    metric: str = Field(min_length=1, max_length=200)
    point: Point


class SeedResult(Document):
    """The last value of each metric with one seed; `variant` is empty for train.command itself.

    `digest` is the SHA-256 over every value of every metric and over the state. It is equal only
    for results that are equal bit for bit.
    """

    variant: str = Field(default="", max_length=20)
    seed: int = Field(ge=0, lt=2**32)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    values: Annotated[tuple[FinalValue, ...], Field(max_length=MAX_FINAL_VALUES)]

    def value(self, metric: str) -> Point | None:
        """Return the last value of a metric, or None if the result does not have it."""
        return next((value.point for value in self.values if value.metric == metric), None)


def _each_once(results: tuple[SeedResult, ...]) -> tuple[SeedResult, ...]:
    """Refuse two results of the same seed, which would be counted as two independent ones."""
    if len({(result.variant, result.seed) for result in results}) < len(results):
        message = "holds two results of one seed"
        raise ValueError(message)
    return results


SeedResults = Annotated[
    tuple[SeedResult, ...], Field(max_length=MAX_SEED_RESULTS), AfterValidator(_each_once)
]
