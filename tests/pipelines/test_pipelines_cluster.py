"""Runs on the nodes of a cluster, from the settings to a verdict; Slurm's programs are played."""

from __future__ import annotations

import json
import os
import shutil
import socket
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cluster_bench import SECRET, SETTINGS, ClusterBench
from each_row import each_row
from gate_bench import FILES, gate_call
from played_slurm import PlayedSlurm
from played_training import WITH_RANKS, Project

from gate.errors import RunError, SettingsError
from gate.evidence.harness_files import ENDINGS, HarnessFile
from gate.evidence.node_reports import NodeReport
from gate.isolation.cluster_processes import new_step
from gate.isolation.cluster_settings import ClusterEngine, ClusterSettings
from gate.isolation.process_request import ReadOnlyMount
from gate.isolation.scheduler import node_folder, this_owner
from gate.isolation.stop_signals import StopSignals
from gate.pipelines.call_setup import build_adapters
from gate.pipelines.case import Gated
from gate.pipelines.cluster_runs import STALE_HINT, gather, with_node_at_fault
from gate.pipelines.gate import judging, run_only
from gate.pipelines.node_collector import collect
from gate.pipelines.reader_questions import Answer, Question
from gate.settings.load import parse_settings
from gate.settings.reach import refuse_reach
from gate.system.clock import SystemClock
from gate.system.console import QuietProgress
from gate.system.node import NodeFacts
from gate.verdict.verdict import Outcome

NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "REPRO_GATE_NODE"),
    *("PET_NNODES", "PET_NODE_RANK"),
)


@pytest.fixture
def slurm(tmp_path: Path) -> PlayedSlurm:
    return PlayedSlurm(tmp_path / "slurm")


@pytest.fixture
def bench(project: Project, tmp_path: Path, slurm: PlayedSlurm) -> ClusterBench:
    made = ClusterBench(project, tmp_path / "out", slurm)
    made.settings()
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    """One call that went well, and what it left."""

    gated: Gated
    slurm: PlayedSlurm
    out: Path
    run: str


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Paired:
    """Made once: each whole call starts a dozen processes."""
    folder = tmp_path_factory.mktemp("cluster")
    slurm, project = PlayedSlurm(folder / "slurm"), Project(folder / "project")
    bench = ClusterBench(project, folder / "out", slurm)
    # one write for each line: print makes one for each word, and ranks share the stream
    told = (
        "import os\n"
        "os.write(1, repr(dict(os.environ)).encode())\n"
        f"words = [os.environ[one] for one in {NAMES!r}]\n"
        "os.write(1, ('\\n' + ' '.join(words) + '\\n').encode())\n"
    )
    project.write("train.py", told + WITH_RANKS)
    bench.settings()
    adapters = bench.adapters()
    gated = gate_call(bench.request(), adapters)
    return Paired(gated=gated, slurm=slurm, out=bench.out, run=adapters.run)


def test_a_pair_on_two_nodes_is_judged_with_every_rank(paired: Paired) -> None:
    verdict, (first, second) = paired.gated.verdict, paired.gated.evidence.runs
    assert verdict.outcome is Outcome.NO_BASELINE
    assert verdict.isolation.described == "job user (none on the gate's machine)"
    names = {tensor.name.partition("/")[0] for tensor in first.checkpoint.tensors}
    assert names == {"state", "state.rank1"}
    assert first.checkpoint.root == second.checkpoint.root
    assert {process.rank for process in first.processes} == {0, 1}


def test_the_environment_has_the_kind_of_the_nodes_and_cluster_json_their_names(
    paired: Paired,
) -> None:
    told = paired.gated.evidence.runs[0].environment.part("nodes")
    assert told.startswith("2 nodes of cpu, one switch")
    assert "n1" not in told
    document = json.loads((paired.out / "evidence" / "cluster.json").read_text())
    assert [node["name"] for node in document["nodes"]] == ["n1", "n2"]
    assert [node["address"] for node in document["nodes"]] == ["s1.n1", "s1.n2"]
    assert all(node["cpus"] and node["memory_bytes"] for node in document["nodes"])


