"""The numbers among the values that a script logged, flattened, and the values that are none.

A script's own log may contain texts, tables and nested objects. `FlatValues` gives each number a
flat name, and notes everything else within limits, so that a report can say what is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from gate.checkpoint.untrusted_files import UntrustedFile
from gate.evidence.run_evidence import (
    MAX_PASSED_OVER,
    MetricSeries,
    MetricSource,
    PassedOver,
    WhyPassedOver,
)
from gate.text.untrusted_text import plain_text, short_text

# characters of a metric's name
MAX_NAME: Final = 200
# limits on what is nested below a line's own keys: a table of a whole data set is no metric
MAX_DEPTH: Final = 8
MAX_WIDTH: Final = 100
MAX_NESTED: Final = 500
MAX_EXACT: Final = 2**53
# The clients of Weights & Biases and trackio mark images, histograms and tables with this key.
MEDIA_KEY: Final = "_type"
TRACKERS: Final = frozenset({MetricSource.WANDB, MetricSource.TRACKIO})


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadMetrics:
    """The series that a source gave, and the values that could not become a series."""

    series: tuple[MetricSeries, ...]
    passed_over: tuple[PassedOver, ...] = ()


PLACES: Final = frozenset({WhyPassedOver.LINE, WhyPassedOver.RECORD})
CONTAINERS: Final = frozenset({WhyPassedOver.DEPTH, WhyPassedOver.WIDTH, WhyPassedOver.MEDIA})


def _may_be_below(name: str, pattern: str) -> bool:
    """Return whether the pattern can match a name inside the object or list called `name`.

    Only the literal beginning of the pattern is compared, so the answer may be yes too often.
    """
    head = re.split(r"[*?[]", pattern, maxsplit=1)[0]
    open_ended = head != pattern and f"{name}.".startswith(head)
    return open_ended or name == pattern or head.startswith(f"{name}.")


@dataclass(slots=True)
class FlatValues:
    """Flattens the values that a script logged, and notes those that cannot become a series.

    `keys` are glob patterns of the names to compare. A value with any other name is not noted. A
    whole object or list is noted only if a name inside it could match. `prefix` is the source's
    prefix of each series. `nested` collects the flat names below an object or list, to limit their
    number.
    """

    source: MetricSource
    prefix: str
    keys: tuple[str, ...] = ("*",)
    noted: dict[str, PassedOver] = field(default_factory=dict)
    nested: set[str] = field(default_factory=set)

    def pass_over(self, name: str, why: WhyPassedOver) -> None:
        """Note that a value, a line or a record is not compared."""
        # the limit is what a report shows; without it, one line could add a million names
        if name in self.noted or len(self.noted) >= MAX_PASSED_OVER or not self._counts(name, why):
            return
        self.noted[name] = PassedOver(source=self.source, name=plain_text(name)[:MAX_NAME], why=why)

    def _counts(self, name: str, why: WhyPassedOver) -> bool:
        if why in PLACES:
            # nobody read the names inside this line or record, so any of them could match
            return True
        if why in CONTAINERS:
            return any(_may_be_below(name, pattern) for pattern in self.keys)
        return any(fnmatchcase(name, pattern) for pattern in self.keys)

    def passed_over(self) -> tuple[PassedOver, ...]:
        """Return everything that was noted, sorted by name."""
        return tuple(self.noted[name] for name in sorted(self.noted))

    def numbers(self, name: str, value: object, *, depth: int = 0) -> Iterator[tuple[str, float]]:
        """Yield each number in a value with its flat name; note each value that is not a number.

        Only a number at the top level has a name that the script chose. The limits of `_has_room`
        therefore apply to nested numbers alone. None is no value and is not noted.
        """
        if isinstance(value, int | float):
            if not depth or self._has_room(name):
                yield name, value
        elif isinstance(value, str):
            self.pass_over(name, WhyPassedOver.NUMBER if _is_number(value) else WhyPassedOver.TEXT)
        elif isinstance(value, dict) and self.source in TRACKERS and MEDIA_KEY in value:
            self.pass_over(name, WhyPassedOver.MEDIA)
        elif isinstance(value, dict | list):
            if depth == MAX_DEPTH or len(value) > MAX_WIDTH:
                deep = depth == MAX_DEPTH
                self.pass_over(name, WhyPassedOver.DEPTH if deep else WhyPassedOver.WIDTH)
                return
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for key, member in pairs:
                yield from self.numbers(f"{name}.{key}", member, depth=depth + 1)

    def _has_room(self, name: str) -> bool:
        """Return whether a nested number may become a series; note it if not.

        A nested name is made by flattening. If it is too long or there are too many, the number is
        passed over. The same fault in a name that the script chose is an error.
        """
        if name in self.nested:
            return True
        if len(f"{self.prefix}{name}") > MAX_NAME or not name.isprintable():
            self.pass_over(name, WhyPassedOver.NAME)
            return False
        if len(self.nested) >= MAX_NESTED:
            self.pass_over(name, WhyPassedOver.COUNT)
            return False
        self.nested.add(name)
        return True


def _is_number(text: str) -> bool:
    """Return whether a text is a number in quotes, which the script may want to be compared.

    An integer of 2**53 or more is not reported: `as_float` advises to write such an integer as
    text.
    """
    try:
        value = float(text)
    except ValueError:
        return False
    return not (text.strip().lstrip("+-").isdecimal() and abs(value) >= MAX_EXACT)


def as_float(opened: UntrustedFile, where: str, key: str, value: float) -> float:
    """Convert a number to float64.

    Raises `EvidenceError` for an integer that float64 would round.
    """
    try:
        converted = float(value)
    except OverflowError:
        converted = 0.0
    # Above 2**53 float64 rounds integers, so two different integers could look equal.
    if isinstance(value, int) and int(converted) != value:
        raise opened.fault(
            f"{where}: {short_text(key)} is an integer that float64 cannot hold",
            hint="Metrics are float64 numbers; write such an integer as text.",
        )
    return converted
