"""What the steps of a training were given, and what it gives with another seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from gate.evidence.columns import MAX_STEP, Point
from gate.text.document import Document

SETTING_PATTERN: Final = r"^(true|false|nan|-?(inf|[0-9][0-9.e+-]{0,30}))$"
MAX_OPTIMIZER_SETTINGS: Final = 1000
# of all optimizers of a step
MAX_SAMPLES: Final = 2**53
# the first steps, where most changes show, and then fewer and fewer
EACH_STEP_UNTIL: Final = 20
# as many as there are such steps up to the last that a run may have
MAX_GIVEN: Final = 100
# of one step behind the first: a schedule that moves a hundred groups is seen in some of them
MAX_MOVED: Final = 40
SettingName = Annotated[str, Field(max_length=1000)]
SettingWord = Annotated[str, Field(pattern=SETTING_PATTERN)]
Settings = Annotated[dict[SettingName, SettingWord], Field(max_length=MAX_OPTIMIZER_SETTINGS)]
# the name of a class, for a reader
OptimizerKind = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,79}$")]


def is_told(step: int) -> bool:
    """Whether a step's input is reported; the same steps in every run, whatever its speed."""
    return step <= EACH_STEP_UNTIL or step & (step - 1) == 0


class StepGiven(Document):
    """What a step was given, told where it is not what the step told before was given.

    `samples` is None where a batch had no size; where no DataLoader made one, `rows` is the first
    dimension of what the model was called with. `after` says of an optimizer how many steps the
    first one had made by then, where these are not as many as its own. `settings` are those of the
    optimizers when they began to update, under their names in the manifest: at the first step all,
    behind it those that moved. `kinds` are the optimizers' classes.
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
    """Of what each told step was given, what is new: `steps` hold all of it, in their order."""
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
    """All that a told step was given; None where nothing is known of it."""
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
    """How many steps the first optimizer had made when this one made its own.

    Behind the last told step of a training whose optimizers take turns it is in proportion.
    """
    before = [settings for settings in given if settings.step <= step]
    turn = before[-1].after.get(str(optimizer)) if optimizer and before else None
    if turn is None:
        return step
    return turn if is_told(step) else turn * step / before[-1].step


MAX_FINAL_VALUES: Final = 100
# of twenty seeds, each of ten variants
MAX_SEED_RESULTS: Final = 200


class FinalValue(Document):
    """The last value of a metric."""

    metric: str = Field(min_length=1, max_length=200)
    point: Point


class SeedResult(Document):
    """The last value of each metric with one seed; `variant` is empty for train.command itself.

    `digest` is the SHA-256 of every value of every metric and of the state: equal for results that
    are equal bit for bit.
    """

    variant: str = Field(default="", max_length=20)
    seed: int = Field(ge=0, lt=2**32)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    values: Annotated[tuple[FinalValue, ...], Field(max_length=MAX_FINAL_VALUES)]

    def value(self, metric: str) -> Point | None:
        """The last value of a metric, None where it has none."""
        return next((value.point for value in self.values if value.metric == metric), None)


def _each_once(results: tuple[SeedResult, ...]) -> tuple[SeedResult, ...]:
    """Refuse two results of one seed: they would count as two, and are one."""
    if len({(result.variant, result.seed) for result in results}) < len(results):
        message = "holds two results of one seed"
        raise ValueError(message)
    return results


SeedResults = Annotated[
    tuple[SeedResult, ...], Field(max_length=MAX_SEED_RESULTS), AfterValidator(_each_once)
]