def test_both_runs_are_steps_of_one_job_which_is_given_back(paired: Paired) -> None:
    ((submitted, _),) = paired.slurm.orders("sbatch")
    assert {"--no-requeue", "--export=NONE", "--nodes=2", "--ntasks-per-node=1"} <= set(submitted)
    # two runs, and after each one a look at what it left
    steps = [words for words, _ in paired.slurm.orders("srun")]
    jobs = [word for step in steps for word in step if word.startswith("--jobid")]
    assert jobs == 4 * ["--jobid=1"]
    assert all({"--kill-on-bad-exit=1", "--export=NONE"} <= set(step) for step in steps)
    assert paired.slurm.job("1")["state"] == "CANCELLED"


def test_nothing_is_left_in_the_shared_folder_or_on_a_node(paired: Paired) -> None:
    assert list(paired.slurm.shared.iterdir()) == []
    folder = node_folder(paired.run)
    assert list(folder.parent.glob(f"{folder.name}*")) == []


def test_no_secret_of_the_gate_reaches_a_program_of_slurm_or_a_node(paired: Paired) -> None:
    assert SECRET not in (paired.slurm.state / "orders").read_text()
    printed = (paired.out / "evidence/strict-1/output.txt").read_text()
    assert "MASTER_ADDR" in printed
    assert SECRET not in printed
    assert "GITHUB_TOKEN" not in printed


def test_ranks_find_each_other_by_the_usual_variables(paired: Paired) -> None:
    lines = (paired.out / "evidence/strict-1/output.txt").read_text().splitlines()
    told = {line.rpartition("} ")[2] for line in lines}
    assert {"0 2 0 127.0.0.1 0 2 0", "1 2 0 127.0.0.1 1 2 1"} <= told


def test_several_tasks_of_a_node_share_its_folder(bench: ClusterBench) -> None:
    bench.settings(engine="slurm", nodes=2, tasks_per_node=2)
    gated = bench.gate()
    assert {process.rank for process in gated.evidence.runs[0].processes} == {0, 1, 2, 3}


def test_a_repeat_may_go_to_other_nodes(bench: ClusterBench, slurm: PlayedSlurm) -> None:
    bench.settings(allocations=2, options={"exclude": "n9"})
    slurm.next(each=True)
    gated = bench.gate()
    excluded = [
        [word for word in words if word.startswith("--exclude")]
        for words, _ in slurm.orders("sbatch")
    ]
    assert excluded == [["--exclude=n9"], ["--exclude=n9,n1,n2"]]
    assert gated.verdict.isolation.described == (
        "job user (none on the gate's machine; repeated on other nodes)"
    )
    nodes = [{node.name for node in run.nodes} for run in gated.evidence.runs]
    assert nodes == [{"n1", "n2"}, {"n3", "n4"}]
    assert {slurm.job(job)["state"] for job in ("1", "2")} == {"CANCELLED"}


def test_other_nodes_that_are_the_same_are_an_error(bench: ClusterBench) -> None:
    bench.settings(allocations=2)
    with pytest.raises(RunError, match="job 2 was given a node of the first job"):
        bench.gate()


def test_a_difference_on_the_second_node_is_found(bench: ClusterBench, project: Project) -> None:
    project.play(rank1={"random": True})
    assert bench.gate().verdict.outcome is Outcome.NONDETERMINISTIC


def test_a_rank_that_fails_is_named_with_node_exit_code_and_step(
    bench: ClusterBench, project: Project
) -> None:
    project.play(rank0={"sleep": 30}, rank1={"exit": 7, "counted": {}})
    with pytest.raises(RunError, match=r"exited with 7 .*\(rank 1 on node n2, after step 3\)"):
        bench.gate()


def test_a_rank_that_is_killed_is_named_with_the_signal(
    bench: ClusterBench, project: Project
) -> None:
    kills = "import os\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\n"
    project.write("train.py", kills + WITH_RANKS)
    project.commit()
    with pytest.raises(RunError, match=r"killed by SIGKILL \(task 1 on node n2, before a step\)"):
        bench.gate()


