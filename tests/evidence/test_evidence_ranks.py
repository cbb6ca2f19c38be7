"""What each rank recorded by itself, and where replicas of one model first differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from evidence_cases import record_of, settings_of
from harness_folder import ENVIRONMENT, exact, step_line

from gate.errors import EvidenceError, GateError
from gate.evidence.collect import collect_run
from gate.evidence.harness_files import find_processes
from gate.evidence.ranks import read_end
from gate.evidence.run_evidence import ReplicaDrift, RunEvidence
from gate.system.files.files import LocalFiles
from gate.verdict.findings import replicas_differ

if TYPE_CHECKING:
    from harness_folder import HarnessFolder

WORLD = {**ENVIRONMENT, "world_size": "2"}
REPLICATED = [{"optimizer": 0, "ranks": [0, 1]}]
NAMES = {"0/0": "model/0/weight"}


def digest(word: int) -> str:
    return f"sha256:{word:064x}"


def rank_of(  # noqa: PLR0913 - each is another thing that a rank says
    harness: HarnessFolder,
    rank: int,
    *,
    parameters: tuple[int | None, ...] = (1, 2),
    structure: int = 7,
    weights: bytes = b"weights.",
    replicated: object = REPLICATED,
    world_size: str = "2",
) -> None:
    """A rank of two whose parameters have these digests after each step."""
    one = harness.of(rank=rank, pid=20 + rank)
    one.attest(node=f"n{rank}")
    lines = [
        step_line(
            step,
            parameters=None if word is None else digest(word),
            loss=exact(1.0 + rank),
            fingerprints={"structure": digest(structure)} if step == 1 else {},
        )
        for step, word in enumerate(parameters, 1)
    ]
    one.steps(*lines)
    one.state(weights)
    one.summary(
        environment={**WORLD, "world_size": world_size},
        steps=len(parameters),
        replicated=replicated,
        parameter_names=NAMES,
    )


def collected(harness: HarnessFolder, tmp_path: Path) -> RunEvidence:
    train = settings_of().train
    return collect_run(LocalFiles(), record_of(), harness.path, tmp_path, b"", train)


def test_each_rank_has_its_own_digests_losses_and_node(
    harness: HarnessFolder, tmp_path: Path
) -> None:
    rank_of(harness, 0)
    rank_of(harness, 1, parameters=(1, 3))
    run = collected(harness, tmp_path)
    assert [(one.rank, one.node) for one in run.ranks] == [(0, "n0"), (1, "n1")]
    own = [one.steps.observed[-1].parameters for one in run.ranks]
    assert own == [digest(2), digest(3)]
    # rank 0's are those of the run
    assert [one.name for one in run.ranks[0].metrics] == []
    assert [list(one.points.values) for one in run.ranks[1].metrics] == [[2.0, 2.0]]
    assert [list(one.points.values) for one in run.metrics] == [[1.0, 1.0]]


def test_one_rank_has_no_record_beside_the_runs(harness: HarnessFolder, tmp_path: Path) -> None:
    harness.whole()
    run = collected(harness, tmp_path)
    assert (run.ranks, run.replica_drift) == ((), None)


def test_replicas_that_differ_are_named_by_step_rank_and_parameter(
    harness: HarnessFolder, tmp_path: Path
) -> None:
    rank_of(harness, 0)
    rank_of(harness, 1, parameters=(1, 3), weights=b"another.")
    assert collected(harness, tmp_path).replica_drift == ReplicaDrift(
        step=2, equal_until=1, like=0, ranks=(1,), parameters=("model/0/weight",), differing=1
    )


def test_behind_the_last_fingerprint_the_states_at_the_end_tell(
    harness: HarnessFolder, tmp_path: Path
) -> None:
    """A script that ends before train.max_steps has no fingerprint of its last step."""
    for last, at_end in ((None, True), (2, None)):
        rank_of(harness, 0, parameters=(1, last))
        rank_of(harness, 1, parameters=(1, last), weights=b"another.")
        run = collected(harness, tmp_path)
        # where the last step was equal, what differs was written behind it
        assert (run.replica_drift is not None) is bool(at_end)
        if run.replica_drift is not None:
            assert run.replica_drift.at_end
            (found,) = replicas_differ(run)
            assert found.message == (
                "rank 1 has different weights than rank 0 at the end (equal after step 1), "
                "although DistributedDataParallel keeps them equal: weight"
            )
    rank_of(harness, 0, parameters=(1, None))
    rank_of(harness, 1, parameters=(1, None))
    assert collected(harness, tmp_path).replica_drift is None


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"replicated": []}, id="no-replica"),
        pytest.param({"structure": 8}, id="other-parameters"),
        pytest.param({"replicated": [{"optimizer": 0, "ranks": [1]}]}, id="a-group-of-its-own"),
        pytest.param({"replicated": [{"optimizer": 0, "ranks": [0, 1, 2]}]}, id="another-group"),
        pytest.param({"replicated": [{"optimizer": 1, "ranks": [0, 1]}]}, id="another-optimizer"),
    ],
)
def test_who_is_no_replica_is_not_accused(
    harness: HarnessFolder, tmp_path: Path, changes: dict[str, object]
) -> None:
    rank_of(harness, 0)
    rank_of(harness, 1, parameters=(1, 3), **changes)  # type: ignore[arg-type] # by name
    assert collected(harness, tmp_path).replica_drift is None


def test_digests_of_two_kinds_say_nothing_of_replicas(
    harness: HarnessFolder, tmp_path: Path
) -> None:
    rank_of(harness, 0)
    rank_of(harness, 1)
    lines = [step_line(step, parameters=f"poly:{step:064x}") for step in (1, 2)]
    harness.of(rank=1, pid=21).steps(*lines)
    assert collected(harness, tmp_path).replica_drift is None


def test_of_three_replicas_the_odd_one_is_named(harness: HarnessFolder, tmp_path: Path) -> None:
    told = [{"optimizer": 0, "ranks": [0, 1, 2]}]
    for rank, parameters in enumerate(((3, 2), (1, 2), (1, 2))):
        rank_of(harness, rank, parameters=parameters, replicated=told, world_size="3")
    drift = collected(harness, tmp_path).replica_drift
    assert drift is not None
    assert (drift.step, drift.like, drift.ranks, drift.differing) == (1, 1, (0,), 0)


def test_a_node_that_is_too_long_is_refused(harness: HarnessFolder, tmp_path: Path) -> None:
    harness.whole()
    harness.attest(node="n" * 101)
    with pytest.raises(EvidenceError, match="node"):
        collected(harness, tmp_path)


def refusal(harness: HarnessFolder, tmp_path: Path) -> EvidenceError:
    with pytest.raises(EvidenceError) as refused:
        collected(harness, tmp_path)
    return refused.value


def test_a_rank_that_ends_early_is_named_with_its_node_and_last_step(
    harness: HarnessFolder, tmp_path: Path
) -> None:
    rank_of(harness, 0, parameters=(1, 2, 3))
    rank_of(harness, 1)
    said = refusal(harness, tmp_path).message
    assert said == "rank 1 on n1 took 2 steps, rank 0 on n0 took 3"


def test_ranks_that_do_not_agree_how_many_there_are_are_refused(
    harness: HarnessFolder, tmp_path: Path
) -> None:
    rank_of(harness, 0)
    rank_of(harness, 1)
    other = {**WORLD, "world_size": "4"}
    harness.of(rank=1, pid=21).summary(environment=other)
    said = refusal(harness, tmp_path).message
    assert said == "rank 1 on n1 is one of 4 ranks, rank 0 on n0 one of 2"


def test_a_rank_that_left_nothing_is_named(harness: HarnessFolder, tmp_path: Path) -> None:
    rank_of(harness, 0)
    rank_of(harness, 1)
    for rank in (0, 1):
        harness.of(rank=rank, pid=20 + rank).summary(environment={**WORLD, "world_size": "4"})
    said = refusal(harness, tmp_path).message
    assert said == "ranks 2 and 3 of 4 left no step, the others took 2"


def test_a_variable_alone_makes_no_rank_missing(harness: HarnessFolder, tmp_path: Path) -> None:
    harness.whole(environment=WORLD)
    assert len(collected(harness, tmp_path).steps) == 2
    harness.summary(environment=WORLD, facts={"process_group": "cpu:gloo"})
    assert refusal(harness, tmp_path).message.startswith("rank 1 of 2 left no step")


def ends_of(harness: HarnessFolder) -> list[str]:
    files = LocalFiles()
    return [
        one.described
        for one in read_end(files, harness.path, find_processes(files, harness.path)).ranks
    ]


def test_of_a_failed_run_each_rank_says_how_far_it_came(harness: HarnessFolder) -> None:
    zero, one, two = (harness.of(rank=rank, pid=20 + rank) for rank in range(3))
    for rank in (zero, one, two):
        rank.attest(node="n2" if rank is two else "n1", world_size=4)
        rank.steps(step_line(1), step_line(2))
    zero.ended("builtins.RuntimeError")
    one.path.joinpath("exits-r0-9.jsonl").write_text(
        json.dumps({"pid": 21, "rank": 1, "code": -9})
        + "\n"
        + json.dumps({"pid": 22, "rank": 2, "code": -15})
        + "\n"
    )
    assert ends_of(harness) == [
        "rank 0 on n1: last step 2, failed with builtins.RuntimeError",
        "rank 1 on n1: last step 2, killed by SIGKILL",
        "rank 2 on n2: last step 2, still running when the others failed (SIGTERM)",
        "rank 3: no step, no word of its end",
    ]


def test_the_name_of_the_only_machine_is_left_out(harness: HarnessFolder) -> None:
    for rank in (0, 1):
        harness.of(rank=rank, pid=20 + rank).attest(node="runner-7", world_size=2)
    assert ends_of(harness) == [
        "rank 0: no step, no word of its end",
        "rank 1: no step, no word of its end",
    ]


def test_a_rank_that_never_came_to_torch_is_known_by_its_parent(harness: HarnessFolder) -> None:
    zero = harness.of(rank=0, pid=20)
    zero.attest(world_size=2)
    zero.path.joinpath("exits-r0-9.jsonl").write_text(
        json.dumps({"pid": 21, "rank": 1, "code": 7}) + "\n"
    )
    assert ends_of(harness) == [
        "rank 0: no step, no word of its end",
        "rank 1: no step, exit code 7",
    ]


def test_processes_of_two_nodes_may_have_one_id(harness: HarnessFolder) -> None:
    for rank, code in ((0, -15), (1, 7)):
        one = harness.of(rank=rank, pid=21)
        one.attest(node=f"n{rank}", world_size=2)
        one.path.joinpath(f"exits-r{rank}-9.jsonl").write_text(
            json.dumps({"pid": 21, "rank": rank, "code": code}) + "\n"
        )
    assert ends_of(harness) == [
        "rank 0 on n0: no step, still running when the others failed (SIGTERM)",
        "rank 1 on n1: no step, exit code 7",
    ]


@pytest.mark.parametrize("line", ["{", '{"pid": 1, "code": 1, "rank": -1}', '{"pid": 1}'])
def test_a_broken_record_of_exits_is_refused(harness: HarnessFolder, line: str) -> None:
    harness.attest()
    harness.path.joinpath("exits-r0-9.jsonl").write_text(line + "\n")
    with pytest.raises(GateError):
        ends_of(harness)


def test_one_process_has_no_ranks(harness: HarnessFolder) -> None:
    harness.whole()
    assert ends_of(harness) == []
