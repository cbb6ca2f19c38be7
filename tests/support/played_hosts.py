"""Hosts behind the programs of examples/cluster, whose ssh starts everything on this machine."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[2] / "examples" / "cluster"
SSH = """#!/bin/sh
# ssh -n -o BatchMode=yes HOST COMMAND ...
echo "$*" "$(env)" >>{log}
[ ! -e {folder}/$4.down ] || {{ echo "ssh: connect to host $4: Connection refused"; exit 255; }}
[ ! -e {folder}/$4.busy ] || exec sleep 60
shift 4
exec "$@"
"""


class PlayedHosts:
    """The programs in `folder/bin` with their own hosts, and an `ssh` on the search path."""

    def __init__(self, folder: Path, hosts: tuple[str, ...] = ("n1", "n2", "n3", "n4")) -> None:
        self.shared, self.programs, self.path = folder / "shared", folder / "bin", folder / "path"
        self.log = folder / "log"
        for made in (self.shared, self.path):
            made.mkdir(parents=True)
        shutil.copytree(PROGRAMS, self.programs)
        (self.programs / "hosts").write_text("\n".join(hosts) + "\n")
        self.write(self.path / "ssh", SSH.format(log=self.log, folder=folder))
        self.folder = folder

    def write(self, path: Path, text: str) -> None:
        """A program."""
        path.write_text(text)
        path.chmod(0o755)

    def becomes(self, host: str, what: str) -> None:
        """From now on a host is `down`, or so `busy` that nothing starts there."""
        (self.folder / f"{host}.{what}").touch()

    def variables(self, own: Mapping[str, str]) -> dict[str, str]:
        """The gate's variables with this ssh in them."""
        return {**own, "PATH": f"{self.path}:{own.get('PATH', os.defpath)}"}

    @property
    def paths(self) -> dict[str, str]:
        """The three programs, by what they do."""
        return {name: str(self.programs / name) for name in ("submit", "wait", "cancel")}

    def settings(self, **keys: object) -> str:
        """The section of the settings file."""
        programs = self.paths
        folder = str(self.shared)
        lines = {"engine": "exec", "nodes": 2, "folder": folder, "programs": programs, **keys}
        return "cluster:\n" + "".join(f"  {key}: {json.dumps(lines[key])}\n" for key in lines)