@pytest.mark.parametrize(
    ("tasks_per_node", "told"),
    [
        # one launcher, whose own RANK is its node's number
        (1, "ranks 8, 9, 10 on node n2, after step 2"),
        (16, "rank 9 on node n2, after step 3"),
    ],
)
def test_of_several_ranks_on_a_node_those_are_named_whose_task_failed(
    tmp_path: Path, tasks_per_node: int, told: str
) -> None:
    settings = ClusterSettings(
        engine=ClusterEngine.SLURM, nodes=2, tasks_per_node=tasks_per_node, folder=str(tmp_path)
    )
    report = NodeReport(
        token="a" * 16,
        number=1,
        node=NodeFacts(name="n2"),
        files={"process-r1-7.json": "0" * 64},
        exits={"8": 0, "9": 1},
        steps={"10": 2, "8": 3, "9": 3},
    )
    step = new_step(settings, tmp_path, elsewhere=False)
    fault = with_node_at_fault(RunError("it failed"), (report,), step)
    assert fault.message == f"it failed ({told})"


def test_a_job_that_never_starts_is_an_error_and_is_cancelled(
    bench: ClusterBench, slurm: PlayedSlurm
) -> None:
    bench.settings(queue_seconds=0.3, options={"partition": "gpu", "constraint": "h100"})
    slurm.next(state="PENDING", reason="Resources")
    expected = (
        r"waited 0\.3 s for 2 nodes \(constraint h100, partition gpu\): job 1 did not start "
        r"\(Resources\)"
    )
    with pytest.raises(RunError, match=expected):
        bench.gate()
    assert slurm.job("1")["state"] == "CANCELLED"


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"state": "NODE_FAIL"}, "a node failed"),
        ({"state": "PREEMPTED"}, "another job preempted it"),
        ({"state": "TIMEOUT", "reason": "TimeLimit"}, r"it reached its time limit \(TimeLimit\)"),
        ({"state": "RUNNING", "restarts": 1}, "it was requeued 1 time"),
    ],
)
def test_what_ends_the_job_is_an_error_and_never_a_difference(
    bench: ClusterBench, slurm: PlayedSlurm, project: Project, facts: dict[str, object], told: str
) -> None:
    # while the first run trains, and the run itself ends as if nothing had happened
    path, changed = slurm.state / "jobs" / "1", json.dumps(facts)
    happens = (
        "import json, os, pathlib\n"
        f"job = pathlib.Path({str(path)!r})\n"
        "if os.environ['RANK'] == '1':\n"
        f"    job.write_text(json.dumps(json.loads(job.read_text()) | json.loads({changed!r})))\n"
    )
    project.write("train.py", happens + WITH_RANKS)
    project.commit()
    with pytest.raises(RunError, match=f"the cluster ended job 1: {told}"):
        bench.gate()


def test_a_run_that_takes_too_long_names_the_setting(bench: ClusterBench, project: Project) -> None:
    bench.settings(run_seconds=1)
    project.play(sleep=60)
    with pytest.raises(RunError, match=r"timed out after 1 s \(cluster\.run_seconds\)"):
        bench.gate()


def test_the_job_of_a_call_that_was_killed_is_cancelled_by_the_next(
    bench: ClusterBench, slurm: PlayedSlurm
) -> None:
    mine = this_owner("a" * 16)
    dead = f"repro-gate.run={'b' * 16} host={socket.gethostname()} pid={2**22 + 1} started=5"
    elsewhere = f"repro-gate.run={'c' * 16} host=another pid=1 started=5"
    for number, comment in enumerate((mine.comment, dead, elsewhere, "somebody's"), 1):
        facts = {"state": "RUNNING", "reason": "", "restarts": 0, "nodes": "", "comment": comment}
        (slurm.state / "jobs" / str(number)).write_text(json.dumps(facts))
    for run in ("b", "c"):
        (slurm.shared / f"call-{run * 16}" / "run").mkdir(parents=True)
    bench.gate()
    assert [path.name for path in slurm.shared.iterdir()] == [f"call-{'c' * 16}"]
    states = [slurm.job(str(number))["state"] for number in range(1, 5)]
    assert states == ["RUNNING", "CANCELLED", "RUNNING", "RUNNING"]


