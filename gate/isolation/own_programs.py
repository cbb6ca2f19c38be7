"""Any scheduler behind three commands that submit, wait and cancel, such as a site's own programs.

The job that the commands submit runs an agent on each node (`node_steps`). So the job holds its
nodes for the whole call, as a Slurm job does, and the gate's runs are steps of it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.errors import GateError, RunError
from gate.isolation.cluster_settings import ClusterPrograms, ClusterSettings
from gate.isolation.job_folder import (
    AGAIN,
    ENDED_FILE,
    NEW,
    POLL_SECONDS,
    STOP,
    end_file,
    mark,
    names_in,
    node_file,
    open_steps,
    read_fact,
)
from gate.isolation.process_table import adopt_orphans
from gate.isolation.scheduler import (
    ANSWER_SECONDS,
    ENDED,
    HINT,
    NODE_NAME,
    JobState,
    Owner,
    begun,
    node_folder,
    owner_of,
    run_limited,
)
from gate.system.files import writing
from gate.text.untrusted_text import safe_line

JOB_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/\[\]-]{0,199}\Z", re.ASCII)
ADDRESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,249}\Z", re.ASCII)
# the only variables of the gate that the programs get
KEPT_VARIABLES: Final = ("PATH", "HOME")
PROGRAMS_HINT: Final = (
    "The details show what it printed. docs/cluster.md says what the program has to do; correct "
    "it, or `cluster` in repro-gate.yml on the base branch."
)
# how long the wait program may take to notice that its job was cancelled
KEEPER_SECONDS: Final = 5.0
EXIT_FILE: Final = "submitted.exit"
SUBMITTED_FILE: Final = "submitted"
SAID_FILE: Final = "said"
NAME_FILE: Final = "job"
NOT_STARTED: Final = 127
OWNER_FILE: Final = "owner"
SCRIPT_FILE: Final = "start.sh"
FOLDERS: Final = "call-*/job-*"
AGENT: Final = "from gate.isolation.node_steps import main_agent; main_agent"
KEEPER: Final = "from gate.isolation.own_programs import main_keeper; main_keeper"
CLIENT: Final = "from gate.isolation.node_steps import main_client; main_client"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPrograms:
    """The three commands without their arguments, and the names of two of them in errors."""

    submit: tuple[str, ...]
    wait: tuple[str, ...]
    cancel: tuple[str, ...]
    submit_called: str
    cancel_called: str
    hint: str


class AgentJobs:
    """A scheduler behind three commands; what is known of a job is in the job's folder."""

    def __init__(
        self,
        programs: JobPrograms,
        folder: Path,
        variables: Mapping[str, str],
        imports: Iterable[str],
    ) -> None:
        """`folder` is seen by all nodes; the gate's code is imported there from `imports`.

        The commands get `variables` and the usual search path.
        """
        self._programs = programs
        self._shared = folder
        self._imports = tuple(imports)
        self.environment = {"PATH": os.defpath, "LC_ALL": "C", **variables}
        self._keepers: list[subprocess.Popen[bytes]] = []
        self._folders: dict[str, Path] = {}
        self._nodes: dict[str, int] = {}
        self._addresses: dict[str, str] = {}

    def refuse_absent(self) -> None:
        """Raise `RunError` if one of the commands cannot be started on this machine."""

    def submit(
        self,
        settings: ClusterSettings,
        owner: Owner,
        seconds: float,
        folder: Path,
        apart_from: tuple[str, ...] = (),
    ) -> str:
        """Submit the job; return the name that the program prints in its last line."""
        place = folder / f"call-{owner.run}" / f"job-{1 + len(self._folders)}"
        writing.write_new(place / OWNER_FILE, (owner.comment.encode(),), 0o600, make=True)
        script = place / SCRIPT_FILE
        words = (str(place), str(node_folder(owner.run)), str(round(seconds)))
        agent = (*self._python(AGENT), *words)
        # the submit program only has to start this script with a node's number; all else is in the
        # script
        text = f'#!/bin/sh\n# starts on each node, with its number\nexec {shlex.join(agent)} "$@"\n'
        writing.write_new(script, (text.encode(),), 0o700)
        counts = map(str, (settings.nodes, settings.tasks_per_node, round(seconds)))
        command = (*self._programs.submit, *counts, str(script), ",".join(apart_from))
        # a separate process, which marks the job's end in the folder even if this process is killed
        self._keepers.append(self._keeper(place, command))
        try:
            job = self._submitted(place)
        except GateError:
            mark(place, STOP)
            self._bury()
            raise
        self._folders[job] = place
        self._nodes[job] = settings.nodes
        # renamed into place, so the keeper, which waits for the name, never reads half of it
        with writing.replacing(place / NAME_FILE, 0o600) as file:
            file.write(job.encode())
        return job

    def _keeper(self, place: Path, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            (*self._python(KEEPER), str(place), json.dumps(self._programs.wait), *command),
            env=self.environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _submitted(self, place: Path) -> str:
        """Wait for the submit program to end, and return the job name that it printed."""
        until = time.monotonic() + ANSWER_SECONDS
        while EXIT_FILE not in names_in(place):
            if time.monotonic() > until:
                raise RunError(
                    f"{self._programs.submit_called} did not answer in {ANSWER_SECONDS:g} s",
                    hint=f"It has to end once the job is in the queue. {HINT}",
                )
            time.sleep(POLL_SECONDS)
        text = read_fact(place / SUBMITTED_FILE).decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if line.strip()]
        code = int(read_fact(place / EXIT_FILE))
        if code != 0:
            raise self._refused(f"exited with {code}", lines)
        job = lines[-1].strip() if lines else ""
        if not JOB_NAME.match(job):
            raise self._refused("prints no name of a job in its last line", lines)
        return job

    def _refused(self, what: str, lines: list[str]) -> RunError:
        return RunError(
            f"{self._programs.submit_called} {what}",
            hint=self._programs.hint,
            details=tuple(map(safe_line, lines[-5:])),
        )

    def state(self, job: str) -> JobState:
        """Return the state, by what the agents and the wait program left in the job's folder."""
        place = self._folders[job]
        names = names_in(place)
        # checked first: agents leave their files behind when the job ends
        if ENDED_FILE in names:
            return JobState(state=ENDED, reason=self._said(place))
        expected = [node_file(number) for number in range(self._nodes[job])]
        if not names.issuperset(expected):
            return JobState(state="PENDING", reason=self._said(place))
        states = [self._node(place / name) for name in expected]
        self._addresses.update(states)
        listed = ",".join(name for name, _ in states)
        return JobState(state="RUNNING", restarts=int(AGAIN in names), nodes=listed)

    def _said(self, place: Path) -> str:
        with suppress(GateError, OSError):
            lines = read_fact(place / SAID_FILE).decode("utf-8", "replace").splitlines()
            return safe_line(next((line for line in reversed(lines) if line.strip()), ""))
        return ""

    def _node(self, path: Path) -> tuple[str, str]:
        # the training may write there too, so only two plain words are accepted
        with suppress(GateError, OSError):
            name, _, address = read_fact(path).decode("ascii", "replace").partition("\n")
            if NODE_NAME.match(name) and ADDRESS.match(address):
                return name, address
        raise RunError(
            f"{path.name} of the job is not what an agent of the gate writes",
            hint="Give each node's script its number, and if need be a plain name and address.",
        )

    def nodes(self, listed: str) -> tuple[str, ...]:
        """Return the node names; refuse two equal ones, because errors name a node by its name."""
        names = tuple(listed.split(","))
        if len(set(names)) < len(names):
            raise RunError(
                f"several nodes of the job call themselves {names[0]}",
                hint="Have programs.submit give each node's script a name of its own behind its "
                "number, and not start two on one machine.",
            )
        return names

    def address(self, node: str) -> str:
        """Return the address that the node's agent reported."""
        return self._addresses.get(node, node)

    def step(self, job: str, settings: ClusterSettings, tasks_per_node: int) -> tuple[str, ...]:
        """Return the command of the client that asks the agents for a step."""
        counts = (str(settings.nodes), str(tasks_per_node))
        return (*self._python(CLIENT), str(self._folders[job]), *counts)

    def steps(self, job: str) -> tuple[str, ...]:
        """Return the steps that are not over, each as the job's name, a blank, and a number."""
        return tuple(f"{job} {step}" for step in open_steps(names_in(self._folders[job])))

    def cancel(self, *jobs: str) -> None:
        """End steps by a mark for the agents; end jobs by a mark and by the cancel program."""
        for number in jobs:
            job, _, step = number.partition(" ")
            place = self._folders.get(job)
            if place is not None:
                mark(place, end_file(int(step)) if step else STOP)
            if not step:
                programs = self._programs
                run_limited((*programs.cancel, job), programs.cancel_called, self.environment)
        if any(" " not in name for name in jobs):
            self._bury()

    def _bury(self) -> None:
        """Wait for the keepers, whose jobs have ended or are about to, and kill those that stay."""
        keepers, self._keepers = self._keepers, []
        until = time.monotonic() + KEEPER_SECONDS
        for keeper in keepers:
            try:
                keeper.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(keeper.pid, signal.SIGKILL)
                keeper.wait()

    def cancel_at_once(self, job: str) -> None:
        """Cancel a job without waiting."""
        # the mark first: agents stop by it even if the cancel program fails
        if (place := self._folders.get(job)) is not None:
            mark(place, STOP)
        begun((*self._programs.cancel, job), self.environment)

    def orphans(self) -> tuple[tuple[str, str], ...]:
        """Return jobs whose owner, as their folder names it, is gone, each with its run."""
        orphans = []
        for place in sorted(self._shared.glob(FOLDERS)):
            with suppress(GateError, OSError, UnicodeDecodeError):
                owner = owner_of(read_fact(place / OWNER_FILE).decode("ascii"))
                job = read_fact(place / NAME_FILE).decode("ascii")
                if owner is not None and owner.is_gone and JOB_NAME.match(job):
                    self._folders[job] = place
                    orphans.append((job, owner.run))
        return tuple(orphans)

    def _python(self, main: str) -> tuple[str, ...]:
        return python_command(main, self._imports)


