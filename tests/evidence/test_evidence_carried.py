"""What a training used decides what its checkpoint lacks, on every rank."""

from __future__ import annotations

import pytest

from gate.checkpoint.completeness import Contents, Part
from gate.evidence.carried import resumability
from gate.evidence.observations import (
    Carried,
    LoaderPlace,
    Override,
    OverrideKind,
    SavedAt,
    SeedScope,
)

ALL = Contents(
    places={part: (f"/{part.value}",) for part in Part if part is not Part.LOADER_RANDOM},
    slots={"exp_avg": 1},
)


def _without(*parts: Part) -> Contents:
    places = {part: paths for part, paths in ALL.places.items() if part not in parts}
    return Contents(places=places, slots=ALL.slots)


def _carried(*drawn: str, state: str = "a:1", saves: tuple[SavedAt, ...] = ()) -> Carried:
    return Carried.model_validate(
        {
            "drawn": drawn,
            "states": dict.fromkeys(drawn, state),
            "own_generator": False,
            "schedulers": (),
            "saves": saves,
        }
    )


def _saved(order: str, epoch: int, path: str = "out/last.pt") -> SavedAt:
    place = LoaderPlace.model_validate(
        {"batches": 3, "length": 8, "order": order, "epoch": epoch, "reseeded": False}
    )
    return SavedAt(path=path, step=11, file="train.py", line=9, loader=place)


def _lacks(
    contents: Contents, *ranks: Carried | None, overrides: tuple[Override, ...] = ()
) -> list[str]:
    carried = dict(enumerate(ranks))
    found = resumability(contents, "last.pt", carried, ["state/model/0/w"], overrides)
    return [lack.what for lack in found.lacks]


def test_what_was_not_used_is_not_missing() -> None:
    unused = (Part.SCALER, Part.AVERAGE, Part.SCHEDULER, Part.OPTIMIZER, Part.TORCH, Part.NUMPY)
    assert _lacks(_without(*unused), _carried()) == []
    assert _lacks(_without(*unused), _carried("numpy")) == ["random state of NumPy"]


def test_a_run_that_tells_nothing_of_its_generators_accuses_no_checkpoint() -> None:
    assert _lacks(_without(Part.TORCH, Part.NUMPY, Part.LOADER), None) == []


def test_ranks_that_draw_alike_need_one_state_and_others_one_each() -> None:
    alike = (_carried("torch"), _carried("torch"))
    assert _lacks(ALL, *alike) == []
    apart = (_carried("torch"), _carried("torch", state="a:2"))
    assert _lacks(ALL, *apart) == ["random state of torch (1 of 2 ranks)"]


def test_each_device_that_is_drawn_from_needs_its_state() -> None:
    drawn = _carried("cuda").model_copy(update={"devices_drawn": 2})
    assert _lacks(ALL, drawn) == ["random state of CUDA (1 of 2 devices)"]
    both = {**ALL.places, Part.CUDA: ("/cuda[0]", "/cuda[1]")}
    assert _lacks(Contents(places=both, slots=ALL.slots), drawn) == []
    assert _lacks(ALL, drawn.model_copy(update={"devices_drawn": 1})) == []


@pytest.mark.parametrize(
    ("name", "step", "lacking"),
    [
        ("torch.manual_seed", 5, []),
        ("torch.manual_seed", 1, ["random state of torch"]),
        ("random.seed", 5, ["random state of torch"]),
    ],
)
def test_a_generator_that_is_seeded_on_the_way_is_not_missing(
    name: str, step: int, lacking: list[str]
) -> None:
    seeded = Override(
        before="", file="train.py", step=step, kind=OverrideKind.RESEED, name=name,
        after="5", line=3, closed=False, restored=False, scope=SeedScope.GLOBAL, rank=0, pid=1,
    )  # fmt: skip
    assert _lacks(_without(Part.TORCH), _carried("torch"), overrides=(seeded,)) == lacking


@pytest.mark.parametrize(
    ("order", "epoch", "needed"),
    [("plain", 4, False), ("epoch", 4, False), ("torch", 1, False), ("torch", 2, True)],
)
def test_a_step_tells_the_position_where_the_order_can_be_had_again(
    order: str, epoch: int, *, needed: bool
) -> None:
    contents = Contents(places=_without(Part.LOADER).places, numbers=frozenset({11}))
    carried = _carried("torch", saves=(_saved(order, epoch),))
    lacking = ["position of the DataLoader"] if needed else []
    assert _lacks(contents, carried) == lacking
    # an epoch alone does not say how far it was
    assert _lacks(_without(Part.LOADER), carried) == ["position of the DataLoader"]


def test_a_save_into_the_file_before_is_told_unless_files_take_turns() -> None:
    one = _saved("plain", 2).model_copy(update={"in_place": True})
    other = one.model_copy(update={"path": "out/last.pt.2", "step": 9})
    for saves, overwritten in (
        ((one,), True),
        ((one, other), False),
        ((_saved("plain", 2),), False),
    ):
        found = resumability(ALL, "last.pt", {0: _carried(saves=saves)}, [], ())
        assert found.overwritten is overwritten


def test_the_save_of_the_named_file_counts_and_not_another_one() -> None:
    carried = _carried("torch", saves=(_saved("torch", 2, path="out/best.pt"),))
    assert _lacks(_without(Part.LOADER), carried) == []
    folder = _carried("torch", saves=(_saved("torch", 2, path="out/last.pt.tmp"),))
    assert _lacks(_without(Part.LOADER), folder) == ["position of the DataLoader"]


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ({Part.MODEL: ("/w",)}, "model or the average of its weights"),
        ({Part.MODEL: ("/model",), Part.PROGRESS: ("/epoch",)}, "average of the weights"),
    ],
)
def test_of_weights_alone_nobody_knows_whether_they_are_the_average(
    places: dict[Part, tuple[str, ...]], expected: str
) -> None:
    names = ["state/model/0/w", "state/average/0/w"]
    found = resumability(Contents(places=places), "swa.pt", {0: _carried()}, names, ())
    assert expected in [lack.what for lack in found.lacks]
