"""Leaves that are left out of a digest, each by a pattern and for a reason that reports print.

A pattern is a path in which `*` stands for anything but a slash and `**` for anything at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gate.checkpoint.dtypes import RAW_DTYPE
from gate.checkpoint.leaves import Leaf, kind_of

MACHINE_PLACE = "a path on the machine that saved it"
WALL_CLOCK = "a time of day or a duration"
EVENTS = "TensorBoard's events, which hold times and the name of the machine"
SOFTWARE = "a version of the software, which the environment lists"
# Names alone mislead: `drop_path` is a rate, `embed_time` a switch, `lead_time` a number of steps.
TEXTS = frozenset(("none", "text", "bytes", "name", "object"))
CLOCKS = TEXTS | {"float"}
CLOCKS_AND_COUNTS = CLOCKS | {"int"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion:
    """A pattern and why it is left out; of `kinds` only, where those are given.

    The patterns that come with us name their kinds, and but for one never that of a tensor.
    """

    pattern: str
    reason: str
    kinds: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded:
    """What a pattern has left out."""

    pattern: str
    reason: str
    leaves: int


_DEFAULTS: tuple[tuple[str, frozenset[str], tuple[str, ...]], ...] = (
    (
        MACHINE_PLACE,
        TEXTS,
        (
            "path", "*_path", "paths", "*_paths", "*dirpath", "dir", "*_dir", "folder", "*_folder",
            "*filename", "*hostname", "*best_model_checkpoint",
        ),
    ),
    (MACHINE_PLACE, CLOCKS_AND_COUNTS, ("local_rank", "*_local_rank")),
    (
        WALL_CLOCK,
        CLOCKS,
        ("time", "*_time", "date", "datetime", "*_runtime", "*_per_second", "*elapsed*"),
    ),
    (WALL_CLOCK, CLOCKS_AND_COUNTS, ("timestamp", "*_timestamp", "*_wct")),
    (SOFTWARE, TEXTS, ("version", "*_version", "*_commit_hash")),
)  # fmt: skip
# The value itself, members of a sequence, and what an object such as a path or a date was made of.
BELOW = ("", "[**", "/~**")
DEFAULT_EXCLUSIONS: tuple[Exclusion, ...] = (
    *(
        Exclusion(pattern=f"**/{name}{below}", reason=reason, kinds=kinds)
        for reason, kinds, names in _DEFAULTS
        for name in names
        for below in BELOW
    ),
    Exclusion(pattern="**/events.out.tfevents*", reason=EVENTS, kinds=frozenset((RAW_DTYPE,))),
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
    by_kind: dict[str, tuple[re.Pattern[str], list[Exclusion]]] = {}
    kept: list[Leaf] = []
    counts: dict[Exclusion, int] = {}
    for leaf in leaves:
        kind = kind_of(leaf)
        if kind not in by_kind:
            rules = [rule for rule in exclusions if rule.kinds is None or kind in rule.kinds]
            by_kind[kind] = _matcher(rules), rules
        pattern, rules = by_kind[kind]
        match = pattern.fullmatch(leaf.path) if rules else None
        if match is None or match.lastindex is None:
            kept.append(leaf)
            continue
        # patterns have no groups of their own, so the group that matched is the number of its rule
        rule = rules[match.lastindex - 1]
        counts[rule] = counts.get(rule, 0) + 1
    return kept, tuple(
        Excluded(pattern=rule.pattern, reason=rule.reason, leaves=count)
        for rule, count in counts.items()
    )


def _matcher(exclusions: Sequence[Exclusion]) -> re.Pattern[str]:
    """One expression with a group for each pattern; without patterns it fits nothing."""
    groups = "|".join(f"({compiled(rule.pattern)})" for rule in exclusions)
    return re.compile(groups or r"(?!)", re.DOTALL)