class Keeper:
    """Runs the submit program, then the wait program, and reaps what they leave behind.

    A program may leave processes that hold the job. The gate must not adopt these, because it ends
    everything that a training leaves. They would end with the first run, or stay as zombies that
    look alive.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, wait: list[str], submit: list[str]) -> None:
        """Submit the job, and return when it has ended."""
        code = self._ended(submit, SUBMITTED_FILE)
        with writing.replacing(self._folder / EXIT_FILE, 0o600) as file:
            file.write(str(code).encode())
        # the gate writes this file once it has checked the name
        while NAME_FILE not in (names := names_in(self._folder)):
            if STOP in names or code != 0:
                return
            time.sleep(POLL_SECONDS)
        self._ended([*wait, read_fact(self._folder / NAME_FILE).decode()], SAID_FILE)
        mark(self._folder, ENDED_FILE)

    def _ended(self, command: list[str], name: str) -> int:
        """Run a program with its output in a file, and return its exit code."""
        output = writing.open_file(self._folder / name, NEW, 0o600)
        try:
            begun = subprocess.Popen(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as error:
            os.write(output, f"it cannot be started: {error.strerror}\n".encode())
            return NOT_STARTED
        finally:
            os.close(output)
        while begun.returncode is None:
            # wait for any child: nobody else reaps the adopted ones
            ended, status = os.wait()
            if ended == begun.pid:
                begun.returncode = os.waitstatus_to_exitcode(status)
        return begun.returncode


class OwnPrograms(AgentJobs):
    """A scheduler behind three programs that its owner wrote."""

    def __init__(
        self,
        programs: ClusterPrograms,
        folder: Path,
        variables: Mapping[str, str],
        imports: Iterable[str],
    ) -> None:
        """The programs get few of the gate's `variables`; see `AgentJobs`."""
        self._paths = {"submit": programs.submit, "wait": programs.wait, "cancel": programs.cancel}
        commands = JobPrograms(
            submit=(programs.submit,),
            wait=(programs.wait,),
            cancel=(programs.cancel,),
            submit_called=programs.submit,
            cancel_called=programs.cancel,
            hint=PROGRAMS_HINT,
        )
        kept = {name: variables[name] for name in KEPT_VARIABLES if name in variables}
        super().__init__(commands, folder, kept, imports)

    def refuse_absent(self) -> None:
        """Raise `RunError` if one of the programs cannot be started on this machine."""
        for key, path in self._paths.items():
            if not os.access(path, os.X_OK) or not Path(path).is_file():
                raise RunError(
                    f"cluster.programs.{key}: {path} is not a program of this machine",
                    hint="Install the three programs on the runner, outside the repository. "
                    "docs/cluster.md says what each has to do.",
                )


def python_command(main: str, imports: Iterable[str]) -> tuple[str, ...]:
    """Return a command of this interpreter that calls `main` with the arguments appended to it.

    `main` is an import statement, a semicolon and the function's name. Modules are imported from
    `imports` alone.
    """
    # the import folders come before `--`, the arguments of `main` after it
    code = "import sys; cut = sys.argv.index('--'); sys.path += sys.argv[1:cut]; "
    words = ("-I", "-S", "-B", "-c", f"{code}{main}(*sys.argv[cut + 1:])")
    return (sys.executable, *words, *imports, "--")


def main_keeper(folder: str, wait: str, *submit: str) -> None:
    """Run the keeper of a job on the gate's machine; `wait` is a command as a JSON list."""
    adopt_orphans()
    Keeper(Path(folder)).keep(json.loads(wait), list(submit))
