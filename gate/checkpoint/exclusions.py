"""Leaves that are left out of a digest, each by a pattern and for a reason that reports print.

A pattern is a path in which `*` stands for anything but a slash and `**` for anything at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gate.checkpoint.leaves import Leaf, is_tensor

MACHINE_PLACE = "a place on the machine that saved it"
WALL_CLOCK = "a time of day or a duration"
EVENTS = "TensorBoard's events, which hold times and the name of the machine"
SOFTWARE = "a version of the software, which the environment tells"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion:
    """A pattern and why it is left out; those that come with us leave every tensor in."""

    pattern: str
    reason: str
    tensors: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded:
    """What a pattern has left out."""

    pattern: str
    reason: str
    leaves: int


NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        MACHINE_PLACE,
        (
            "*path", "*paths", "*dirpath", "*dir", "*_folder", "*filename", "*hostname",
            "*local_rank", "*model_checkpoint",
        ),
    ),
    (
        WALL_CLOCK,
        (
            "*_time", "*timestamp", "*_runtime", "*_per_second", "time", "date", "datetime",
            "*_seconds", "start_batch_time",
        ),
    ),
    (SOFTWARE, ("*version", "*_commit_hash")),
    (EVENTS, ("events.out.tfevents*",)),
)  # fmt: skip
DEFAULT_EXCLUSIONS: tuple[Exclusion, ...] = (
    *(
        Exclusion(pattern=f"**/{name}{below}", reason=reason, tensors=False)
        for reason, names in NAMES
        for name in names
        for below in ("", "[**", "{**", "/**")
    ),
    # scores under the names of files, so even the tensors among them move with the folder
    *(
        Exclusion(pattern=f"/callbacks/**/best_k_models{below}", reason=MACHINE_PLACE)
        for below in ("", "/**")
    ),
)


def compiled(pattern: str) -> str:
    """The pattern as a regular expression for a whole path."""
    parts = re.split(r"(\*\*|\*)", pattern)
    return "".join({"**": ".*", "*": "[^/]*"}.get(part) or re.escape(part) for part in parts)


def without_excluded(
    leaves: Iterable[Leaf], exclusions: Sequence[Exclusion]
) -> tuple[list[Leaf], tuple[Excluded, ...]]:
    """The leaves that count, and how many each pattern has left out; the first that fits counts."""
    for_values = _matcher(exclusions)
    tensor_rules = [rule for rule in exclusions if rule.tensors]
    for_tensors = _matcher(tensor_rules)
    kept: list[Leaf] = []
    counts: dict[Exclusion, int] = {}
    for leaf in leaves:
        numbers = is_tensor(leaf)
        match = (for_tensors if numbers else for_values).fullmatch(leaf.path)
        if match is None or match.lastindex is None:
            kept.append(leaf)
            continue
        rule = (tensor_rules if numbers else exclusions)[match.lastindex - 1]
        counts[rule] = counts.get(rule, 0) + 1
    return kept, tuple(
        Excluded(pattern=rule.pattern, reason=rule.reason, leaves=count)
        for rule, count in counts.items()
    )


def _matcher(exclusions: Sequence[Exclusion]) -> re.Pattern[str]:
    """One expression with a group for each pattern; without patterns it fits nothing."""
    groups = "|".join(f"({compiled(rule.pattern)})" for rule in exclusions)
    return re.compile(groups or r"(?!)", re.DOTALL)
