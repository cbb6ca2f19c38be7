"""A script that logs through the real client of a tracker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def run_client(script: str, folder: Path, variables: Mapping[str, str]) -> None:
    """Run the script in a folder that is also its home; it must succeed."""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **variables},
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
