"""The settings that say what a result has to be: tolerances, levels, quarantine, measuring.

Nothing here reads the clock: a rule's span from `since` to `until` is limited in itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from gate.text.document import Argv, Distinct, Document, SaysSomething, Words

Pattern = Annotated[str, Field(min_length=1, max_length=200), SaysSomething]
EVERY: Final = "every"
FINAL: Final = "final"
STEPS = re.compile(r"([0-9]{1,9})-([0-9]{1,9})", re.ASCII)


# cached: it is asked for every point that differs, with only a few texts
@lru_cache(maxsize=256)
def steps_of(text: str) -> range | None:
    """Return the steps of a range such as `1-10`, both ends included; None for `every`, `final`.

    Raises `ValueError` for any other text.
    """
    if text in {EVERY, FINAL}:
        return None
    match = STEPS.fullmatch(text)
    if match is None:
        message = f"must be every, final or a range of steps such as 1-10, not {text[:40]!r}"
        raise ValueError(message)
    first, last = map(int, match.groups())
    if first > last:
        message = f"has a range that ends before it begins: {text}"
        raise ValueError(message)
    return range(first, last + 1)


class Direction(StrEnum):
    """Which way a metric moves when it gets better."""

    LOWER = "lower"
    HIGHER = "higher"


class Improvement(StrEnum):
    """What becomes of a metric that is better than its tolerance allows."""

    FAIL = "fail"
    PASS = "pass"  # noqa: S105 - a word of the settings


class Derivation(Document):
    """What the absolute limit was derived from: `factor` times the square root of 2 times `spread`.

    Editing the limit alone gives a finding.
    """

    runs: int = Field(ge=2, le=1000, description="Number of results that were measured (n).")
    factor: float = Field(
        gt=0, allow_inf_nan=False, description="The tolerance factor k(n), rounded up."
    )
    spread: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="The largest standard deviation at any step, in the metric's unit, rounded up.",
    )
    confidence: float = Field(
        gt=0.5,
        lt=1,
        allow_inf_nan=False,
        description="Confidence that the limit covers 95 % of all runs.",
    )


class Tolerance(Document):
    """How far a metric may be from its baseline: within tolerance when any one limit holds."""

    metric: Pattern = Field(
        description="Shell-style pattern of the metric's name, for example `*loss`.",
    )
    absolute: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Limit of the absolute difference, |a - b|.",
    )
    relative: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Limit of the relative difference, |a - b| / |baseline|.",
    )
    ulp: int = Field(
        default=0,
        ge=0,
        le=2**52,
        description="Limit of the difference in units in the last place of the metric's dtype.",
    )
    steps: str = Field(
        default=EVERY,
        max_length=40,
        description="`every` step, the `final` one, or a range such as `1-10`. Other steps are "
        "left to the tolerances after this one, and must be equal, bit for bit, if none of them "
        "decides.",
    )
    better_is: Direction | None = Field(
        default=None,
        description="`lower` or `higher`: which way the metric improves. The report then says "
        "whether a difference is better or worse.",
    )
    improvement: Improvement = Field(
        default=Improvement.FAIL,
        description="`pass` makes the tolerance one-sided: any better metric passes. It needs "
        "`better_is`. By default a better result differs too.",
    )
    derived: Derivation | None = Field(
        default=None,
        description="What `absolute` was derived from, as `repro-gate baseline calibrate` writes "
        "it.",
    )

    @field_validator("steps")
    @classmethod
    def _known_steps(cls, value: str) -> str:
        steps_of(value)
        return value

    @model_validator(mode="after")
    def _one_sided_needs_a_side(self) -> Self:
        if self.improvement is Improvement.PASS and self.better_is is None:
            message = "improvement: pass needs better_is: lower or higher"
            raise ValueError(message)
        return self

    def decides(self, step: int, last: int) -> bool:
        """Decide whether a step falls under this tolerance; `last` is the metric's last step."""
        if self.steps == FINAL:
            return step == last
        steps = steps_of(self.steps)
        return steps is None or step in steps

    def better(self, expected: float, observed: float) -> bool | None:
        """Return whether a metric improved; None if it is equal, NaN or without a direction."""
        if self.better_is is None or not (observed < expected or observed > expected):
            return None
        # the comparison above is false for NaN, which is neither better nor worse
        return (observed < expected) == (self.better_is is Direction.LOWER)


class TensorLimit(Document):
    """How far weights and buffers may be from the baseline's where metrics may move."""

    relative: float = Field(
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="Limit for each weight and buffer after the last step: the norm of the "
        "difference divided by the larger of the two norms, estimated within a factor of 2. "
        "`0.01` is 1 % of its size. With `0` every tensor must be equal, bit for bit. A tensor "
        "whose distance is unknown is outside the limit. It guards against accidents, not "
        "against intent: code can construct different weights with the same estimate.",
    )


MAX_DAYS: Final = 30
MAX_DAYS_TOGETHER: Final = 60
DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