def test_a_copy_that_is_not_what_a_node_reported_is_an_error(
    bench: ClusterBench, slurm: PlayedSlurm
) -> None:
    srun = slurm.programs / "srun"
    # the shared folder shows this machine another file than the node wrote
    spoils = (
        "if name == 'srun' and 'node_collector' in str(arguments):\n"
        "    import atexit\n"
        "    late = lambda: [one.write_bytes(b'{}') for one in "
        "pathlib.Path(arguments[-2]).glob('1/summary-*')]\n"
        "    atexit.register(late)\n"
    )
    srun.write_text(srun.read_text().replace("jobs = state", f"{spoils}jobs = state"))
    with pytest.raises(RunError, match="is not the file that node n2 reported: its digest differs"):
        bench.gate()


class HurriedClock(SystemClock):
    """Half a minute goes by whenever somebody looks."""

    def __init__(self) -> None:
        self.looks = 0

    def seconds(self) -> float:
        self.looks += 1
        return 30.0 * self.looks


def asks_nothing(question: Question[Answer], mounts: tuple[ReadOnlyMount, ...] = ()) -> Answer:
    """Reads no report, since not all are there."""
    pytest.fail(f"asked for {question} in {mounts}")


def test_a_shared_folder_that_never_shows_a_nodes_report_is_an_error(
    bench: ClusterBench, tmp_path: Path
) -> None:
    settings = ClusterSettings(engine=ClusterEngine.SLURM, nodes=2, folder=str(tmp_path))
    step = new_step(settings, tmp_path, elsewhere=False)
    (tmp_path / "nodes" / "0").mkdir(parents=True)
    (tmp_path / "nodes" / "0" / "report.json").touch()
    told = r"the shared folder did not show the report of node 1 in 90 s"
    with pytest.raises(RunError, match=told) as caught:
        gather(
            replace(bench.adapters(), clock=HurriedClock()),
            asks_nothing,
            step,
            tmp_path / "out",
        )
    assert caught.value.hint == STALE_HINT


def test_a_node_reports_every_file_of_the_harness_but_no_digests_of_the_trainings_own(
    tmp_path: Path,
) -> None:
    base, target, token = tmp_path / "node-0", tmp_path / "reports", "a" * 16
    (base / "out").mkdir(parents=True)
    (base / token).touch()
    names = {f"{kind}-r0-7.{ENDINGS[kind]}" for kind in HarnessFile} - {"leaves-r0-7.json"}
    for name in (*names, "leaves-r0-7.json", "leaves-r1-8.json", "steps-r01-7.jsonl", "notes.txt"):
        (base / "out" / name).write_bytes(b"{}")
    report = collect(FILES, base, target, token, 0, "n1")
    assert set(report.files) == names
    assert {path.name for path in target.iterdir()} == names


def test_what_a_node_refuses_to_read_is_told_in_its_own_words(
    bench: ClusterBench, project: Project
) -> None:
    links = "for one in out.glob('state-r1-*'): one.unlink(); one.symlink_to('/etc/passwd')\n"
    project.write("train.py", WITH_RANKS + links)
    project.commit()
    with pytest.raises(RunError, match="a node could not report") as caught:
        bench.gate()
    assert "Traceback" not in str(caught.value)
    assert any("state-r1-" in line for line in caught.value.details), caught.value.details


def test_what_a_run_writes_into_the_shared_folder_itself_is_no_evidence(
    bench: ClusterBench, project: Project
) -> None:
    writes = "(here.parent / 'out' / 'leaves-r9-5.json').write_text('{}')\n"
    project.write("train.py", WITH_RANKS + writes)
    project.commit()
    assert {process.rank for process in bench.gate().evidence.runs[0].processes} == {0, 1}


