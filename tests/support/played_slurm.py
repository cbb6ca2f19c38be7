"""A simulated Slurm: short programs with Slurm's names, which store their jobs in a folder.

`srun` starts its tasks on this machine, as Slurm does on a node, and obeys --kill-on-bad-exit.
`next.json` in the folder says what a job that is submitted becomes, and `orders` has every command
line. Slurm's own behaviour is for `tests/slurm/`, which runs on real daemons.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAM = """\
#!{python} -ISB
import fcntl, json, os, pathlib, subprocess, sys, time
state = pathlib.Path(os.environ["SLURM_CONF"])
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
with (state / "orders").open("a") as orders:
    orders.write(json.dumps([name, *arguments, dict(os.environ)]) + "\\n")
options = dict(one.lstrip("-").partition("=")[::2] for one in arguments if one.startswith("--"))
jobs = state / "jobs"
def read(job):
    try:
        return json.loads((jobs / job).read_text())
    except OSError:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        sys.exit(1)
def write(job, facts):
    (jobs / (job + ".new")).write_text(json.dumps(facts))
    os.replace(jobs / (job + ".new"), jobs / job)
if name == "sbatch":
    wanted = json.loads((state / "next.json").read_text())
    if "refuse" in wanted:
        print("sbatch: error: " + wanted["refuse"], file=sys.stderr)
        sys.exit(1)
    job = str(1 + max([0, *(int(one.name) for one in jobs.iterdir())]))
    # where each job is to have nodes of its own
    first = 1 + (int(job) - 1) * int(options["nodes"]) * ("each" in wanted)
    last = first + int(options["nodes"]) - 1
    write(job, {{"state": "RUNNING", "reason": "None", "restarts": 0,
        "nodes": "n[%d-%d]" % (first, last), "comment": options["comment"], **wanted}})
    print(job)
elif name == "scancel":
    for job in arguments:
        if job.isdecimal():
            write(job, {{**read(job), "state": "CANCELLED"}})
elif name == "squeue":
    for one in [] if "steps" in options else sorted(jobs.iterdir()):
        facts = json.loads(one.read_text())
        if facts["state"] in ("RUNNING", "PENDING"):
            print(one.name + "|" + facts["comment"])
elif arguments[:2] == ["show", "job"]:
    facts = read(arguments[2])
    print("JobId=%s JobState=%s Reason=%s Restarts=%s ReqNodeList=(null) NodeList=%s Comment=%s" % (
        arguments[2], facts["state"], facts["reason"], facts["restarts"],
        facts["nodes"] if facts["state"] != "PENDING" else "", facts["comment"]))
elif arguments[:2] == ["show", "hostnames"]:
    first, last = arguments[2].strip("n[]").split("-")
    for number in range(int(first), int(last) + 1):
        print("n%d" % number)
elif arguments[:2] == ["show", "node"]:
    print("NodeName=%s NodeAddr=127.0.0.1 Port=1" % arguments[2])
elif name == "srun":
    each = int(options["ntasks-per-node"])
    first = int(read(options["jobid"])["nodes"].strip("n[]").split("-")[0])
    command = arguments[[one.startswith("--") for one in arguments].index(False):]
    started = []
    for task in range(int(options["ntasks"])):
        env = {{"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task % each),
            "SLURM_NODEID": str(task // each), "SLURMD_NODENAME": "n%d" % (task // each + first),
            "SLURM_TOPOLOGY_ADDR": "s1.n%d" % (task // each + first)}}
        started.append(subprocess.Popen(command, env=env, start_new_session=True))
    worst, killed = 0, False
    while any(one.poll() is None for one in started):
        for task, one in enumerate(started):
            if one.poll() and not killed:
                print("srun: error: n%d: task %d: Exited with exit code %d" % (
                    task // each + first, task, one.returncode), flush=True)
                killed = True
                for other in started:
                    if other.poll() is None:
                        os.killpg(other.pid, 15)
        time.sleep(0.01)
    codes = [one.returncode if one.returncode >= 0 else 128 - one.returncode for one in started]
    sys.exit(max(codes))
else:
    sys.exit(2)
"""


class PlayedSlurm:
    """The programs in `folder/bin`, and their jobs in `folder/state`."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.shared = folder / "shared"
        self.programs = folder / "bin"
        for path in (self.state / "jobs", self.shared, self.programs):
            path.mkdir(parents=True)
        for name in ("sbatch", "scontrol", "squeue", "srun", "scancel"):
            program = self.programs / name
            program.write_text(PROGRAM.format(python=sys.executable))
            program.chmod(0o755)
        self.next()

    def next(self, **facts: object) -> None:
        """Set facts for all jobs that are submitted from now on."""
        (self.state / "next.json").write_text(json.dumps(facts))

    def change(self, job: str, **facts: object) -> None:
        """Change facts of a job."""
        path = self.state / "jobs" / job
        path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))

    def job(self, job: str) -> dict[str, object]:
        """Return the stored facts of a job."""
        found: dict[str, object] = json.loads((self.state / "jobs" / job).read_text())
        return found

    def variables(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return the gate's variables, with access to this cluster."""
        path = f"{self.programs}:{own['PATH']}"
        return {**own, "PATH": path, "SLURM_CONF": str(self.state)}

    def orders(self, program: str) -> list[tuple[list[str], dict[str, str]]]:
        """Return the calls of a program so far: command line and variables."""
        lines = (self.state / "orders").read_text().splitlines()
        told = [json.loads(line) for line in lines]
        return [(one[1:-1], one[-1]) for one in told if one[0] == program]

    def settings(self, **keys: object) -> str:
        """Return the cluster section of a settings file, with these keys."""
        lines = {"engine": "slurm", "nodes": 2, "folder": str(self.shared), **keys}
        return "cluster:\n" + "".join(f"  {key}: {json.dumps(lines[key])}\n" for key in lines)
