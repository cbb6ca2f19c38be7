"""Runs on nodes of any scheduler, by the programs of examples/cluster, whose ssh is played."""

from __future__ import annotations

import json
import re
import socket
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from cluster_bench import SECRET, SETTINGS, ClusterBench
from each_row import each_row
from played_hosts import PlayedHosts, PlayedKubernetes
from played_training import WITH_RANKS, Project

from gate.errors import RunError, SettingsError
from gate.isolation.scheduler import node_folder
from gate.settings.load import parse_settings
from gate.settings.reach import refuse_reach
from gate.verdict.verdict import Outcome

TOLD = (
    "import os\n"
    "names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', 'REPRO_GATE_NODE')\n"
    "os.write(1, (repr(dict(os.environ)) + '\\n').encode())\n"
    "os.write(1, (' '.join(os.environ[one] for one in names) + '\\n').encode())\n"
)


@pytest.fixture
def hosts(tmp_path: Path) -> PlayedHosts:
    return PlayedHosts(tmp_path / "hosts")


@pytest.fixture
def bench(project: Project, tmp_path: Path, hosts: PlayedHosts) -> ClusterBench:
    made = ClusterBench(project, tmp_path / "out", hosts)
    made.settings()
    return made


def test_a_pair_on_two_nodes_is_judged_with_every_rank(
    bench: ClusterBench, hosts: PlayedHosts, project: Project
) -> None:
    project.write("train.py", TOLD + WITH_RANKS)
    bench.settings(tasks_per_node=2)
    gated = bench.gate()
    first, second = gated.evidence.runs
    assert gated.verdict.outcome is Outcome.NO_BASELINE
    assert gated.verdict.isolation.described == "job user (none on the gate's machine)"
    assert {process.rank for process in first.processes} == {0, 1, 2, 3}
    assert first.checkpoint.root == second.checkpoint.root
    document = json.loads((bench.out / "evidence" / "cluster.json").read_text())
    assert [node["name"] for node in document["nodes"]] == ["n1", "n2"]
    printed = (bench.out / "evidence/strict-1/output.txt").read_text()
    lines = {line for line in printed.splitlines() if len(line.split()) == 5}
    assert {"0 4 0 n1 0", "1 4 1 n1 0", "2 4 0 n1 1", "3 4 1 n1 1"} <= lines
    # nothing of the gate's own is with a node, and nothing of the call's is left
    assert SECRET not in printed
    assert SECRET not in hosts.log.read_text()
    assert list(hosts.shared.iterdir()) == []


def test_a_repeat_may_go_to_other_nodes(bench: ClusterBench) -> None:
    bench.settings(allocations=2)
    gated = bench.gate()
    nodes = [{node.name for node in run.nodes} for run in gated.evidence.runs]
    assert nodes == [{"n1", "n2"}, {"n3", "n4"}]


@pytest.fixture
def kubernetes(tmp_path: Path) -> PlayedKubernetes:
    return PlayedKubernetes(tmp_path / "kubernetes")


def test_pods_of_an_indexed_job_are_nodes_too(
    project: Project, tmp_path: Path, kubernetes: PlayedKubernetes
) -> None:
    bench = ClusterBench(project, tmp_path / "out", kubernetes)
    project.write("train.py", TOLD + WITH_RANKS)
    bench.settings(allocations=2)
    gated = bench.gate()
    assert gated.verdict.outcome is Outcome.NO_BASELINE
    nodes = [{node.name for node in run.nodes} for run in gated.evidence.runs]
    assert nodes == [{"n1", "n2"}, {"n3", "n4"}]
    # pods reach each other by the names that a headless service gives
    printed = (bench.out / "evidence/strict-1/output.txt").read_text()
    assert re.search(r"^0 2 0 (repro-gate-[0-9a-f]{10})-0\.\1 0$", printed, re.MULTILINE)
    assert SECRET not in printed
    assert SECRET not in kubernetes.log.read_text()
    assert list(kubernetes.shared.iterdir()) == []


