"""How many runs may go at the same time, on which cores, and in which turns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evidence_cases import evidence_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.evidence.observations import Source, SourceKind
from gate.evidence.run_evidence import RankRecord
from gate.evidence.step_columns import StepTiming, Timings
from gate.pipelines.turns import fits_beside, seconds_alone, uses_ports
from gate.settings.gate_settings import GateSettings
from gate.settings.levels import CostSettings
from gate.system.machine import Room
from gate.training.child_environment import threads_of_a_run
from gate.training.lanes import core_sets, in_groups, turns_of
from gate.training.plan import plan_gate, plan_record
from gate.training.runs import PlannedRun, RunMode

GIB = 1024**3
ROOMS = st.builds(
    lambda cpus, quota, free: Room(
        cpus=tuple(sorted(cpus)), cpu_quota=min(len(cpus), quota), free_bytes=free
    ),
    st.sets(st.integers(0, 255), min_size=1, max_size=64),
    st.integers(1, 64),
    st.integers(0, 1024 * GIB),
)
ASKED = st.one_of(st.sampled_from(["auto", "never"]), st.integers(2, 16))


@given(ROOMS, ASKED, st.integers(1, 8), st.integers(2, 10))
def test_sets_of_cores_are_disjoint_equally_wide_and_hold_a_runs_threads(
    room: Room, asked: str | int, threads: int, runs: int
) -> None:
    sets = core_sets(asked, threads, room, runs)
    flat = [cpu for one in sets for cpu in one]
    assert len(flat) == len(set(flat))
    assert set(flat) <= set(room.cpus)
    assert len({len(one) for one in sets}) <= 1
    assert len(sets) != 1
    assert len(sets) * threads <= room.cpu_quota or not sets
    assert all(len(one) >= threads for one in sets)
    assert len(sets) <= (asked if isinstance(asked, int) else 4)
    if asked == "never":
        assert not sets
    elif room.cpu_quota >= 2 * threads:
        assert len(sets) >= 2


def test_the_threads_that_the_user_sets_or_passes_on_count() -> None:
    """A run with more threads than cores takes many times as long."""
    room = Room(cpus=(0, 1, 2, 3), cpu_quota=4, free_bytes=64 * GIB)
    train = {"command": ("python", "a.py"), "max_steps": 3}
    own = settings_of(train={**train, "env": {"OMP_NUM_THREADS": "3"}})
    passed = settings_of(train={**train, "pass_env": ("OMP_NUM_THREADS",)})
    host = {"OMP_NUM_THREADS": "4"}

    def sets(settings: GateSettings) -> tuple[tuple[int, ...], ...]:
        return core_sets("auto", threads_of_a_run(settings, host), room, 2)

    assert sets(settings_of()) == ((0, 1), (2, 3))
    assert sets(own) == ()
    assert sets(passed) == ()


PLANS = st.builds(
    lambda repeats, priced: plan_gate(repeats, priced=priced), st.integers(2, 10), st.booleans()
)


@given(PLANS, st.integers(1, 8))
def test_each_run_has_one_turn_and_no_default_run_has_company(
    planned: tuple[PlannedRun, ...], lanes: int
) -> None:
    turns = turns_of(planned, lanes)
    made = [run for turn in turns for run in turn.runs]
    assert sorted(run.label for run in made) == sorted(run.label for run in planned)
    for turn in turns:
        assert len(turn.runs) == 1 or {run.mode for run in turn.runs} == {RunMode.STRICT}
        # the first two strict runs share a turn also where one goes after the other
        assert len(turn.runs) <= max(lanes, 2 if turn.staggered else 1)
        # in a turn of more than two, some steps would never be alone
        assert not turn.staggered or len(turn.runs) == 2


@pytest.mark.parametrize("lanes", [1, 2])
def test_default_runs_go_before_and_after_the_strict_pair(lanes: int) -> None:
    turns = turns_of(plan_gate(4, priced=True), lanes)
    assert [[run.label for run in turn.runs] for turn in turns] == [
        ["default-1"],
        ["strict-1", "strict-2"],
        ["default-2"],
        *([["strict-3", "strict-4"]] if lanes > 1 else [["strict-3"], ["strict-4"]]),
    ]
    assert [turn.staggered for turn in turns][:3] == [False, True, False]


def test_groups_keep_the_order() -> None:
    planned = plan_record(5)
    assert [len(turn.runs) for turn in in_groups(planned, 2)] == [2, 2, 1]
    assert tuple(run for turn in in_groups(planned, 3) for run in turn.runs) == planned


def test_memory_decides_how_many_go_together() -> None:
    run = evidence_of().model_copy(update={"peak_memory_bytes": 4 * GIB})
    room = Room(cpus=(0, 1), cpu_quota=2, free_bytes=11 * GIB)
    assert fits_beside(run, room, 2)
    assert not fits_beside(run, replace(room, free_bytes=10 * GIB), 2)
    assert not fits_beside(run, room, 3)


def test_two_runs_on_a_gpu_never_go_together() -> None:
    run = evidence_of()
    room = Room(cpus=(0, 1), cpu_quota=2, free_bytes=64 * GIB)
    assert fits_beside(run, room, 2)
    assert not fits_beside(run.model_copy(update={"device_memory_bytes": 1}), room, 2)
    parts = {**run.environment.parts, "device": "NVIDIA H200"}
    on_gpu = run.environment.model_copy(update={"parts": parts})
    assert not fits_beside(run.model_copy(update={"environment": on_gpu}), room, 2)


def test_what_takes_a_port_is_known() -> None:
    run = evidence_of()
    assert not uses_ports(run)
    rank = RankRecord(rank=1, steps=run.steps)
    assert uses_ports(run.model_copy(update={"ranks": (rank,)}))
    for call, takes in (("socket.connect", True), ("mmap.__new__", False)):
        source = Source(
            step=1,
            kind=SourceKind.UNSEEN,
            call=call,
            before="",
            after="",
            file="train.py",
            line=1,
            stack=(),
            worker=False,
            thread=False,
            rank=0,
        )
        assert uses_ports(run.model_copy(update={"sources": (source,)})) is takes


def test_the_second_waits_for_as_many_steps_as_are_timed() -> None:
    timings = Timings.of(
        StepTiming(step=step, seconds=0.5, harness_seconds=0.1) for step in range(1, 201)
    )
    told = {"timings": timings, "first_step_seconds": 5.0, "ready_seconds": 2.0}
    run = evidence_of().model_copy(update=told)
    few = CostSettings(warmup_steps=5, min_steps=10)
    # five seconds in which the next one starts, and 15 % of 200 steps
    assert round(seconds_alone(run, few), 6) == round(5.0 + 30 * 0.6, 6)
    more = CostSettings(warmup_steps=30, min_steps=20)
    assert round(seconds_alone(run, more), 6) == round(5.0 + 50 * 0.6, 6)
    assert seconds_alone(run.model_copy(update={"timings": Timings()}), few) == 0.0
