"""Slurm through its own programs: sbatch, scontrol, squeue, srun and scancel.

One job holds the nodes for a whole gate call, and each run is a step of it. So both runs of a pair
have the same nodes, and Slurm requeues nothing in between. The module parses the text output,
because a Slurm without a JSON library (Debian's) has no `--json`. None of this output comes from a
training.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from gate.errors import RunError
from gate.isolation.cluster_settings import ClusterSettings
from gate.isolation.scheduler import (
    GONE,
    NODE_NAME,
    JobState,
    Owner,
    begun,
    owner_of,
    run_limited,
)
from gate.text.untrusted_text import safe_line

PROGRAMS: Final = ("sbatch", "scontrol", "squeue", "srun", "scancel")
JOB_NAME: Final = "repro-gate"
# the only variables of the gate that Slurm's programs get, and need to reach the cluster
CLIENT_VARIABLES: Final = ("SLURM_CONF", "LD_LIBRARY_PATH", "KRB5CCNAME")
ADDRESS: Final = re.compile(r"\bNodeAddr=([A-Za-z0-9_.:-]{1,250})(?=\s)", re.ASCII)
# match whole names: ReqNodeList and ExcNodeList end in the same word
FIELD: Final = re.compile(r"\b(JobState|Reason|Restarts|NodeList)=(\S*)", re.ASCII)


class Slurm:
    """The programs of one cluster, found on a search path."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        """`variables` are the gate's own; Slurm's programs get a few of them."""
        self._path = variables.get("PATH", os.defpath)
        kept = {name: variables[name] for name in CLIENT_VARIABLES if name in variables}
        self.environment = {"PATH": self._path, "LC_ALL": "C", **kept}

    def program(self, name: str) -> str:
        """Return a program's path; raises `RunError` if this machine is no client of a cluster."""
        path = shutil.which(name, path=self._path)
        if path is None:
            raise RunError(
                f"cluster.engine is slurm, and {name} is not on PATH",
                hint="Run the gate on a login node of the cluster, or install Slurm's client "
                "programs and slurm.conf here.",
            )
        return path

    def refuse_absent(self) -> None:
        """Raise `RunError` if a program is missing on this machine."""
        for name in PROGRAMS:
            self.program(name)

    def submit(
        self,
        settings: ClusterSettings,
        owner: Owner,
        seconds: float,
        folder: Path,
        apart_from: tuple[str, ...] = (),
    ) -> str:
        """Submit the job, and return its number."""
        # whole minutes of at least 1: sbatch rounds seconds up anyway, and takes 0 as no limit at
        # all
        minutes = max(1, math.ceil(seconds / 60))
        asked = dict(settings.options)
        if apart_from:
            left_out = (*filter(None, (asked.get("exclude"),)), *apart_from)
            asked["exclude"] = ",".join(map(str, left_out))
        options = tuple(
            f"--{name}" if text is True else f"--{name}={text}"
            for name, text in sorted(asked.items())
            if text is not False
        )
        answer = self._answer(
            "sbatch",
            *("--parsable", f"--job-name={JOB_NAME}", f"--comment={owner.comment}"),
            *(f"--nodes={settings.nodes}", f"--ntasks-per-node={settings.tasks_per_node}"),
            # no variable of the gate reaches a node (rule T1), and a restarted job would be a
            # different one
            *("--export=NONE", "--no-requeue", f"--time={minutes}", f"--chdir={folder}"),
            *("--output=/dev/null", "--error=/dev/null", "--input=/dev/null"),
            *options,
            # the job only holds the nodes; the gate's steps do the work
            f"--wrap=exec sleep {minutes * 60}",
        )
        # in a federation, --parsable adds the cluster's name after the number (sbatch(1))
        job = answer.strip().partition(";")[0]
        if not job.isascii() or not job.isdecimal():
            raise RunError(
                f"sbatch answered {safe_line(answer.strip())!r} instead of a job number",
                hint="Submit a job by hand: `sbatch --parsable --wrap true` must print a number.",
            )
        return job

    def state(self, job: str) -> JobState:
        """Return the state of a job, or `GONE` if Slurm has forgotten it."""
        done = self._run("scontrol", "show", "job", job, "-o")
        text = done.stdout
        if done.returncode != 0:
            if "Invalid job id" in text:
                return JobState(state=GONE)
            raise _refused("scontrol", done)
        fields = dict(FIELD.findall(text))
        nodes = fields.get("NodeList", "")
        return JobState(
            state=fields.get("JobState", GONE).partition("+")[0],
            reason=safe_line(fields.get("Reason", "")),
            restarts=int(fields["Restarts"]) if fields.get("Restarts", "").isdecimal() else 0,
            nodes="" if nodes == "(null)" else nodes,
        )

    def nodes(self, listed: str) -> tuple[str, ...]:
        """Return the node names in a list such as `n[1-2]`."""
        names = tuple(self._answer("scontrol", "show", "hostnames", listed).split())
        if not names or not all(map(NODE_NAME.match, names)):
            raise RunError(
                f"scontrol does not resolve the nodes {safe_line(listed)!r}",
                hint="Run `scontrol show hostnames` with these nodes by hand on this machine.",
            )
        return names

    def address(self, node: str) -> str:
        """Return where other nodes reach a node; its name if Slurm reports no address."""
        match = ADDRESS.search(self._answer("scontrol", "show", "node", node, "-o"))
        return match[1] if match else node

    def step(self, job: str, settings: ClusterSettings, tasks_per_node: int) -> tuple[str, ...]:
        """Return the words that start a step on all nodes of a job, to put before the command."""
        return (
            self.program("srun"),
            *(f"--jobid={job}", f"--nodes={settings.nodes}"),
            f"--ntasks={settings.nodes * tasks_per_node}",
            *(f"--ntasks-per-node={tasks_per_node}", "--export=NONE", "--input=none"),
            # end the other ranks when one fails, because they would wait for it
            "--kill-on-bad-exit=1",
        )

    def cancel(self, *jobs: str) -> None:
        """End jobs or steps; one that has ended is fine."""
        if jobs:
            self._run("scancel", "--quiet", *jobs)

    def cancel_at_once(self, job: str) -> None:
        """Cancel a job without waiting and without an error, for a second signal."""
        with suppress(RunError):
            begun((self.program("scancel"), "--quiet", job), self.environment)

    def steps(self, job: str) -> tuple[str, ...]:
        """Return the numbered steps of a job that have not ended, such as `12.3`."""
        listed = self._answer("squeue", "--steps", "--noheader", f"--jobs={job}", "--format=%i")
        return tuple(step for step in listed.split() if step.partition(".")[2].isdecimal())

    def orphans(self) -> tuple[tuple[str, str], ...]:
        """Return jobs of this account in the queue whose owner, by their comment, is gone."""
        listed = self._answer(
            "squeue", "--me", "--noheader", f"--name={JOB_NAME}", "--format=%i|%k"
        )
        lines = (line.partition("|") for line in listed.splitlines())
        return tuple(
            (job.strip(), owner.run)
            for job, _, comment in lines
            if (owner := owner_of(comment)) is not None and owner.is_gone
        )

    def _answer(self, name: str, *arguments: str) -> str:
        done = self._run(name, *arguments)
        if done.returncode != 0:
            raise _refused(name, done)
        return done.stdout

    def _run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_limited((self.program(name), *arguments), name, self.environment)


def _refused(name: str, done: subprocess.CompletedProcess[str]) -> RunError:
    lines = tuple(safe_line(line) for line in done.stdout.splitlines() if line.strip())[-5:]
    return RunError(
        f"{name} exited with {done.returncode}",
        hint="The details show what Slurm said. Correct `cluster` in repro-gate.yml on the base "
        f"branch, or the cluster. By hand: {shlex.join((name, *done.args[1:3]))} ...",
        details=lines,
    )