@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="needs kubernetes-validate")
def test_what_is_created_fits_the_schemas_of_kubernetes(
    project: Project, tmp_path: Path, kubernetes: PlayedKubernetes
) -> None:
    bench = ClusterBench(project, tmp_path / "out", kubernetes)
    bench.settings()
    project.play(exit=7)
    with pytest.raises(RunError, match="exited with 7"):
        bench.gate()
    validate = import_module("kubernetes_validate")
    documents = list(yaml.safe_load_all(kubernetes.manifest))
    assert [one["kind"] for one in documents] == ["Service", "Job"]
    for document in documents:
        validate.validate(document, validate.latest_version(), strict=True)


def test_a_rank_that_fails_ends_the_others_and_is_named_with_its_node(
    bench: ClusterBench, project: Project
) -> None:
    project.play(rank0={"sleep": 300}, rank1={"exit": 7, "counted": {}})
    with pytest.raises(RunError, match=r"exited with 7 .*\(rank 1 on node n2, after step 3\)"):
        bench.gate()


def test_a_difference_on_the_second_node_is_found(bench: ClusterBench, project: Project) -> None:
    project.play(rank1={"random": True})
    assert bench.gate().verdict.outcome is Outcome.NONDETERMINISTIC


def test_a_run_that_takes_too_long_names_the_setting(
    bench: ClusterBench, hosts: PlayedHosts, project: Project
) -> None:
    bench.settings(run_seconds=1)
    project.play(sleep=600)
    with pytest.raises(RunError, match=r"timed out after 1 s \(cluster\.run_seconds\)"):
        bench.gate()
    # what the run left on its nodes goes with the agents
    run = re.search(r"/call-([0-9a-f]+)/", hosts.log.read_text())
    assert run is not None
    left = [Path(f"{node_folder(run[1])}-{number}") for number in range(2)]
    until = time.monotonic() + 60
    while any(map(Path.exists, left)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(Path.exists, left))
    assert list(hosts.shared.iterdir()) == []


def test_nodes_that_never_begin_are_an_error(bench: ClusterBench, hosts: PlayedHosts) -> None:
    bench.settings(queue_seconds=1)
    hosts.becomes("n2", "busy")
    with pytest.raises(RunError, match=r"waited 1 s for 2 nodes: job \S+ did not start"):
        bench.gate()
    assert list(hosts.shared.iterdir()) == []


def test_a_job_that_ends_by_itself_is_an_error_in_the_words_of_the_program(
    bench: ClusterBench, hosts: PlayedHosts
) -> None:
    hosts.becomes("n2", "down")
    words = (
        r"the cluster ended job \S+: it ended before the gate was done with it \(node 1 has ended: "
        r"ssh: connect to host n2: Connection refused\)"
    )
    with pytest.raises(RunError, match=words):
        bench.gate()


def test_a_job_that_ends_while_a_run_trains_is_never_a_difference(
    bench: ClusterBench, hosts: PlayedHosts, project: Project
) -> None:
    # the one node's connection is lost, and the run itself ends as if nothing had happened
    lost = (
        "import os, pathlib, time\n"
        "of_rank_1 = 'repro-gate-job.*/pids' if os.environ['RANK'] == '1' else 'nothing'\n"
        "files = pathlib.Path('/tmp').glob(of_rank_1)\n"
        "for pid in (file.read_text().split()[1] for file in files):\n"
        "    line = pathlib.Path(f'/proc/{pid}/cmdline')\n"
        # those of other calls may have ended
        f"    if line.exists() and {str(hosts.shared)!r} in line.read_text():\n"
        "        os.kill(int(pid), 9)\n"
        "        time.sleep(20)\n"
    )
    project.write("train.py", lost + WITH_RANKS)
    project.commit()
    with pytest.raises(RunError, match=r"the cluster ended job \S+: it ended before the gate"):
        bench.gate()


