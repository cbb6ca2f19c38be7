"""Steps on the nodes of any scheduler: an agent on each node, and a client on the gate's machine.

They communicate through the job's folder (`job_folder`). Tasks get Slurm's names for their numbers,
so one start script serves every scheduler.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NoReturn

from gate.isolation.job_folder import (
    AGAIN,
    ENDED_FILE,
    NEW,
    POLL_SECONDS,
    STEP,
    STOP,
    end_file,
    mark,
    names_in,
    node_file,
    read_fact,
)
from gate.system.files import writing
from gate.system.files.regular_files import open_regular
from gate.system.files.trees import remove_tree

CODE: Final = re.compile(rb"\d{1,3}\Z")
# between SIGTERM and SIGKILL
GRACE_SECONDS: Final = 3.0
# in effect no limit: the gate bounds what it keeps of the client's output
MAX_OUTPUT_BYTES: Final = 2**40
CHUNK_BYTES: Final = 256 * 1024


class Agent:
    """Runs the tasks of each step, one step after the other, on one node."""

    def __init__(self, folder: Path, number: int, seconds: float, name: str, address: str) -> None:
        self._folder = folder
        self._number = number
        self._until = time.monotonic() + seconds
        self._name = name
        self._address = address
        self._stopped = False

    def stop(self, *_: object) -> None:
        """Make `work` end soon; a signal handler that raises nothing.

        A job is often cancelled while its agents are ending a step. An exception would then skip
        the SIGKILL for tasks that ignore SIGTERM.
        """
        self._stopped = True

    def work(self) -> None:
        """Run steps until no further one comes, or the job's time is over."""
        if node_file(self._number) in names_in(self._folder):
            mark(self._folder, AGAIN)
            sys.exit("repro-gate: the job was started again; its first runs are lost")
        self._write(node_file(self._number), f"{self._name}\n{self._address}".encode())
        step = 1
        while not self._is_over(names := names_in(self._folder)):
            if f"step-{step}" in names:
                asked = json.loads(read_fact(self._folder / f"step-{step}"))
                self._step(step, asked["command"], asked["tasks"])
                step += 1
            else:
                time.sleep(POLL_SECONDS)

    def _is_over(self, names: frozenset[str]) -> bool:
        return self._stopped or STOP in names or time.monotonic() > self._until

    def _step(self, step: int, command: list[str], tasks: int) -> None:
        begun: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for local in range(tasks):
                rank = self._number * tasks + local
                begun[rank] = self._task(step, rank, local, command)
            while any(task.poll() is None for task in begun.values()):
                names = names_in(self._folder)
                if end_file(step) in names or self._is_over(names):
                    break
                self._report(step, begun)
                time.sleep(POLL_SECONDS)
        finally:
            _end(begun.values())
        self._report(step, begun)

    def _task(
        self, step: int, rank: int, local: int, command: list[str]
    ) -> subprocess.Popen[bytes]:
        output = writing.open_file(self._folder / f"step-{step}.{rank}.out", NEW, 0o600)
        try:
            return subprocess.Popen(
                command,
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "SLURM_NODEID": str(self._number),
                    "SLURM_PROCID": str(rank),
                    "SLURM_LOCALID": str(local),
                    "SLURMD_NODENAME": self._name,
                },
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # its own process group, so that ending the step also reaches what the rank has
                # started
                start_new_session=True,
            )
        finally:
            os.close(output)

    def _report(self, step: int, begun: dict[int, subprocess.Popen[bytes]]) -> None:
        for rank, task in list(begun.items()):
            code = task.poll()
            if code is not None:
                # kill the rest of its session, which must not write after the end was reported
                _signal(task, signal.SIGKILL)
                # a signal as a shell reports it, 128 + n, because the file may contain
                # digits only (CODE)
                status = code if code >= 0 else 128 - code
                self._write(f"step-{step}.{rank}.exit", str(status).encode())
                del begun[rank]

    def _write(self, name: str, data: bytes) -> None:
        with writing.replacing(self._folder / name, 0o600) as file:
            file.write(data)


