"""Where a training ran: all of its ranks, and what counts as another place."""

from __future__ import annotations

import pytest
from evidence_cases import evidence_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import RunError
from gate.pipelines.runs import refuse_unusable
from gate.records.observed.evidence import Environment
from gate.records.settings import Device

names = st.sampled_from(("device", "driver", "nccl", "torch"))
environments = st.dictionaries(names, st.sampled_from(("none", "a", "b"))).map(
    lambda parts: Environment(parts=parts)
)


@given(environments, environments)
def test_what_moved_is_the_same_from_either_side(one: Environment, other: Environment) -> None:
    assert one.moved(other) == other.moved(one)
    assert all(one.part(name) != other.part(name) for name in one.moved(other))
    assert one.moved(one) == ()


@given(environments)
def test_a_part_that_does_not_apply_is_as_good_as_absent(one: Environment) -> None:
    told = Environment(parts={"device": "none", "driver": "none", "nccl": "none", **one.parts})
    assert one.moved(told) == ()


@pytest.mark.parametrize(
    ("device", "on_gpu", "ranks_on_cpu"),
    [
        ("cpu", False, True),
        ("NVIDIA A10", True, False),
        ("NVIDIA A10 | cpu", True, True),
        ("NVIDIA A10 | NVIDIA H100", True, False),
        ("none", False, True),
    ],
)
def test_one_rank_on_a_cpu_is_seen_among_those_on_a_gpu(
    device: str,
    on_gpu: bool,  # noqa: FBT001 - a column of the table
    ranks_on_cpu: bool,  # noqa: FBT001 - as above
) -> None:
    found = Environment(parts={"device": device})
    assert (found.on_gpu, found.ranks_on_cpu) == (on_gpu, ranks_on_cpu)


def test_a_rank_that_fell_back_to_the_cpu_is_an_error_where_a_gpu_is_demanded() -> None:
    run = evidence_of(parts={"device": "NVIDIA A10 | cpu"})
    train = {"command": ("python", "t.py"), "max_steps": 1, "device": Device.CUDA}
    with pytest.raises(RunError, match="the training ran on the CPU"):
        refuse_unusable(run, settings_of(train=train))