def _day(value: str) -> str:
    message = f"must be a day such as 2026-01-31, not {value[:40]!r}"
    # `date.fromisoformat` also accepts weeks, and days without hyphens
    if DAY.fullmatch(value) is None:
        raise ValueError(message)
    try:
        date.fromisoformat(value)
    except ValueError as error:
        raise ValueError(message) from error
    return value


Day = Annotated[str, AfterValidator(_day)]


# the same names as in `baseline/select.py`, which orders them
ENVIRONMENT_PARTS: Final = (
    "cpu",
    "cpu_capability",
    "cublas",
    "cuda",
    "cudnn",
    "device",
    "driver",
    "nccl",
    "nodes",
    "numpy",
    "os",
    "packages",
    "python",
    "threads",
    "torch",
    "variables",
    "world_size",
)
PARTS_SENTENCE: Final = "The parts: " + ", ".join(f"`{part}`" for part in ENVIRONMENT_PARTS) + "."


def _known_parts(names: Iterable[str]) -> None:
    """Raise `ValueError` for an unknown part: it would match nothing, and nobody would notice."""
    for name in names:
        if name not in ENVIRONMENT_PARTS:
            parts = ", ".join(ENVIRONMENT_PARTS)
            message = f"{name[:40]!r} is no part of the environment; name one of {parts}"
            raise ValueError(message)


def _patterns_of_parts(patterns: dict[str, str]) -> dict[str, str]:
    _known_parts(patterns)
    return patterns


def _parts(names: tuple[str, ...]) -> tuple[str, ...]:
    _known_parts(names)
    return names


EnvironmentParts = Annotated[tuple[str, ...], AfterValidator(_parts), Distinct]


class Quarantine(Document):
    """An entry of the baseline that does not judge, why, and until when."""

    reason: Annotated[str, SaysSomething] = Field(
        min_length=1, max_length=200, description="Why it is ignored. Every report prints it."
    )
    since: Day = Field(description="The first day (UTC), for example `2026-01-31`.")
    until: Day = Field(
        description="The last day (UTC), 30 days after `since` at most. After that it has expired."
    )
    environment: Annotated[dict[str, Pattern], AfterValidator(_patterns_of_parts)] = Field(
        default_factory=dict,
        max_length=20,
        description="Which entries: shell-style patterns of parts of their environment, for "
        "example `cpu: AMD EPYC*`. All must match; without any, the rule covers every entry. "
        f"{PARTS_SENTENCE}",
    )
    metrics: Annotated[tuple[Pattern, ...], Distinct] = Field(
        default=(),
        max_length=50,
        description="Shell-style patterns of metrics: then everything else still has to match the "
        "entry. Without any, the rule covers the whole entry.",
    )

    @model_validator(mode="after")
    def _ends(self) -> Self:
        days = (date.fromisoformat(self.until) - date.fromisoformat(self.since)).days
        if days < 0:
            message = f"ends on {self.until}, before it begins on {self.since}"
            raise ValueError(message)
        if days > MAX_DAYS:
            message = (
                f"lasts {days} days, the limit is {MAX_DAYS}: record the entry again, or renew "
                "it in a pull request when it ends"
            )
            raise ValueError(message)
        return self

    def covers(self, parts: dict[str, str]) -> bool:
        """Decide whether the rule covers an entry with these environment parts."""
        return all(
            fnmatchcase(parts.get(name, "none"), pattern)
            for name, pattern in self.environment.items()
        )

    def covers_metric(self, name: str) -> bool:
        """Decide whether the rule covers a metric; without names it covers all of them."""
        return not self.metrics or any(fnmatchcase(name, pattern) for pattern in self.metrics)


def _together(rules: tuple[Quarantine, ...]) -> tuple[Quarantine, ...]:
    """Raise `ValueError` for a chain of rules, each within its limit, that lasts too long."""
    if not rules:
        return rules
    first = min(date.fromisoformat(rule.since) for rule in rules)
    last = max(date.fromisoformat(rule.until) for rule in rules)
    if (last - first).days > MAX_DAYS_TOGETHER:
        message = (
            f"last {(last - first).days} days together, the limit is {MAX_DAYS_TOGETHER}: "
            "remove those that have expired, and those that have not begun"
        )
        raise ValueError(message)
    return rules


Quarantines = Annotated[tuple[Quarantine, ...], AfterValidator(_together)]


LEAST_SEEDS: Final = 3
MOST_SEEDS: Final = 20
LEAST_VARIANTS: Final = 2
MOST_VARIANTS: Final = 10
# a run's label is `<variant>-seed-<seed>`, with 40 characters at most
VARIANT_NAME: Final = r"^[a-z0-9][a-z0-9-]{0,19}$"
VariantName = Annotated[str, Field(pattern=VARIANT_NAME)]
# numpy.random.seed accepts 32 bits
SEEDS_END: Final = 2**32
Seed = Annotated[int, Field(ge=0, lt=SEEDS_END)]


class Level(StrEnum):
    """The least that passes."""

    NUMERICAL = "numerical"
    STATISTICAL = "statistical"
    FUNCTIONAL = "functional"
    SCIENTIFIC = "scientific"

    @property
    def needs_seeds(self) -> bool:
        """Whether runs of several seeds decide this level."""
        return self in {Level.STATISTICAL, Level.SCIENTIFIC}


