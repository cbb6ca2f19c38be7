"""What `repro-gate.yml` may ask a result to be: the same numbers, or good enough ones."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from gate.settings.tolerances import Direction
from gate.text.document import Argv
from gate.text.records_document import Document

LEAST_SEEDS: Final = 3
MOST_SEEDS: Final = 20
LEAST_VARIANTS: Final = 2
MOST_VARIANTS: Final = 10
# a run's label is `<variant>-seed-<seed>`, and has 40 characters at most
VariantName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,19}$")]
# numpy.random.seed takes 32 bits
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Level(StrEnum):
    """The least that passes."""

    NUMERICAL = "numerical"
    STATISTICAL = "statistical"
    FUNCTIONAL = "functional"
    SCIENTIFIC = "scientific"

    @property
    def needs_seeds(self) -> bool:
        """Whether it is judged by runs of several seeds."""
        return self in {Level.STATISTICAL, Level.SCIENTIFIC}


class ReachedLevel(StrEnum):
    """What a result came to, the strictest first."""

    BITWISE = "numerical-bitwise"
    TOLERANCE = "numerical-tolerance"
    STATISTICAL = "statistical"
    FUNCTIONAL = "functional"
    SCIENTIFIC = "scientific"


class Threshold(Document):
    """Bounds of a metric's last value, both included."""

    min: float | None = Field(
        default=None, allow_inf_nan=False, description="The least that its last value may be."
    )
    max: float | None = Field(
        default=None, allow_inf_nan=False, description="The most that its last value may be."
    )

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.min is None and self.max is None:
            message = "needs min or max, for example {min: 0.9}"
            raise ValueError(message)
        if self.min is not None and self.max is not None and self.min > self.max:
            message = f"no number is at least {self.min:g} and at most {self.max:g}"
            raise ValueError(message)
        return self


class Margin(Document):
    """How far two means may be apart and still count as equivalent: one of the two."""

    absolute: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="In the metric's own unit.",
    )
    relative: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="As a part of the baseline's mean: `0.01` is 1 %.",
    )

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if (self.absolute is None) == (self.relative is None):
            message = "needs absolute or relative, and not both, for example {absolute: 0.02}"
            raise ValueError(message)
        return self

    def around(self, mean: float) -> float:
        """The margin in the metric's own unit; `mean` is the baseline's."""
        return self.absolute if self.absolute is not None else (self.relative or 0.0) * abs(mean)


class Variant(Document):
    """Another training to rank: train.command with more arguments, or a command of its own."""

    arguments: Argv | None = Field(
        default=None, description="Words to put behind train.command, as one string or as a list."
    )
    command: Argv | None = Field(
        default=None, description="A whole command in place of train.command."
    )

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if (self.arguments is None) == (self.command is None):
            message = "needs arguments or command, and not both"
            raise ValueError(message)
        return self


class Ranking(Document):
    """By what variants are ranked."""

    metric: str = Field(
        min_length=1, max_length=200, description="Name of the metric whose last value counts."
    )
    better_is: Direction = Field(description="`lower` or `higher`: which way it improves.")


