"""The determinism budget: which fact gives a source which state, and that none is claimed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from each_row import each_row
from evidence_cases import PARTS, evidence_of, evidence_set_of, settings_of
from hypothesis import given
from hypothesis import strategies as st
from report_cases import delta

from gate.comparison.compare import compare_results
from gate.comparison.differences import Comparison, EnvironmentChange
from gate.evidence.observations import LiveThreads
from gate.evidence.run_evidence import DeviceFacts, HarnessProcess, RunEvidence
from gate.report.judged import budget_rows
from gate.system.machine import GpuFacts, MachineFacts, RankFacts
from gate.training.environment import Environment, UnlikeRank
from gate.verdict.determinism_budget import determinism_budget
from gate.verdict.verdict import ClusterSource, SourceState, SourceStatus

GPU = DeviceFacts(
    index=0, name="H100", capability="9.0", multiprocessors=132, memory_bytes=80, used=True
)
QUIET = {"OMP_DYNAMIC": "FALSE", "MKL_DYNAMIC": "FALSE"}
BOTH = ("strict-1", "strict-2")


def process(
    rank: int, variables: Mapping[str, str] = QUIET, devices: tuple[DeviceFacts, ...] = ()
) -> HarnessProcess:
    return HarnessProcess(
        pid=rank + 1,
        rank=rank,
        applied={"threads": "1"},
        variables=dict(variables),
        devices=devices,
    )


def run_of(
    label: str,
    *processes: HarnessProcess,
    parts: Mapping[str, str] = PARTS,
    group: str = "",
    unlike: tuple[UnlikeRank, ...] = (),
) -> RunEvidence:
    processes = processes or (process(0),)
    ranks = sorted({each.rank for each in processes})
    told = {"world_size": str(len(ranks)), **parts}
    return evidence_of(label).model_copy(
        update={
            "processes": processes,
            "environment": Environment(parts=told, unlike_ranks=unlike),
            "rank_facts": tuple(
                RankFacts(rank=rank, facts={"process_group": group} if group else {})
                for rank in ranks
            ),
            "live_threads": (LiveThreads(step=1, count=1),),
        }
    )


def budget_of(
    *runs: RunEvidence,
    strict: Comparison | None = None,
    baseline: Comparison | None = None,
    machine: MachineFacts | None = None,
) -> dict[ClusterSource, SourceState]:
    evidence = evidence_set_of(*runs).model_copy(update={"machine": machine})
    budget = determinism_budget(
        evidence, strict=strict or equal(*runs), default=None, baseline=baseline
    )
    return {source.kind: source for source in budget}


def equal(*runs: RunEvidence) -> Comparison:
    return compare_results(runs[0], runs[1], settings_of().compare, BOTH)


def ranks(number: int, **told: object) -> tuple[RunEvidence, ...]:
    processes = tuple(process(rank) for rank in range(number))
    return tuple(run_of(label, *processes, **told) for label in BOTH)  # type: ignore[arg-type]


def nccl_ranks(variable: str, group: str = "cpu:gloo,cuda:nccl") -> tuple[RunEvidence, ...]:
    variables = {**QUIET, "NCCL_ALGO": variable}
    processes = [
        process(rank, variables, (GPU.model_copy(update={"uuid": f"GPU-{rank}"}),))
        for rank in range(4)
    ]
    parts = {**PARTS, "device": "H100"}
    return tuple(run_of(label, *processes, parts=parts, group=group) for label in BOTH)


def test_one_process_on_a_cpu_exercises_no_source_of_a_cluster() -> None:
    budget = budget_of(*(run_of(label) for label in BOTH))
    assert {source.kind for source in budget.values()} == set(ClusterSource)
    others = [
        budget[source].state for source in ClusterSource if source is not ClusterSource.NEIGHBOURS
    ]
    assert others == [SourceStatus.NOT_EXERCISED] * 4
    neighbours = budget[ClusterSource.NEIGHBOURS]
    assert neighbours.state is SourceStatus.ELIMINATED
    assert neighbours.because == "one thread, regardless of other load on the machine"


@each_row(
    "spoiled",
    [
        {"processes": (process(0, {"OMP_DYNAMIC": "FALSE"}),)},
        {"processes": (process(0).model_copy(update={"applied": {"threads": "4"}}),)},
        {"environment": Environment(parts={**PARTS, "threads": "4"})},
        {"live_threads": ()},
        {"live_threads": (LiveThreads(step=2, count=3),)},
        {"rank_facts": ()},
        {"rank_facts": (RankFacts(rank=0, facts={"loader_workers": "2"}),)},
    ],
)
def test_without_each_fact_neighbours_are_recorded_and_not_eliminated(
    spoiled: dict[str, object],
) -> None:
    runs = [run_of(label).model_copy(update=spoiled) for label in BOTH]
    assert budget_of(*runs)[ClusterSource.NEIGHBOURS].state is SourceStatus.RECORDED


def test_a_sum_of_two_ranks_has_one_order_and_one_of_three_is_bounded_by_the_runs() -> None:
    assert budget_of(*ranks(2))[ClusterSource.REDUCTION].state is SourceStatus.ELIMINATED
    three = budget_of(*ranks(3))[ClusterSource.REDUCTION]
    assert (three.state, three.figure, three.runs) == (SourceStatus.BOUNDED, 0.0, 2)
    assert three.because == "3 ranks, and nothing shows one order of reduction"


def test_one_algorithm_of_nccl_in_every_rank_and_equal_runs_leave_one_order() -> None:
    pinned = budget_of(*nccl_ranks("Ring"))[ClusterSource.REDUCTION]
    assert pinned.state is SourceStatus.ELIMINATED
    assert pinned.because == (
        "all 4 ranks reduce by NCCL with one algorithm that is set, and 2 strict runs are equal"
    )


@each_row(
    ("variable", "group"),
    [
        ("", "cuda:nccl"),
        ("Tree", "cuda:nccl"),
        ("^NVLS", "cuda:nccl"),
        ("Ring,CollnetChain", "cuda:nccl"),
        ("Ring", "cpu:gloo,cuda:gloo"),
        ("Ring", ""),
    ],
)
def test_a_choice_that_is_left_to_nccl_or_another_library_is_not_eliminated(
    variable: str, group: str
) -> None:
    runs = nccl_ranks(variable, group)
    assert budget_of(*runs)[ClusterSource.REDUCTION].state is SourceStatus.BOUNDED


def test_runs_that_differ_bound_a_source_by_the_largest_relative_difference() -> None:
    runs = ranks(3)
    moved = (delta(1, 2e-7, within=False), delta(2, 3e-6, within=False))
    strict = equal(*runs).model_copy(update={"metrics": moved})
    budget = budget_of(*runs, strict=strict)
    assert budget[ClusterSource.REDUCTION].figure == pytest.approx(3e-6)
    assert budget[ClusterSource.PLACEMENT].figure == pytest.approx(3e-6)


def test_a_difference_without_a_figure_bounds_nothing() -> None:
    runs = ranks(3)
    unmeasured = delta(1, 2e-7, within=False).model_copy(update={"relative": None})
    strict = equal(*runs).model_copy(update={"metrics": (unmeasured,)})
    source = budget_of(*runs, strict=strict)[ClusterSource.REDUCTION]
    assert (source.state, source.figure) == (SourceStatus.RECORDED, None)
    assert source.because.endswith("; no figure bounds it")


def test_the_same_ranks_in_every_run_are_no_elastic_training() -> None:
    assert budget_of(*ranks(3))[ClusterSource.WORKERS].because == (
        "the same 3 ranks trained in all 2 runs, from first to last"
    )
    unlike = (ranks(3)[0], ranks(2)[1])
    workers = budget_of(*unlike, strict=equal(*ranks(2)))[ClusterSource.WORKERS]
    assert workers.state is SourceStatus.RECORDED
    assert workers.because.startswith("2 or 3 ranks trained")


def test_ranks_on_unlike_hardware_are_recorded_by_part() -> None:
    others = (
        UnlikeRank(rank=1, part="cpu", found="B", expected="A"),
        UnlikeRank(rank=1, part="packages", found="numpy 1.26 instead of 2.0"),
    )
    hardware = budget_of(*ranks(2, unlike=others))[ClusterSource.HARDWARE]
    assert (hardware.state, hardware.because) == (SourceStatus.RECORDED, "ranks differ in cpu")
    same = budget_of(*ranks(2))[ClusterSource.HARDWARE]
    assert (same.state, same.because) == (
        SourceStatus.ELIMINATED,
        "all 2 ranks have the same device, cpu",
    )


def test_a_baseline_of_another_machine_is_unlike_hardware_too() -> None:
    runs = tuple(run_of(label) for label in BOTH)
    changes = tuple(
        EnvironmentChange(part=part, expected="A", observed="B", comparable=False)
        for part in ("torch", "cpu")
    )
    baseline = equal(*runs).model_copy(update={"environment": changes})
    hardware = budget_of(*runs, baseline=baseline)[ClusterSource.HARDWARE]
    assert hardware.state is SourceStatus.RECORDED
    assert hardware.because == "the baseline was recorded with another cpu"


def test_two_gpus_of_one_process_are_placed_and_compared() -> None:
    pair = (GPU, GPU.model_copy(update={"index": 1, "multiprocessors": 114}))
    parts = {**PARTS, "device": "2 GPUs"}
    runs = [run_of(label, process(0, QUIET, pair), parts=parts) for label in BOTH]
    budget = budget_of(*runs)
    assert budget[ClusterSource.HARDWARE].because == "ranks differ in device"
    assert budget[ClusterSource.REDUCTION].state is SourceStatus.BOUNDED
    assert budget[ClusterSource.PLACEMENT].state is SourceStatus.BOUNDED


def test_what_is_known_of_neighbours_on_a_gpu_stands_there() -> None:
    gpu = GpuFacts(
        uuid="GPU-1", name="H100", memory_total="80 GiB", driver_version="1",
        compute_mode="Exclusive_Process", mig="Disabled", ecc="Enabled",
    )  # fmt: skip
    parts = {**PARTS, "device": "H100"}
    facts = {"cpus": "16", "allowed_cpus": "4", "memory_limit_bytes": str(8 * 2**30)}
    run = run_of("strict-1", process(0, QUIET, (GPU,)), parts=parts)
    run = run.model_copy(update={"rank_facts": (RankFacts(rank=0, facts=facts),)})
    budget = budget_of(run, run, machine=MachineFacts(gpus=(gpu,)))
    assert budget[ClusterSource.NEIGHBOURS].because == (
        "4 of 16 CPUs allowed, memory limit 8.0 GiB, 1 of 1 GPUs exclusive"
    )


def test_a_line_names_what_may_still_move_a_number_first() -> None:
    still = tuple(budget_of(*ranks(3)).values())
    moved = tuple(
        source.model_copy(update={"figure": 0.02}) if source.figure is not None else source
        for source in still
    )
    ((_, line),) = budget_rows(moved)
    assert line.text == (
        "reductions, placement bounded (moved a metric at most 2 % in 2 runs); neighbours "
        "recorded; elastic workers, unlike hardware eliminated"
    )
    # where no number moved, the line would say nothing that decides
    assert budget_rows(still) == budget_rows(()) == ()


@given(
    facts=st.dictionaries(st.text(max_size=12), st.text(max_size=20), max_size=4),
    group=st.text(max_size=30),
    parts=st.dictionaries(st.sampled_from(("device", "world_size", "threads")), st.text()),
)
def test_no_text_of_a_training_eliminates_what_its_ranks_do_not_show(
    facts: dict[str, str], group: str, parts: dict[str, str]
) -> None:
    processes = [process(rank, {}) for rank in (0, 2, 5)]
    runs = [run_of(label, *processes, parts={**PARTS, **parts}, group=group) for label in BOTH]
    runs = [
        run.model_copy(update={"rank_facts": (RankFacts(rank=0, facts=facts),)}) for run in runs
    ]
    states = {source: told.state for source, told in budget_of(*runs).items()}
    for source in (ClusterSource.REDUCTION, ClusterSource.NEIGHBOURS, ClusterSource.WORKERS):
        assert states[source] is not SourceStatus.ELIMINATED
