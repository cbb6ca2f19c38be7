"""The names of fingerprints and their order: written once, and all who know them agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from gate.comparison.differences import EventKind
from gate.comparison.first_difference import FINGERPRINTS
from gate.evidence.step_columns import (
    GENERATORS,
    LAST_WEIGHTS,
    RANDOM,
    SAMPLING,
    WEIGHTS,
    SamplingGroup,
    order_of,
)
from gate.harness.recording import observer

PROTOCOL = Path(__file__).parents[2] / "docs" / "harness-protocol.md"
ROW = re.compile(r"^\| (`[a-z.]+`(?:, `[a-z.]+`)*) \| (?:`([a-z]+)`)? ?\|", re.MULTILINE)


def test_the_events_of_a_step_stand_in_the_order_of_its_fingerprints() -> None:
    kinds = [kind for kind in EventKind if kind in FINGERPRINTS.values()]
    assert kinds == list(FINGERPRINTS.values())
    loss = list(EventKind).index(EventKind.LOSS)
    assert list(EventKind)[loss - 1] is EventKind.WEIGHTS
    assert list(EventKind)[loss + 1] is EventKind.BACKWARD


def test_the_harness_has_the_same_sampling_groups() -> None:
    assert get_args(SamplingGroup) == observer.GROUPS
    assert {group for group in SAMPLING.values() if group} == set(observer.GROUPS)


@pytest.mark.torch
def test_the_harness_reads_the_same_generators() -> None:
    from gate.harness.recording import observer  # noqa: PLC0415 - it imports torch

    assert tuple(observer.GENERATORS) == GENERATORS


def test_the_protocol_lists_them_in_order_with_their_groups() -> None:
    table = PROTOCOL.read_text("utf-8").partition("## Fingerprints")[2].partition("\n## ")[0]
    rows = [(re.findall(r"`([^`]+)`", names), group or None) for names, group in ROW.findall(table)]
    several = {
        RANDOM: [f"{RANDOM}.{name}" for name in GENERATORS],
        WEIGHTS: [f"{WEIGHTS}.first", LAST_WEIGHTS],
    }
    assert rows == [(several.get(family, [family]), group) for family, group in SAMPLING.items()]


def test_an_unknown_name_comes_last() -> None:
    names = ["zzz", "optimizer", "random.cuda", "random.python", "random.mine", "structure"]
    order = ["structure", "random.python", "random.cuda", "random.mine", "optimizer", "zzz"]
    assert sorted(names, key=order_of) == order
