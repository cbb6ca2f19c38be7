"""An audit on a CPU names what would be nondeterministic on CUDA: seven planted, seven named."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from torch_documentation import (
    RELEASES,
    Lists,
    documented,
    lists_of,
    not_documented,
    not_in_the_table,
    recorded,
)

from gate.evidence.operator_records import OperatorAudit, OperatorRow, OperatorUse, Span
from gate.training.operator_tables import (
    CPU,
    CUDA,
    ON_CUDA_AND_CPU,
    InStrictMode,
    Release,
    release_of,
    watch_list,
    watched_operators,
)
from gate.verdict.operator_findings import operator_rows

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = pytest.mark.torch
# The line of each planted operator is marked; four of the seven run in the backward pass alone.
PLANTED = """
import torch
from torch import nn
from torch.nn import functional as F

model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
place = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1]])
other = {
    "sums": lambda x: torch.zeros(2, 4).scatter_add_(1, place, x),  # scatter_add
    "rows": lambda x: torch.zeros(2, 4).index_add(0, place[0, :2], x),  # index_add
    "running": lambda x: x.cumsum(1),  # cumsum
    "picked": lambda x: x.gather(1, place),  # gather
    "image": lambda x: F.interpolate(x.view(1, 2, 2, 2), scale_factor=2, mode="bilinear"),  # image
    "framed": lambda x: F.pad(x.view(1, 2, 2, 2), (1, 1, 1, 1), mode="reflect"),  # framed
    "cells": lambda x: F.adaptive_max_pool2d(x.view(1, 2, 2, 2), 1),  # cells
}
harmless = [
    lambda x: place.cumsum(1).float(),
    lambda x: x.median(),
    lambda x: torch.bincount(place.flatten()).float(),
    lambda x: F.interpolate(x.view(1, 2, 2, 2), scale_factor=2, mode="nearest"),
    lambda x: x.scatter(1, place, 2.0),
    lambda x: x.scatter_reduce(1, place, x, "amax").detach(),
]
for step in range(2):
    x = model(torch.arange(8.0).view(2, 4))
    parts = [one(x) for one in (*other.values(), *harmless)]
    loss = sum(part.square().mean() for part in parts)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
# One call of every row of the table that a CPU can make.
EVERY_ROW = """
import torch
from torch import nn
from torch.nn import functional as F

model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
place = torch.tensor([0, 1, 1])

def some(*shape):
    return torch.rand(*shape) + 0 * model(torch.ones(1, 1)).sum()

def taken():
    bag = nn.EmbeddingBag(5, 3, mode="max")(place, torch.tensor([0]))
    sparse = torch.eye(3).expand(2, 3, 3).to_sparse()
    image, volume, many = some(1, 2, 6, 6), some(1, 2, 6, 6, 6), some(2, 5, 2)
    yield bag
    yield torch.bmm(sparse, some(2, 3, 3))
    yield F.avg_pool3d(volume, 2)
    yield F.adaptive_avg_pool2d(image, 2)
    yield F.adaptive_avg_pool3d(volume, 2)
    yield F.adaptive_max_pool2d(image, 2)
    yield F.fractional_max_pool2d(image, 2, output_size=2)
    yield F.fractional_max_pool3d(volume, 2, output_size=2)
    yield F.max_pool3d(volume, 2)
    yield F.interpolate(some(1, 2, 4), scale_factor=2, mode="linear")
    for mode in ("bilinear", "bicubic"):
        yield F.interpolate(image, scale_factor=2, mode=mode)
        yield F.interpolate(image, scale_factor=2, mode=mode, antialias=True)
    yield F.interpolate(volume, scale_factor=2, mode="trilinear")
    for mode in ("reflect", "replicate"):
        yield F.pad(image, (1, 1, 1, 1), mode=mode)
    yield F.cross_entropy(image, torch.zeros(1, 6, 6, dtype=torch.long))
    labels, lengths = torch.tensor([[1, 2]]), (torch.tensor([5]), torch.tensor([2]))
    yield F.ctc_loss(some(5, 1, 4).log_softmax(-1), labels, *lengths)
    yield some(5).put(place, some(3), accumulate=True)
    yield torch.histc(torch.rand(9))
    yield torch.bincount(place, torch.rand(3))
    yield some(3, 3).median(0).values
    yield F.grid_sample(image, some(1, 3, 3, 2), align_corners=False)
    yield some(3).cumsum(0)
    for reduce in ("prod", "sum"):
        yield some(5).scatter_reduce(0, place, some(3), reduce)
    yield nn.Embedding(5, 3)(place)
    yield F.conv2d(image, some(1, 2, 3, 3))
    yield some(5).index_put((place,), some(3))
    yield some(5).scatter_add(0, place, some(3))
    yield some(5).gather(0, place)
    yield some(5).index_add(0, place, some(3))
    yield some(5).index_select(0, place)
    yield some(5).index_copy(0, place, some(3))
    yield some(5).scatter(0, place, some(3))
    yield F.scaled_dot_product_attention(*(some(1, 2, 4, 8) for _ in range(3)))

loss = sum(part.sum() for part in taken())
loss.backward()
optimizer.step()
"""
EXPECTED = {
    "scatter_add": "# scatter_add",
    "index_add": "# index_add",
    "cumsum": "# cumsum",
    "scatter_add, as in gather's backward": "# gather",
    "interpolate backward": "# image",
    "reflection_pad backward": "# framed",
    "adaptive_max_pool2d backward": "# cells",
}


