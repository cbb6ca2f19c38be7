from __future__ import annotations

import pytest
import torch
from checkpoint_digests import content_of
from torch_states import WEIGHT, Save

from gate.checkpoint import digest, state_tree
from gate.checkpoint.formats import tensor_sources
from gate.errors import EvidenceError

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (
            {"w": torch.ones(2, device="meta")},
            "a tensor on the meta device, which has no plain bytes",
        ),
        ({(1, 2): WEIGHT}, "has a key of type tuple, which cannot be a name"),
        ({2**70: WEIGHT}, "has a key of type int, which cannot be a name"),
        ({"a\x1b": WEIGHT}, r"key '/a\x1b' is above 900 characters or not printable"),
        ({"a" * 901: WEIGHT}, "is above 900 characters or not printable"),
    ],
)
def test_what_cannot_be_compared_is_an_error(save: Save, state: object, told: str) -> None:
    path = save(state)
    with pytest.raises(EvidenceError) as caught:
        content_of(path)
    assert caught.value.message.startswith("state.pt: ")
    assert told in caught.value.message


def test_a_state_nested_too_deep_is_refused(save: Save) -> None:
    state: object = WEIGHT
    for _ in range(190):
        state = [state]
    assert len(content_of(save(state)).leaves) == 1
    for _ in range(20):
        state = [state]
    with pytest.raises(EvidenceError, match="nested deeper than 200 levels, or contains itself"):
        content_of(save(state))


def test_a_state_that_contains_itself_is_refused(save: Save) -> None:
    state: list[object] = []
    state.append(state)
    with pytest.raises(EvidenceError, match="nested deeper than 200 levels, or contains itself"):
        content_of(save(state))


def test_a_state_that_unfolds_without_end_is_refused(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_tree, "MAX_VISITS", 10_000)
    state: object = []
    for _ in range(100):
        state = [state, state]
    with pytest.raises(EvidenceError, match="holds more than 10,000 values"):
        content_of(save(state))


def test_limits_on_what_is_hashed(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    many = save({"a": 1, "b": 2}, "many.pt")
    two = save({"a": WEIGHT, "b": WEIGHT + 1}, "two.pt")
    wide = save({"a": torch.ones(1).expand(100)}, "wide.pt")
    monkeypatch.setattr(digest, "MAX_LEAVES", 1)
    with pytest.raises(EvidenceError, match=r"many.pt: more than 1 tensors and values"):
        content_of(many)
    monkeypatch.undo()
    with pytest.raises(EvidenceError, match=r"two.pt: all tensors together exceed 50 bytes"):
        content_of(two, max_bytes=50)
    monkeypatch.setattr(tensor_sources, "MAX_STRIDED_ELEMENTS", 99)
    with pytest.raises(EvidenceError, match=r"wide.pt: an expanded or strided tensor is too large"):
        content_of(wide)