def _end(tasks: Iterable[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to the tasks that still run, then SIGKILL to those that remain."""
    left = [task for task in tasks if task.poll() is None]
    for task in left:
        _signal(task, signal.SIGTERM)
    until = time.monotonic() + GRACE_SECONDS
    for task in left:
        try:
            task.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(task, signal.SIGKILL)
            task.wait()


def _signal(task: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(task.pid, number)


class Client:
    """Asks all agents for one step, passes on what its tasks print, and ends as they do."""

    def __init__(self, folder: Path, nodes: int, tasks: int) -> None:
        """`tasks` is the number of tasks on each node."""
        self._folder = folder
        self._tasks = tasks
        self._ranks = range(nodes * tasks)
        self._printed = dict.fromkeys(self._ranks, 0)
        # a number above every earlier step, whose files must not be taken for answers to this one
        known = (STEP.match(name) for name in names_in(folder))
        self._step = 1 + max((int(match[1]) for match in known if match), default=0)

    def run(self, command: list[str]) -> int:
        """Run the step; return the first exit code that is not 0, or 0 if every task succeeded."""
        with writing.replacing(self._folder / f"step-{self._step}", 0o600) as file:
            file.write(json.dumps({"command": command, "tasks": self._tasks}).encode())
        codes: dict[int, int] = {}
        try:
            while len(codes) < len(self._ranks):
                names = names_in(self._folder)
                self._read(names, codes)
                failed = any(codes.values())
                if failed and end_file(self._step) not in names:
                    # the other ranks would wait for the failed one
                    self.end()
                if {STOP, ENDED_FILE} & names:
                    sys.stdout.write("repro-gate: the job on the nodes has ended\n")
                    return 1
                time.sleep(POLL_SECONDS)
        finally:
            self.end()
        return next((codes[rank] for rank in self._ranks if codes[rank]), 0)

    def end(self) -> None:
        """Make the agents end what still runs of the step."""
        mark(self._folder, end_file(self._step))

    def _read(self, names: frozenset[str], codes: dict[int, int]) -> None:
        for rank in self._ranks:
            if rank in codes:
                continue
            about = f"step-{self._step}.{rank}"
            # check for the exit file before reading the output: the agent writes it last
            ended = f"{about}.exit" in names
            if f"{about}.out" in names:
                self._hand_on(rank, self._folder / f"{about}.out", whole=ended)
            if ended:
                text = read_fact(self._folder / f"{about}.exit")
                # the training may write there too; anything that is no exit code counts as a
                # failure
                codes[rank] = int(text) if CODE.match(text) else 1

    def _hand_on(self, rank: int, path: Path, *, whole: bool) -> None:
        # open the file each time, because a file server is asked for changes on opening
        with open_regular(path, MAX_OUTPUT_BYTES) as file:
            file.seek(self._printed[rank])
            more = True
            while more and (data := file.read(CHUNK_BYTES)):
                more = len(data) == CHUNK_BYTES
                if not whole and not more:
                    # pass on whole lines while more may come, because all ranks share one stream
                    data = data[: data.rfind(b"\n") + 1]
                sys.stdout.buffer.write(data)
                self._printed[rank] += len(data)
            sys.stdout.buffer.flush()


def _stopped(*_: object) -> NoReturn:
    # raise SystemExit, so that `finally` blocks still run
    sys.exit(128 + signal.SIGTERM)


def main_agent(
    folder: str, runs: str, seconds: str, number: str, name: str = "", address: str = ""
) -> None:
    """Run the agent of a node, as the script of `programs.submit` starts it.

    The default for `name` is the node's own name. `runs` begins the path of the folder that
    contains what a run leaves until it is collected.
    """
    name = name or platform.node()
    agent = Agent(Path(folder), int(number), float(seconds), name, address or name)
    signal.signal(signal.SIGTERM, agent.stop)
    # a call that has ended has removed the job's folder
    with contextlib.suppress(FileNotFoundError):
        try:
            agent.work()
        finally:
            remove_tree(Path(f"{runs}-{number}"))
    # on exit Python restores the default action of handled signals, and a late SIGTERM would then
    # turn this success into a failure
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main_client(folder: str, nodes: str, tasks: str, *command: str) -> None:
    """Run the client that the gate starts on its own machine in place of a training."""
    signal.signal(signal.SIGTERM, _stopped)
    sys.exit(Client(Path(folder), int(nodes), int(tasks)).run(list(command)))
