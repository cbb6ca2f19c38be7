"""The settings of optimizers, read before an update and never off a device."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from gate.harness.recording.given import GivenSettings, settings_of

pytestmark = pytest.mark.torch


def optimizer(**options: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW([nn.Parameter(torch.zeros(2))], **options)  # type: ignore[arg-type]


def test_numbers_are_told_as_the_state_at_the_end_has_them() -> None:
    told = settings_of(optimizer(lr=0.1, foreach=False))
    assert told["0/lr"] == "0.1"
    assert told["0/betas/1"] == "0.999"
    assert (told["0/amsgrad"], told["0/foreach"]) == ("false", "false")
    assert "0/params" not in told


def test_a_rate_in_a_narrow_tensor_has_its_shortest_form() -> None:
    assert settings_of(optimizer(lr=torch.tensor(1e-3), foreach=False))["0/lr"] == "0.001"


@pytest.mark.parametrize(
    ("rate", "word"),
    [
        (np.float64(0.1), "0.1"),
        (np.float32(0.1), "0.1"),
        (0.1 * np.cos(0.5), repr(0.1 * math.cos(0.5))),
        (np.int64(2), "2"),
    ],
)
def test_a_rate_that_numpy_computed_is_a_number(rate: float, word: str) -> None:
    made = optimizer(lr=0.5)
    made.param_groups[0]["lr"] = rate
    assert settings_of(made)["0/lr"] == word


def test_what_lies_on_a_device_or_is_of_a_strange_type_is_left_out() -> None:
    class Loud(float):
        def __repr__(self) -> str:
            raise RuntimeError

    made = optimizer()
    made.param_groups[0].update(lr=torch.zeros((), device="meta"), own=Loud(1.0), text="secret")
    made.param_groups[0]["a|b"] = 1.0
    assert not {"0/lr", "0/own", "0/text", "0/a|b"} & settings_of(made).keys()


def test_only_what_moved_is_told_again_and_later_steps_are_skipped() -> None:
    given, made = GivenSettings(), optimizer(lr=0.1)
    first = given.take(0, made, 1)
    assert (first["kind"], first["settings"]["0/lr"]) == ("AdamW", "0.1")
    assert given.take(0, made, 2) == {}
    made.param_groups[0]["lr"] = 0.2
    assert given.take(0, made, 21) == {}
    assert given.take(0, made, 32)["settings"]["0/lr"] == "0.2"


def test_the_settings_are_those_before_the_update_and_not_behind_it() -> None:
    given, made = GivenSettings(), optimizer(lr=0.1)
    given.note(0, made, 1)
    made.param_groups[0]["lr"] = 0.05
    assert given.take(0, made, 1)["settings"]["0/lr"] == "0.1"