@pytest.fixture(scope="module")
def rows(harness: Harness) -> tuple[OperatorRow, ...]:
    """What a verdict says of an audit of the planted script on this machine's CPU."""
    return _audited(harness, PLANTED)


def _audited(harness: Harness, script: str) -> tuple[OperatorRow, ...]:
    ended = harness.run(script, REPRO_GATE_MODE="audit", REPRO_GATE_WATCH=watch_list())
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.document("summary")["problems"] == []
    uses = tuple(map(_use, ended.document("operators")["uses"]))
    return operator_rows(OperatorAudit(uses=uses), installed())


def installed() -> Release:
    """The release of the torch that these tests run with."""
    return release_of(version("torch"))


def _use(told: dict[str, Any]) -> OperatorUse:
    spans = tuple(Span(first=first, last=last, calls=calls) for first, last, calls in told["spans"])
    return OperatorUse.model_validate({**told, "spans": spans})


def test_seven_planted_seven_named_each_with_its_line(rows: tuple[OperatorRow, ...]) -> None:
    lines = PLANTED.splitlines()
    places = {
        name: next(at for at, line in enumerate(lines, 1) if line.endswith(marker))
        for name, marker in EXPECTED.items()
    }
    named = {row.operator: row.where for row in rows if "(backward)" not in row.where}
    backward = {row.operator: row.where for row in rows if "(backward)" in row.where}
    assert set(named) | set(backward) == set(EXPECTED)
    forward = ("scatter_add", "index_add", "cumsum")
    assert named == {name: f"script.py:{places[name]}" for name in forward}
    # the backward pass of a cumulative sum is one as well
    assert backward == {
        name: f"script.py:{places[name]} (backward)"
        for name in EXPECTED
        if name not in {"scatter_add", "index_add"}
    }


def test_each_row_says_what_strict_mode_does(rows: tuple[OperatorRow, ...]) -> None:
    flags = {row.operator: row.flag for row in rows}
    assert flags["interpolate backward"] == "on CUDA: deterministic in strict mode"
    assert flags["adaptive_max_pool2d backward"] == "on CUDA: refused by strict mode"
    assert all(row.calls_per_step == "1" and row.steps == "1-2" for row in rows)


def test_every_row_of_the_table_is_found_by_a_cpu(harness: Harness) -> None:
    found = {row.operator for row in _audited(harness, EVERY_ROW) if row.reach.on_cuda}
    rows = [row for row in ON_CUDA_AND_CPU if row.device != CPU and not row.told_by_torch]
    assert found == {row.shown for row in rows if row.holds(installed())}


def documented_here() -> Lists:
    import torch  # noqa: PLC0415 - the tests of this file alone need it here

    return lists_of(str(torch.use_deterministic_algorithms.__doc__))


def test_the_documentation_is_read_whole() -> None:
    bullets = documented(documented_here())
    assert len(bullets) >= 48
    assert {one.strict for one in bullets} == set(InStrictMode)


def test_every_operator_that_torch_documents_is_in_the_table_and_no_other() -> None:
    lists = documented_here()
    missing = not_in_the_table(lists, installed())
    assert missing == [], "gate/training/operator_tables.py lacks these"
    assert not_documented(lists, installed()) == []


def test_the_installed_torch_documents_what_was_recorded_of_its_release() -> None:
    known = {RELEASES[of]: lists for of, lists in recorded().items()}
    if installed() not in known:
        pytest.skip(f"nothing is recorded of torch {version('torch')}")
    assert documented_here() == known[installed()]


def test_every_name_of_the_table_is_an_operator_of_this_torch() -> None:
    import torch  # noqa: PLC0415 - as above

    registered = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    families = {name.partition("(")[0] for row in ON_CUDA_AND_CPU for name in row.seen}
    assert families - registered == set()


@pytest.mark.parametrize("release", [(2, 10), (2, 13), (2, 14), (3, 0)])
def test_no_row_says_two_things_about_one_call(release: Release) -> None:
    for device in (CUDA, CPU):
        seen = [
            (name, direction)
            for row in ON_CUDA_AND_CPU
            if row.device in ("any", device) and row.holds(release)
            for name in row.seen
            for direction in (
                ("forward", "backward") if row.direction == "any" else (row.direction,)
            )
        ]
        assert len(seen) == len(set(seen))
    assert len(watched_operators()) == len(set(watched_operators()))