def test_a_folder_that_is_not_there_is_an_error(bench: ClusterBench, tmp_path: Path) -> None:
    bench.settings(folder=str(tmp_path / "absent"))
    with pytest.raises(RunError, match=r"cluster\.folder .*/absent is not a folder"):
        bench.gate()


def test_what_sbatch_refuses_is_shown(bench: ClusterBench, slurm: PlayedSlurm) -> None:
    slurm.next(refuse="invalid partition specified: gpu")
    with pytest.raises(RunError, match="sbatch exited with 1") as caught:
        bench.gate()
    assert caught.value.details == ("sbatch: error: invalid partition specified: gpu",)


def test_a_machine_without_slurm_is_told_what_it_lacks(
    bench: ClusterBench, slurm: PlayedSlurm
) -> None:
    for program in slurm.programs.iterdir():
        program.unlink()
    if shutil.which("sbatch") is not None:
        pytest.skip("Slurm is installed here")
    with pytest.raises(RunError, match="sbatch is not on PATH"):
        bench.gate()


def test_the_nodes_evidence_is_judged_elsewhere_without_slurm(
    bench: ClusterBench, tmp_path: Path
) -> None:
    here = replace(bench.request(), out=tmp_path / "ran")
    run_only(here, bench.adapters())
    elsewhere = build_adapters(
        FILES, bench.project.path, QuietProgress(), StopSignals(), {"PATH": os.defpath}
    )
    request = replace(bench.request(), imported_runs=True)
    judged = judging(tmp_path / "ran" / "evidence")(request, elsewhere, None).verdict
    assert judged.outcome is Outcome.NO_BASELINE
    assert judged.imported_evidence
    assert judged.isolation.described == "job user (none on the gate's machine)"


def test_a_minimum_that_a_job_cannot_have_is_refused(bench: ClusterBench) -> None:
    text = SETTINGS + bench.cluster.settings() + "isolation: {minimum: uid}\n"
    bench.project.write("repro-gate.yml", text)
    bench.project.commit()
    with pytest.raises(RunError, match=r"isolation\.minimum is uid, and a job on the cluster"):
        bench.gate()


@each_row(
    ("section", "told"),
    [
        (
            "cluster: {engine: slurm, folder: /s, allocations: 2}\nruns: {when_reproduced: one}",
            "there may be no second run",
        ),
        ("cluster: {engine: slurm}", "engine: slurm needs folder"),
        ("cluster: {nodes: 2}", "nodes: more than one needs an engine"),
        ("cluster: {tasks_per_node: 2}", "tasks_per_node: more than one needs an engine"),
        ("cluster: {allocations: 2}", "allocations: more than one needs an engine"),
        ("cluster: {engine: slurm, folder: shared}", "absolute path"),
        ("cluster: {engine: slurm, folder: '/a b'}", "absolute path"),
        ("cluster: {engine: slurm, folder: /s, options: {export: ALL}}", "'export' is not one of"),
        ("cluster: {engine: slurm, folder: /s, options: {clusters: b}}", "'clusters' is not"),
        (
            "cluster: {engine: slurm, folder: /s, options: {gres: '$(id)'}}",
            "has a character that is not allowed",
        ),
        (
            "cluster: {engine: slurm, folder: /s}\nisolation: {mode: uid}",
            "isolation.mode: uid works on the gate's own machine alone",
        ),
    ],
)
def test_settings_that_no_cluster_can_have_are_refused(section: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(f"{SETTINGS}{section}\n".encode(), "repro-gate.yml")
    assert told in str(caught.value)


def test_a_pull_request_cannot_ask_for_nodes() -> None:
    text = SETTINGS + "cluster: {engine: slurm, folder: /s, options: {partition: gpu}}\n"
    with pytest.raises(SettingsError, match=r"cluster\.engine.*cluster\.options"):
        refuse_reach(parse_settings(text.encode(), "repro-gate.yml"), "repro-gate.yml")
