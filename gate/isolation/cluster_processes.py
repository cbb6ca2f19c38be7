"""Runs on the nodes of a cluster: one job holds the nodes, and each run is a step of the job.

A step starts a small shell script on every node, from the shared folder. The script creates the
run's folders on the node's own disk and waits until the node sees the run's files. Then it starts
the training with the gate's list of variables and no others. What the training leaves stays on its
node until `Cluster.collect` starts a second step that reads it there.
"""

from __future__ import annotations

import os
import random
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import gate
from gate.errors import RunError
from gate.isolation.cluster_settings import ON_NODE, ClusterSettings
from gate.isolation.own_programs import OwnPrograms
from gate.isolation.process_request import ClusterStep, ProcessRequest
from gate.isolation.process_table import ProcessFacts, descendants
from gate.isolation.processes import GroupedProcesses, RunningProcess, start_process
from gate.isolation.scheduler import (
    COMPLETING,
    ENDINGS,
    HINT,
    RUNNING,
    WAITING,
    JobState,
    Scheduler,
    finished,
    node_folder,
    this_owner,
)
from gate.isolation.slurm import Slurm
from gate.isolation.stop_signals import StopSignals
from gate.isolation.training_output import Take
from gate.system.files import writing
from gate.text.phrases import count
from gate.text.untrusted_text import safe_line

