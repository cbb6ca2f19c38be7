"""Simulated nodes behind the programs of examples/cluster; ssh and kubectl start them here."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[2] / "examples" / "cluster"
HOSTS = ("n1", "n2", "n3", "n4")
SSH = """#!/bin/sh
# ssh -n -o BatchMode=yes HOST COMMAND ...
echo "$*" "$(env)" >>{log}
[ ! -e {folder}/$4.down ] || {{ echo "ssh: connect to host $4: Connection refused"; exit 255; }}
[ ! -e {folder}/$4.busy ] || exec sleep 60
shift 4
# what runs on the host is no child of what waits for it here
exec setsid "$@"
"""


KUBECTL = """#!{python}
import json, os, pathlib, signal, subprocess, sys
import yaml

state, words = pathlib.Path({state!r}), sys.argv[3:]
with open({log!r}, "a") as log:
    print(sys.argv, dict(os.environ), file=log)
if words[0] == "create":
    text = sys.stdin.read()
    service, job = yaml.safe_load_all(text)
    (state / "manifest.yml").write_text(text)
    terms = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    free = [one for one in {hosts!r} if one not in term["matchExpressions"][0]["values"]]
    pids = []
    for index in range(job["spec"]["completions"]):
        pod = job["spec"]["template"]["spec"]["containers"][0]
        own = dict(PATH=os.environ["PATH"], JOB_COMPLETION_INDEX=str(index), NODE_NAME=free[index])
        begun = subprocess.Popen(
            pod["command"], env=own, start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=open(state / f"pod-{{index}}", "w"), stderr=subprocess.STDOUT,
        )
        pids.append(begun.pid)
    (state / job["metadata"]["name"]).write_text(json.dumps(pids))
    print("job.batch/" + job["metadata"]["name"], "created")
elif words[0] == "get":
    alive = [os.path.exists(f"/proc/{{pid}}") for pid in json.loads((state / words[2]).read_text())]
    print("" if all(alive) else "1 Failed BackoffLimitExceeded")
elif words[0] == "delete":
    name = words[1].removeprefix("job/")
    for pid in json.loads((state / name).read_text()) if (state / name).exists() else ():
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
"""


class PlayedHosts:
    """The programs in `folder/bin` with their hosts, and a fake `ssh` on the search path."""

    def __init__(self, folder: Path) -> None:
        self.shared, self.programs, self.path = folder / "shared", folder / "bin", folder / "path"
        self.log = folder / "log"
        for made in (self.shared, self.path):
            made.mkdir(parents=True)
        self.folder = folder
        self.install()

    def install(self) -> None:
        """What is found on the search path, and the programs that call it."""
        shutil.copytree(PROGRAMS / "ssh", self.programs)
        (self.programs / "hosts").write_text("\n".join(HOSTS) + "\n")
        self.write(self.path / "ssh", SSH.format(log=self.log, folder=self.folder))

    def write(self, path: Path, text: str) -> None:
        """Write an executable program."""
        path.write_text(text)
        path.chmod(0o755)

    def becomes(self, host: str, what: str) -> None:
        """Make a host `down` from now on, or so `busy` that nothing starts there."""
        (self.folder / f"{host}.{what}").touch()

    def variables(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return the gate's variables, with the fake ssh on PATH."""
        return {**own, "PATH": f"{self.path}:{own.get('PATH', os.defpath)}"}

    @property
    def paths(self) -> dict[str, str]:
        """The paths of the three programs, by their purpose."""
        return {name: str(self.programs / name) for name in ("submit", "wait", "cancel")}

    def settings(self, **keys: object) -> str:
        """Return the cluster section of a settings file, with these keys."""
        programs = self.paths
        folder = str(self.shared)
        lines = {"engine": "exec", "nodes": 2, "folder": folder, "programs": programs, **keys}
        return "cluster:\n" + "".join(f"  {key}: {json.dumps(lines[key])}\n" for key in lines)


class PlayedKubernetes(PlayedHosts):
    """A `kubectl` that starts the pods of an Indexed Job as processes."""

    def install(self) -> None:
        """What is found on the search path, and the programs that call it."""
        shutil.copytree(PROGRAMS / "kubernetes", self.programs)
        state = self.folder / "state"
        state.mkdir()
        told = {"python": sys.executable, "state": str(state), "log": str(self.log)}
        self.write(self.path / "kubectl", KUBECTL.format(hosts=HOSTS, **told))

    @property
    def manifest(self) -> str:
        """Return the manifest that was created last."""
        return (self.folder / "state" / "manifest.yml").read_text()
