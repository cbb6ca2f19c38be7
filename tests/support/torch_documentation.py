"""The operator lists in torch's `use_deterministic_algorithms`: parsed, and as recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gate.training.operator_tables import (
    ANY,
    ON_CUDA_AND_CPU,
    InStrictMode,
    NondeterministicOperator,
    Release,
    release_of,
)

RECORDED = Path(__file__).resolve().parents[1] / "verdict" / "documented_operators.json"
# the gate's table only covers CUDA and the CPU
LEFT_OUT = frozenset({"mps"})
Lists = Mapping[InStrictMode, Sequence[str]]


class Documented(NamedTuple):
    """A bullet of torch's documentation: name, devices, and the list that contains it."""

    name: str
    devices: frozenset[str]
    strict: InStrictMode


def lists_of(docstring: str) -> Lists:
    """Return the bullets of both lists in a docstring, each as one line."""
    _, replaced, refused = re.split(
        r"operations will act\s+deterministically when|operations will throw a\s+:class:", docstring
    )
    texts = {
        InStrictMode.REPLACED: replaced.partition("\n    The following")[0],
        InStrictMode.REFUSED: refused.partition("In addition,")[0],
    }
    return {
        strict: [" ".join(bullet.split()) for bullet in re.split(r"\n {8}\* ", text)[1:]]
        for strict, text in texts.items()
    }


def documented(lists: Lists) -> list[Documented]:
    """Return the operators in the bullets, except for devices that the table leaves out."""
    found = []
    for strict, bullets in lists.items():
        for bullet in bullets:
            name = re.match(r":\w+:`([\w.]+)`", bullet)
            assert name is not None, f"torch names an operator in another way: {bullet}"
            words = re.findall(r"\b(?:CUDA|CPU|MPS)\b", bullet)
            devices = frozenset(word.lower() for word in words)
            if not devices or devices - LEFT_OUT:
                found.append(Documented(name[1], devices - LEFT_OUT, strict))
    return found


def recorded() -> dict[str, Lists]:
    """Return the recorded lists, by torch's version."""
    releases = json.loads(RECORDED.read_text("utf-8"))["releases"]
    return {
        one["torch"]: {strict: one[strict.value] for strict in InStrictMode} for one in releases
    }


def not_in_the_table(lists: Lists, release: Release) -> list[Documented]:
    """Return what torch documents for a release and no row of the table contains."""
    return [bullet for bullet in documented(lists) if not _listed(bullet, release)]


def _listed(bullet: Documented, release: Release) -> bool:
    covered = {
        row.device
        for row in ON_CUDA_AND_CPU
        if bullet.name in row.documented and row.strict is bullet.strict and row.holds(release)
    }
    return ANY in covered or bool(bullet.devices and bullet.devices <= covered)


def not_documented(lists: Lists, release: Release) -> list[str]:
    """Return the rows that name torch's lists of a release as source, and are not in them."""
    known = documented(lists)
    return [
        f"{row.shown}: {name}"
        for row in ON_CUDA_AND_CPU
        if row.holds(release) and not row.source
        for name in row.documented
        if not any(_says(bullet, row, name) for bullet in known)
    ]


def _says(bullet: Documented, row: NondeterministicOperator, name: str) -> bool:
    return (bullet.name, bullet.strict) == (name, row.strict) and (
        row.device in {ANY, *bullet.devices} or not bullet.devices
    )


RELEASES = {version: release_of(version) for version in recorded()}
