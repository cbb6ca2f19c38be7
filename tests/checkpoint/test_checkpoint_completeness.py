"""Parts of a training are known by their shape, and what cannot be told is never missing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gate.checkpoint.completeness import (
    Contents,
    Need,
    Part,
    State,
    contents_of,
    lacks,
    needs_of_file,
    review,
)
from gate.checkpoint.formats.formats import open_state
from gate.checkpoint.leaves import HeldBytes, Leaf, StateContent, TensorLeaf, ValueLeaf
from gate.checkpoint.state_tree import below, no_storages, node_leaves
from gate.system.files.files import LocalFiles


def _contents(*leaves: Leaf, name: str = "state.pt") -> Contents:
    return contents_of(StateContent(shown=name, format="test", leaves=leaves))


def _tensor(path: str, dtype: str, *shape: int) -> TensorLeaf:
    return TensorLeaf(path, dtype, shape, HeldBytes(bytes(8)))


def _int(path: str, number: int) -> ValueLeaf:
    return ValueLeaf(path, "int", number.to_bytes(number.bit_length() // 8 + 1, "little"))


def test_states_of_generators_are_known_under_any_name() -> None:
    python = [*below("/q", node_leaves(random.getstate(), no_storages))]
    found = _contents(
        _tensor("/p", "U8", 5056),
        _tensor("/o[0]", "U8", 16),
        ValueLeaf("/n[0]", "text", b"MT19937"),
        _tensor("/n[1]", "U32", 624),
        *python,
    )
    assert found.places == {
        Part.TORCH: ("/p",),
        Part.CUDA: ("/o[0]",),
        Part.NUMPY: ("/n",),
        Part.PYTHON: ("/q",),
    }


def test_a_seed_is_no_state_and_a_limit_is_no_counter() -> None:
    found = _contents(_int("/seed", 5), _int("/max_steps", 9), _int("/save_every_steps", 3))
    assert found.places == {}
    assert [lack.known for lack in lacks(found, [Need(part=Part.TORCH)])] == [True]


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        (_tensor("/extra", "RAW", 100), "/extra has an unknown form"),
        (ValueLeaf("/rng", "bytes", b"x" * 40), "/rng has an unknown form"),
    ],
)
def test_what_may_lie_in_an_unknown_form_is_not_missing(hidden: Leaf, shown: str) -> None:
    (lack,) = lacks(_contents(hidden), [Need(part=Part.NUMPY)])
    assert (lack.known, lack.why) == (False, shown)


def test_texts_beside_a_state_hide_nothing() -> None:
    found = _contents(_tensor("/README.md", "RAW", 9), _tensor("/tokenizer.model", "RAW", 9))
    assert [lack.known for lack in lacks(found, [Need(part=Part.NUMPY)])] == [True]


def test_a_step_in_the_name_of_the_file_is_one() -> None:
    weights = _tensor("/model/layer.weight", "F32", 2)
    assert Part.PROGRESS not in _contents(weights).places
    assert _contents(weights, name="runs/checkpoint-500").of(Part.PROGRESS) == ("checkpoint-500",)


def test_the_rank_without_a_random_state_is_named() -> None:
    found = _contents(
        *(_tensor(f"/rng_state_{rank}/cpu", "U8", 5056) for rank in (0, 2)),
    )
    texts = [lack.what for lack in lacks(found, needs_of_file(found))]
    assert "random state of torch (rank 1)" in texts


def test_moments_of_the_second_optimizer_are_counted() -> None:
    found = _contents(
        _tensor("/a/state{0}/exp_avg", "F32", 2), _int("/a/param_groups[0]/params[0]", 0)
    )
    (lack,) = lacks(found, [Need(part=Part.OPTIMIZER, slots={"exp_avg": 2})])
    assert lack.what == "optimizer's exp_avg of 1 of 2 parameters"
    (lack,) = lacks(found, [Need(part=Part.OPTIMIZER, slots={"exp_avg": 1, "exp_avg_sq": 1})])
    assert lack.what == "optimizer's exp_avg_sq"


def test_moments_in_an_unknown_layout_are_not_missing() -> None:
    found = _contents(_tensor("/optimizer/fp32_flat", "F32", 200))
    assert lacks(found, [Need(part=Part.OPTIMIZER, slots={"exp_avg": 2})]) == ()


@pytest.mark.torch
def test_a_file_alone_tells_of_a_scheduler_and_of_moments(tmp_path: Path) -> None:
    import torch  # noqa: PLC0415

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state: dict[str, object] = {
        "m": model.state_dict(),
        "o": optimizer.state_dict(),
        "r": torch.get_rng_state(),
    }
    assert _missing(tmp_path, state) == {Part.SCHEDULER}
    state["s"] = scheduler.state_dict()
    assert _missing(tmp_path, state) == set()
    state["o"] = optimizer.state_dict() | {"state": {}}
    assert _missing(tmp_path, state) == {Part.OPTIMIZER}


def _missing(folder: Path, state: object) -> set[Part]:
    import torch  # noqa: PLC0415

    torch.save(state, folder / "state.pt")
    with open_state(LocalFiles(), folder / "state.pt", "state.pt", max_bytes=10**7) as content:
        rows = review(contents_of(content))
    return {row.part for row in rows if row.state is State.MISSING}