PACKAGE_ROOT = Path(gate.__file__).resolve().parents[1]
REPORTS: Final = "nodes"
STARTS: Final = "start"
# how long another node may not see a new file: NFS caches a folder's attributes for up to 60 s (see
# acdirmax in nfs(5))
VISIBLE_SECONDS: Final = 90
COLLECT_SECONDS: Final = 1800.0
COMPLETING_SECONDS: Final = 20.0
# less than a runner waits between its first and second signal
CLEAR_SECONDS: Final = 3.0
COLLECT_OUTPUT: Final = 64 * 1024
NODE_LIST_LIMIT: Final = 20
# below Linux's own range for outgoing connections (ip_local_port_range)
PORTS: Final = range(20_000, 32_000)
# how many more runs than planned the job's time limit allows, for a diagnosis
EXTRA_RUNS: Final = 4
SPARE_SECONDS: Final = 300.0
# garbage collection is off because it would take a quarter of the program's start
COLLECT = (
    "import gc, sys; gc.disable(); sys.path += sys.argv[1:-3]; "
    "from gate.pipelines.node_collector import main; main(*sys.argv[-3:])"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """A running job and its nodes, in the order of the node numbers.

    `address` is where the first node can be reached.
    """

    job: str
    nodes: tuple[str, ...]
    address: str

    @property
    def described(self) -> str:
        """The job and its nodes, for the person who waits."""
        shown = ", ".join(self.nodes[:NODE_LIST_LIMIT])
        more = ", ..." if len(self.nodes) > NODE_LIST_LIMIT else ""
        return f"job {self.job} on {shown}{more}"


class Cluster:
    """The nodes of one gate call; `run` marks the job, so that a later call can find it."""

    def __init__(
        self,
        run: str,
        variables: Mapping[str, str],
        interrupts: StopSignals,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Ask for no nodes yet; `variables` are the gate's own environment."""
        self.scheduler: Scheduler = Slurm(variables)
        self._variables = variables
        self._run = run
        self._interrupts = interrupts
        self._pause = pause
        self._jobs: list[str] = []
        # the key is True for the nodes of the repeat on other nodes
        self._nodes: dict[bool, Allocation] = {}
        self._uncollected: ClusterStep | None = None

    def choose(self, settings: ClusterSettings) -> None:
        """Use the scheduler that the settings name from now on.

        Raises `RunError` if one of its programs is missing on this machine.
        """
        imports = import_folders()
        if settings.programs is not None:
            folder = Path(settings.folder or "/")
            self.scheduler = OwnPrograms(settings.programs, folder, self._variables, imports)
        if settings.pod is not None:
            # the HTTP client is slow to import, and most calls use no such cluster
            from gate.isolation.kubernetes import Kubernetes  # noqa: PLC0415

            self.scheduler = Kubernetes(settings, settings.pod, self._variables, imports)
        self.scheduler.refuse_absent()

    def allocate(
        self,
        settings: ClusterSettings,
        runs: int,
        say: Callable[[str], object],
        *,
        elsewhere: bool = False,
    ) -> Allocation:
        """Submit a job for this many runs, and wait in the queue for its nodes.

        With `elsewhere` the job must not get a node of the first allocation. Raises `RunError` if
        the nodes do not come in time; the call then gives back what it has.
        """
        assert settings.folder is not None  # noqa: S101 - its settings demand one; tells the checker
        first = self._nodes[False].nodes if elsewhere else ()
        extra = 0 if elsewhere else EXTRA_RUNS
        seconds = settings.run_seconds * (runs + extra) + SPARE_SECONDS
        # a signal between submission and append would leave a job that nobody cancels
        with self._interrupts.deferred():
            owner, folder = this_owner(self._run), Path(settings.folder)
            job = self.scheduler.submit(settings, owner, seconds, folder, first)
            self._jobs.append(job)
        say(f"cluster: job {job} waits for {'other ' * elsewhere}{settings.described}")
        state = self._started(job, settings)
        nodes = self.scheduler.nodes(state.nodes)
        if not set(first).isdisjoint(nodes):
            raise RunError(
                f"job {job} was given a node of the first job, which it had to leave out",
                hint="cluster.options.nodelist may name them: leave it out with allocations: 2. "
                "programs.submit gets their names as its last argument.",
            )
        allocation = Allocation(job=job, nodes=nodes, address=self.scheduler.address(nodes[0]))
        self._nodes[elsewhere] = allocation
        say(f"cluster: {allocation.described}")
        return allocation

    def cancel_orphans(self, say: Callable[[str], object]) -> tuple[str, ...]:
        """Cancel jobs of killed gate calls of this machine; return the marks of those calls."""
        orphans = self.scheduler.orphans()
        for job, _ in orphans:
            say(f"cluster: cancelling job {job}, whose gate call ended without doing so")
            self.scheduler.cancel(job)
        return tuple(run for _, run in orphans)

    def _started(self, job: str, settings: ClusterSettings) -> JobState:
        until = time.monotonic() + settings.queue_seconds
        nap = 0.1
        state = self.scheduler.state(job)
        while state.state not in RUNNING:
            if state.state not in WAITING:
                raise self._ended(job, state)
            if time.monotonic() >= until:
                why = f" ({state.reason})" if state.reason not in {"", "None"} else ""
                raise RunError(
                    f"waited {settings.queue_seconds:g} s for {settings.described}: job "
                    f"{job} did not start{why}",
                    hint="The job is cancelled and nothing was judged. Start the gate again when "
                    "the nodes are free, or raise cluster.queue_seconds.",
                )
            self._pause(min(nap, max(0.0, until - time.monotonic())))
            nap = min(5.0, nap * 1.5)
            state = self.scheduler.state(job)
        return state

    def nodes(self, step: ClusterStep) -> Allocation:
        """Return the nodes of a run; raises `RunError` if none are allocated yet."""
        if step.elsewhere not in self._nodes:
            raise RunError(
                "a run was started on a cluster before there were nodes",
                hint="This is a bug in repro-gate; report it with your repro-gate.yml.",
            )
        return self._nodes[step.elsewhere]

    def refuse_lost(self, step: ClusterStep) -> None:
        """Raise `RunError` if the nodes are no longer those with which the job began.

        The run's result is then void: a step on different nodes, or half a step, would otherwise be
        compared with a whole one.
        """
        job = self.nodes(step).job
        state = self.scheduler.state(job)
        if state.state not in RUNNING or state.restarts:
            raise self._ended(job, state)

    def _ended(self, job: str, state: JobState) -> RunError:
        until = time.monotonic() + COMPLETING_SECONDS
        # the scheduler reports the reason only after all processes of the job are gone
        while state.state == COMPLETING and time.monotonic() < until:
            self._pause(0.3)
            state = self.scheduler.state(job)
        if state.restarts:
            why = f"it was requeued {count(state.restarts, 'time')}"
        else:
            known = ENDINGS.get(state.state, f"its state is {safe_line(state.state)}")
            why = f"{known} ({state.reason})" if state.reason not in {"", "None"} else known
        return RunError(f"the cluster ended job {job}: {why}", hint=HINT)

    def collect(self, step: ClusterStep) -> None:
        """Have each node read what a run left there, and report into the shared folder.

        Raises `RunError` if the nodes were lost, or if one of them could not report.
        """
        self.refuse_lost(step)
        words = self.scheduler.step(self.nodes(step).job, step.settings, 1)
        program = (sys.executable, "-I", "-S", "-B", "-c", COLLECT, *import_folders())
        arguments = (str(node_folder(self._run)), str(step.root / REPORTS), step.token)
        try:
            done = finished(
                (*words, *program, *arguments), COLLECT_SECONDS, self.scheduler.environment
            )
        except subprocess.TimeoutExpired as error:
            raise RunError(
                f"the nodes did not report in {COLLECT_SECONDS:g} s what the run left", hint=HINT
            ) from error
        if done.returncode != 0:
            # if a node was lost meanwhile, that is the better reason
            self.refuse_lost(step)
            text = done.stdout[-COLLECT_OUTPUT:].decode("utf-8", "replace")
            raise RunError(
                "a node could not report what the run left on it",
                hint="The details show what it printed. Every node needs this gate at "
                f"{PACKAGE_ROOT} and its interpreter at {sys.executable}: install both in a "
                "folder that all nodes see.",
                details=tuple(safe_line(line) for line in text.splitlines()[-10:]),
            )
        self._uncollected = None

    def end_steps(self) -> None:
        """End what still runs on the nodes; keep the nodes."""
        self.scheduler.cancel(*(step for job in self._jobs for step in self.scheduler.steps(job)))

    def kill(self) -> None:
        """Give the jobs back without waiting."""
        for job in self._jobs:
            self.scheduler.cancel_at_once(job)

    def release(self) -> None:
        """Give the nodes back; does nothing if there are none."""
        if self._uncollected is not None:
            self._clear_nodes(self._uncollected)
        jobs, self._jobs, self._nodes = self._jobs, [], {}
        self.scheduler.cancel(*jobs)

    def _clear_nodes(self, left: ClusterStep) -> None:
        """Remove what an ended run left on the nodes, if that is quick."""
        step = self.scheduler.step(self.nodes(left).job, left.settings, 1)
        folder = shlex.quote(str(node_folder(self._run)))
        command = (*step, "/bin/sh", "-c", f'exec /bin/rm -rf {folder}-"$SLURM_NODEID"')
        # best effort: what is left is in /tmp, readable by this account alone
        with suppress(OSError, subprocess.TimeoutExpired):
            finished(command, CLEAR_SECONDS, self.scheduler.environment)

    def script(self, request: ProcessRequest, step: ClusterStep) -> str:
        """Return the script that each task of the step runs on its node."""
        self._uncollected = step
        return start_script(request, step, node_folder(self._run), self.nodes(step))


class RunningStep(RunningProcess):
    """The scheduler's client on this machine, together with its step on the nodes."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        cluster: Cluster,
        family_before: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(process, None, family_before)
        self._cluster = cluster
        self._ending = False

    def _family(self, rows: tuple[ProcessFacts, ...]) -> frozenset[int]:
        # the program that waits for the job must go on, and so must its children, even new ones
        others = (descendants(pid, rows) for pid in self._family_before)
        return super()._family(rows).difference(*others)

    def end(self, take: Take) -> None:
        """End the client and, if it had not ended by itself, its steps on the nodes."""
        ended = self.ended()
        self._ending = True
        super().end(take)
        if not ended:
            self._cluster.end_steps()

    def kill(self) -> None:
        """Kill the client; outside `end`, which means a second signal, give the job back too."""
        super().kill()
        if not self._ending:
            self._cluster.kill()


class ClusterProcesses(GroupedProcesses):
    """Starts runs as steps on the nodes of a cluster."""

    def __init__(self, cluster: Cluster, interrupts: StopSignals | None = None) -> None:
        """`interrupts` must be the installed ones, if any are."""
        super().__init__(interrupts)
        self.cluster = cluster

    def begin(self, request: ProcessRequest) -> RunningStep:
        """Start a step; raises `RunError` if `srun` cannot be started."""
        step = request.step
        assert step is not None  # noqa: S101 - what has none goes elsewhere; tells the checker
        self.cluster.refuse_lost(step)
        script = step.root / STARTS / f"{step.token}.sh"
        text = self.cluster.script(request, step).encode()
        writing.write_new(script, (text,), 0o600, make=True)
        # written last, so a node that sees this file sees the run's other files too
        writing.write_new(ready_file(step), (), 0o600, make=False)
        words = self.cluster.scheduler.step(
            self.cluster.nodes(step).job, step.settings, step.settings.tasks_per_node
        )
        seen = shlex.quote(str(script))
        waits = _until(f"[ -r {seen} ]", "the run's start script")
        # the scheduler's own programs on this machine, and their children, are no part of this run
        before = descendants(os.getpid())
        return RunningStep(
            start_process(
                replace(
                    request,
                    argv=(*words, "/bin/sh", "-c", f"{waits}; exec /bin/sh {seen}"),
                    env=dict(self.cluster.scheduler.environment),
                    workdir=step.root,
                )
            ),
            self.cluster,
            before,
        )


def new_step(settings: ClusterSettings, root: Path, *, elsewhere: bool) -> ClusterStep:
    """Return a step for one run, with its folder `root` and a unique token."""
    return ClusterStep(
        settings=settings,
        root=root,
        token=secrets.token_hex(8),
        elsewhere=elsewhere,
        # a new port for each run: a process left by an earlier run may still hold the old one
        port=random.SystemRandom().choice(PORTS),
    )


def ready_file(step: ClusterStep) -> Path:
    """Return the file whose presence tells a node that it sees all files of a run."""
    return step.root / STARTS / f"{step.token}.ready"


def import_folders() -> Iterable[str]:
    """Return the folders that this process imports from, its own package first."""
    return dict.fromkeys(
        (str(PACKAGE_ROOT), *(folder for folder in sys.path if Path(folder).is_absolute()))
    )


def start_script(
    request: ProcessRequest, step: ClusterStep, node: Path, allocation: Allocation
) -> str:
    """Return the script for `/bin/sh`; every value in it is quoted.

    The first task of each node creates the run's folders, and the others wait for them. `env -i`
    gives the training the listed variables and no others (rule T1).
    """
    base = f'{shlex.quote(str(node))}-"$SLURM_NODEID"'
    variables = {**request.env, **_rendezvous(step, allocation)}
    assigned = " \\\n    ".join(_word(f"{name}={value}") for name, value in variables.items())
    words = " ".join(map(_word, request.argv))
    ranks = (
        'RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" REPRO_GATE_NODE="$SLURM_NODEID" '
        'PET_NODE_RANK="$SLURM_NODEID" GROUP_RANK="$SLURM_NODEID"'
    )
    return f"""#!/bin/sh
# generated for one run; every task of its step starts with it
set -u
umask 077
base={base}
if [ "$SLURM_LOCALID" = 0 ]; then
    rm -rf "$base"
    mkdir -m 700 "$base" && mkdir "$base/out" "$base/home" "$base/tmp" \\
        && : >"$base/{step.token}" || exit 73
fi
{_until(f'[ -e "$base/{step.token}" ]', "the run's folder on the node")}
{_until(f"[ -e {shlex.quote(str(ready_file(step)))} ]", "the run's files")}
cd {shlex.quote(str(request.workdir))} || exit 74
env -i \\
    {assigned} \\
    {ranks} \\
    {words}
code=$?
echo "$code" >"$base/exit-$SLURM_PROCID"
exit "$code"
"""


def _word(text: str) -> str:
    """Return `text` as one quoted word for the shell, with the node's real folder put in."""
    # in single quotes the shell treats nothing but the quote itself as special
    quoted = "'" + text.replace("'", "'\"'\"'") + "'"
    return quoted.replace(str(ON_NODE), "'\"$base\"'")


def _until(test: str, what: str) -> str:
    """Return shell code that waits for a condition as long as a shared folder may delay it."""
    script = shlex.quote(
        f"repro-gate: the shared folder (cluster.folder) did not show {what} in {VISIBLE_SECONDS} s"
    )
    return (
        f"tries=0; until {test}; do tries=$((tries + 1)); "
        f'[ "$tries" -le {VISIBLE_SECONDS * 10} ] || {{ echo {script} >&2; exit 74; }}; '
        "sleep 0.1; done"
    )


def _rendezvous(step: ClusterStep, allocation: Allocation) -> dict[str, str]:
    """Return the variables by which ranks find each other; torchrun reads those with PET_."""
    settings = step.settings
    ranks = settings.nodes * settings.tasks_per_node
    port = str(step.port)
    return {
        "MASTER_ADDR": allocation.address,
        "MASTER_PORT": port,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(settings.tasks_per_node),
        "REPRO_GATE_NODES": str(settings.nodes),
        "REPRO_GATE_RENDEZVOUS": step.token,
        "PET_NNODES": str(settings.nodes),
        "PET_MASTER_ADDR": allocation.address,
        "PET_MASTER_PORT": port,
        "PET_RDZV_ID": step.token,
        # one attempt: a restarted run is no valid run
        "PET_MAX_RESTARTS": "0",
    }
