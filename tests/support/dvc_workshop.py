"""A real repository of DVC with its remote, as people make them by hand."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from git_workshop import Repository


class DvcRepository(Repository):
    """A git repository with DVC; every command runs in `environment`."""

    def __init__(self, path: Path, remote: str) -> None:
        super().__init__(path)
        home = path.parent / "home"
        home.mkdir(exist_ok=True)
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "DVC_NO_ANALYTICS": "1",
            "DVC_SITE_CACHE_DIR": str(home / "site"),
        }
        self.dvc("init")
        self.dvc("remote", "add", "--default", "store", remote)

    def dvc(self, *arguments: str) -> None:
        subprocess.run(
            ("dvc", *arguments, "--quiet"),  # noqa: S607 - the PATH of the tests
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            check=True,
        )

    def add(self, path: str, content: bytes | dict[str, bytes]) -> str:
        """Add a file or a folder to DVC and push it to the remote; return its `.dvc` file."""
        if isinstance(content, bytes):
            self.write(path, content)
        else:
            for name, data in content.items():
                self.write(f"{path}/{name}", data)
        self.dvc("add", path)
        self.dvc("push")
        return f"{path}.dvc"


def stored(remote: Path) -> list[Path]:
    """Return the objects in a remote that is a folder."""
    return sorted(path for path in remote.rglob("*") if path.is_file())
