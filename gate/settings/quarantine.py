"""What `repro-gate.yml` may say about entries that do not judge for a while: `baseline.quarantine`.

No clock is asked here: from `since` to `until` is a bounded span, whenever the file is read.
"""

from __future__ import annotations

import re
from datetime import date
from fnmatch import fnmatchcase
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from gate.text.records_document import Document

MAX_DAYS: Final = 30
MAX_DAYS_TOGETHER: Final = 60
DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
Pattern = Annotated[str, Field(min_length=1, max_length=200)]


def _day(value: str) -> str:
    message = f"must be a day such as 2026-01-31, not {value[:40]!r}"
    # fromisoformat takes weeks and days without dashes too
    if DAY.fullmatch(value) is None:
        raise ValueError(message)
    try:
        date.fromisoformat(value)
    except ValueError as error:
        raise ValueError(message) from error
    return value


Day = Annotated[str, AfterValidator(_day)]


class Quarantine(Document):
    """An entry of the baseline that does not judge, why, and until when."""

    reason: str = Field(
        min_length=1, max_length=200, description="Why it may not judge. Every report prints it."
    )
    since: Day = Field(description="The first day (UTC), for example `2026-01-31`.")
    until: Day = Field(
        description="The last day (UTC), 30 days after `since` at most. From the next day on it "
        "excuses nothing."
    )
    environment: dict[str, Pattern] = Field(
        default_factory=dict,
        max_length=20,
        description="Which entries: shell-style patterns of parts of their environment, for "
        "example `cpu: AMD EPYC*`. All must fit; without any, every entry is meant.",
    )
    metrics: tuple[Pattern, ...] = Field(
        default=(),
        max_length=50,
        description="Shell-style patterns of metrics: then everything else still has to match the "
        "entry. Without any, the whole entry is meant.",
    )

    @model_validator(mode="after")
    def _ends(self) -> Self:
        days = (date.fromisoformat(self.until) - date.fromisoformat(self.since)).days
        if days < 0:
            message = f"ends on {self.until}, before it begins on {self.since}"
            raise ValueError(message)
        if days > MAX_DAYS:
            message = (
                f"lasts {days} days, and {MAX_DAYS} are the most: record the entry again, or renew "
                "it in a pull request when it ends"
            )
            raise ValueError(message)
        return self

    def covers(self, parts: dict[str, str]) -> bool:
        """Whether an entry with these parts of its environment is meant."""
        return all(
            fnmatchcase(parts.get(name, "none"), pattern)
            for name, pattern in self.environment.items()
        )

    def covers_metric(self, name: str) -> bool:
        """Whether a metric is meant: each is, where none is named."""
        return not self.metrics or any(fnmatchcase(name, pattern) for pattern in self.metrics)


def _together(rules: tuple[Quarantine, ...]) -> tuple[Quarantine, ...]:
    """Refuse a chain of rules, each of which begins where another ends."""
    if not rules:
        return rules
    first = min(date.fromisoformat(rule.since) for rule in rules)
    last = max(date.fromisoformat(rule.until) for rule in rules)
    if (last - first).days > MAX_DAYS_TOGETHER:
        message = (
            f"last {(last - first).days} days together, and {MAX_DAYS_TOGETHER} are the most: "
            "remove those that are over, and those that have not begun"
        )
        raise ValueError(message)
    return rules


Quarantines = Annotated[tuple[Quarantine, ...], AfterValidator(_together)]