class LevelPolicy(Document):
    """The least that passes, and by what each level is judged."""

    level: Level = Field(
        default=Level.NUMERICAL,
        description="The least that passes: `numerical` (equal to the baseline, or within "
        "tolerance). Another result that repeats passes too at `statistical` (its metrics are "
        "equivalent over `seeds`), `functional` (it meets every threshold) or `scientific` (it "
        "ranks `variants` as the baseline does).",
    )
    thresholds: dict[str, Threshold] = Field(
        default_factory=dict,
        max_length=100,
        description="Bounds of a metric's last value, by its name, for example `file.accuracy: "
        "{min: 0.9}`. At any level, a result that misses one fails.",
    )
    equivalence: dict[Annotated[str, Field(min_length=1, max_length=200)], Margin] = Field(
        default_factory=dict,
        max_length=100,
        description="At the level `statistical`: by which margin the mean of a metric's last value "
        "may differ from the baseline's, by a pattern of its name, for example `loss: {absolute: "
        "0.02}`. The first pattern that matches decides; a metric that none matches is not judged.",
    )
    ranking: Ranking | None = Field(
        default=None,
        description="At the level `scientific`: the metric that ranks the variants, for example "
        "`{metric: file.accuracy, better_is: higher}`.",
    )

    @model_validator(mode="after")
    def _level_can_be_judged(self) -> Self:
        judged_by = {
            Level.STATISTICAL: ("equivalence", bool(self.equivalence), "{loss: {absolute: 0.02}}"),
            Level.FUNCTIONAL: (
                "thresholds",
                bool(self.thresholds),
                "{file.accuracy: {min: 0.9}}",
            ),
            Level.SCIENTIFIC: (
                "ranking",
                self.ranking is not None,
                "{metric: file.accuracy, better_is: higher}",
            ),
        }
        for level, (name, given, example) in judged_by.items():
            if self.level is level and not given:
                message = f"level: {level} needs {name}, for example {example}"
                raise ValueError(message)
            # thresholds count at every level; the others would be passed over in silence
            if given and self.level is not level and level is not Level.FUNCTIONAL:
                message = f"{name} is judged at level: {level} alone, and level is {self.level}"
                raise ValueError(message)
        return self


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    # none at all is what settings without seeds hold
    if 0 < len(seeds) < LEAST_SEEDS:
        message = f"needs at least {LEAST_SEEDS} seeds, not {len(seeds)}"
        raise ValueError(message)
    twice = next((seed for place, seed in enumerate(seeds) if seed in seeds[:place]), None)
    if twice is not None:
        message = f"names seed {twice} twice: it would count as two results, and is one"
        raise ValueError(message)
    return seeds


def _several(variants: dict[str, Variant]) -> dict[str, Variant]:
    if 0 < len(variants) < LEAST_VARIANTS:
        message = f"needs at least {LEAST_VARIANTS} variants: one alone has no rank"
        raise ValueError(message)
    return variants


Seeds = Annotated[
    tuple[Seed, ...],
    Field(
        max_length=MOST_SEEDS,
        description="At the levels `statistical` and `scientific`: 3 to 20 distinct seeds, "
        "train.seed among them. Each is trained once where a baseline entry is recorded or "
        "proposed, and where the result differs from the baseline. The seed reaches the training "
        "as train.seed does; a script that seeds itself takes it from `{seed}` in its command or "
        "from the variable REPRO_GATE_SEED.",
    ),
    AfterValidator(_distinct),
]
Variants = Annotated[
    dict[VariantName, Variant],
    Field(
        max_length=MOST_VARIANTS,
        description="At the level `scientific`: 2 to 10 trainings to rank, by name, for example "
        "`{adam: {arguments: optimizer=adam}, sgd: {arguments: optimizer=sgd}}`. Each is trained "
        "once for each seed.",
    ),
    AfterValidator(_several),
]


def why_not_judged(
    level: Level, seed: int, seeds: tuple[int, ...], variants: Mapping[str, Variant]
) -> str:
    """Which of the seeds and variants do not fit the policy's level or train.seed, or nothing."""
    if not level.needs_seeds and (seeds or variants):
        name = "seeds" if seeds else "variants"
        return f"{name}: needs policy.level: statistical or scientific, and it is {level}"
    if level.needs_seeds and not seeds:
        return f"policy.level: {level} needs seeds, for example seeds: [{seed}, 1, 2, 3, 4]"
    if seeds and seed not in seeds:
        return (
            f"seeds: must hold train.seed ({seed}), whose strict runs count as one of them; add "
            "it, or set train.seed to one of them"
        )
    if level is Level.SCIENTIFIC and not variants:
        return (
            "policy.level: scientific needs variants, for example variants: {adam: {arguments: "
            "optimizer=adam}, sgd: {arguments: optimizer=sgd}}"
        )
    if variants and level is not Level.SCIENTIFIC:
        return f"variants: needs policy.level: scientific, and it is {level}"
    return ""