class ReachedLevel(StrEnum):
    """The level that a result reached, the strictest first."""

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
        """Return the margin in the metric's unit; `mean` is the baseline's mean."""
        return self.absolute if self.absolute is not None else (self.relative or 0.0) * abs(mean)


class Variant(Document):
    """Another training to rank: train.command with more arguments, or a command of its own."""

    arguments: Words | None = Field(
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

    metric: Pattern = Field(description="Name of the metric whose last value counts.")
    better_is: Direction = Field(description="`lower` or `higher`: which way it improves.")


class LevelPolicy(Document):
    """The least that passes, and by what each level is judged."""

    level: Level = Field(
        default=Level.NUMERICAL,
        description="The lowest level that passes: `numerical` (equal to the baseline, or within "
        "tolerance). A different, repeatable result passes too at `statistical` (its metrics are "
        "equivalent over `seeds`), `functional` (it meets every threshold) or `scientific` (it "
        "ranks `variants` as the baseline does).",
    )
    thresholds: dict[Pattern, Threshold] = Field(
        default_factory=dict,
        max_length=100,
        description="Bounds of a metric's last value, by its name, for example `file.accuracy: "
        "{min: 0.9}`. At any level, a result that misses one fails.",
    )
    equivalence: dict[Pattern, Margin] = Field(
        default_factory=dict,
        max_length=100,
        description="At the level `statistical`: margins for the mean of a metric's last value, by "
        "a "
        "pattern of its name, for example `loss: {absolute: 0.02}`. The first pattern that matches "
        "decides; a metric that none matches is not judged.",
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
            # thresholds apply at every level; the other keys would silently have no effect
            if given and self.level is not level and level is not Level.FUNCTIONAL:
                message = f"{name} is judged at level: {level} alone, and level is {self.level}"
                raise ValueError(message)
        return self


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    # an empty list is the default of settings without seeds
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
    names = list(variants)
    for place, name in enumerate(names):
        # equal variants would tie
        for other in names[:place]:
            if variants[name] == variants[other]:
                message = f"{other} and {name} are the same training, so they cannot be ranked"
                raise ValueError(message)
    return variants


Seeds = Annotated[
    tuple[Seed, ...],
    Field(
        max_length=MOST_SEEDS,
        description="At the levels `statistical` and `scientific`: 3 to 20 distinct seeds, "
        "train.seed among them. Each is trained once where a baseline entry is recorded or "
        "proposed, and where the result differs from the baseline. A script that seeds itself "
        "takes the seed from `{seed}` in its command or from the variable REPRO_GATE_SEED.",
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
    """Return which seeds or variants do not fit the policy's level or train.seed, or nothing."""
    if not level.needs_seeds and (seeds or variants):
        name = "seeds" if seeds else "variants"
        return f"{name}: needs policy.level: statistical or scientific, and it is {level}"
    if level.needs_seeds and not seeds:
        return f"policy.level: {level} needs seeds, for example seeds: [{seed}, 1, 2, 3, 4]"
    if seeds and seed not in seeds:
        return (
            f"seeds: must include train.seed ({seed}), whose strict runs count as one of them; add "
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


class CostSettings(Document):
    """When and how the cost of determinism is measured."""

    when: Literal["always", "nightly", "never"] = Field(
        default="always",
        description="Which gate calls make default runs to measure the cost: `always` all, "
        "`nightly` those by a schedule, by hand or by a push to the default branch, `never` none. "
        "The others report the cost recorded with the baseline, and its date.",
    )
    rounds: int = Field(
        default=3,
        ge=1,
        le=50,
        description="Rounds of `repro-gate cost`. Each runs every arm once and the default mode "
        "twice. Fewer than three are inconclusive.",
    )
    warmup_steps: int = Field(
        default=5, ge=0, le=100_000, description="Steps at the start of a run that are not timed."
    )
    min_steps: int = Field(
        default=10,
        ge=2,
        le=100_000,
        description="With fewer timed steps than this the cost is not measurable.",
    )
    budget_percent: float | None = Field(
        default=None,
        ge=0,
        le=100_000,
        allow_inf_nan=False,
        description="The most that determinism may cost, in percent of the default step time. A "
        "pass "
        "fails only if the lower bound of a measured cost is above it.",
    )

    def exceeded_by(self, low: float | None, *, measured: bool) -> bool:
        """Decide whether a measured cost exceeds the budget; `low` is a ratio, 1.04 for 4 %.

        Only the lower bound counts, and only if the cost was measured.
        """
        if self.budget_percent is None or low is None or not measured:
            return False
        # the lower bound, so that noise alone never stops a pull request
        return (low - 1) * 100 > self.budget_percent


class NoiseSettings(Document):
    """How the noise floor of the default mode is measured."""

    runs: int = Field(
        default=5,
        ge=2,
        le=100,
        description="How many times `repro-gate noise` runs the default mode.",
    )