def test_the_job_of_a_call_that_was_killed_is_cancelled_by_the_next(
    bench: ClusterBench, hosts: PlayedHosts
) -> None:
    cancelled = hosts.folder / "cancelled"
    cancel = f'#!/bin/sh\necho "$1" >>{cancelled}\nexec {hosts.programs}/cancel "$1"\n'
    hosts.write(hosts.folder / "cancel", cancel)
    bench.settings(programs={**hosts.paths, "cancel": str(hosts.folder / "cancel")})
    for run, host in (("b", socket.gethostname()), ("c", "another")):
        job = hosts.shared / f"call-{run * 16}" / "job-1"
        job.mkdir(parents=True)
        owner = f"repro-gate.run={run * 16} host={host} pid={2**22 + 1} started=5"
        (job / "owner").write_text(owner)
        (job / "job").write_text(f"job-of-{run}")
    bench.gate()
    assert [path.name for path in hosts.shared.iterdir()] == [f"call-{'c' * 16}"]
    assert cancelled.read_text().splitlines()[0] == "job-of-b"
    assert "job-of-c" not in cancelled.read_text()


@each_row(
    ("program", "told"),
    [
        ("echo no queue is open; exit 3", "exited with 3"),
        ("true", "prints no name of a job in its last line"),
        ("echo 'a job; rm -rf /'", "prints no name of a job in its last line"),
    ],
)
def test_what_submit_says_wrong_is_shown(
    bench: ClusterBench, hosts: PlayedHosts, program: str, told: str
) -> None:
    mine = hosts.folder / "submit"
    hosts.write(mine, f"#!/bin/sh\n{program}\n")
    bench.settings(programs={**hosts.paths, "submit": str(mine)})
    with pytest.raises(RunError, match=told) as caught:
        bench.gate()
    assert "docs/cluster.md" in caught.value.hint


def test_too_few_hosts_are_told_by_the_program(bench: ClusterBench) -> None:
    bench.settings(nodes=5)
    with pytest.raises(RunError, match="submit exited with 1") as caught:
        bench.gate()
    assert caught.value.details[-1].endswith("hosts has too few hosts for 5 nodes")


def test_a_program_that_is_not_there_is_named_by_its_key(
    bench: ClusterBench, hosts: PlayedHosts
) -> None:
    bench.settings(programs={**hosts.paths, "wait": str(hosts.programs / "hosts")})
    with pytest.raises(RunError, match=r"cluster\.programs\.wait: \S+ is not a program"):
        bench.gate()


PROGRAMS = "programs: {submit: /p/submit, wait: /p/wait, cancel: /p/cancel}"


@each_row(
    ("section", "told"),
    [
        ("cluster: {engine: exec, folder: /s}", "programs and engine: exec need each other"),
        (f"cluster: {{engine: slurm, folder: /s, {PROGRAMS}}}", "programs and engine: exec need"),
        (f"cluster: {{engine: exec, {PROGRAMS}}}", "engine: exec needs folder"),
        (
            f"cluster: {{engine: exec, folder: /s, {PROGRAMS}, options: {{partition: a}}}}",
            "options are those of sbatch",
        ),
        (
            "cluster: {engine: exec, folder: /s, programs: {submit: a, wait: /w, cancel: /c}}",
            "must be an absolute path",
        ),
    ],
)
def test_settings_that_no_scheduler_can_have_are_refused(section: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(f"{SETTINGS}{section}\n".encode(), "repro-gate.yml")
    assert told in str(caught.value)


def test_a_pull_request_cannot_name_programs() -> None:
    text = f"{SETTINGS}cluster: {{engine: exec, folder: /s, {PROGRAMS}}}\n"
    with pytest.raises(SettingsError, match=r"cluster\.programs\.submit"):
        refuse_reach(parse_settings(text.encode(), "repro-gate.yml"), "repro-gate.yml")
