"""Slurm's real daemons, for the tests of this folder alone: `make slurm`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from played_training import Project
from real_cluster import RealCluster

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "slurm_nodes.sh"
NODES = 4


@pytest.fixture(scope="session")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables of a cluster of four nodes, which is ended with the session."""
    if os.geteuid() != 0 or shutil.which("slurmctld") is None:
        pytest.skip("needs root and Debian's packages slurm-wlm and munge: make slurm")
    folder = tmp_path_factory.mktemp("slurm")
    variables = {**os.environ, "SLURM_FOLDER": str(folder), "SLURM_PORT": "18600"}
    subprocess.run((SCRIPT, "up", str(NODES)), env=variables, check=True, timeout=120)
    try:
        yield {**variables, "SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        subprocess.run((SCRIPT, "down"), env=variables, check=True, timeout=120)


@pytest.fixture
def cluster(daemons: dict[str, str], tmp_path: Path) -> Iterator[RealCluster]:
    """A project that trains on it; every node is idle again afterwards."""
    found = RealCluster(daemons, tmp_path)
    yield found
    found.recover()


@pytest.fixture
def project(cluster: RealCluster, tmp_path: Path) -> Project:
    """Its repository, with a played training of one rank a task."""
    made = Project(tmp_path / "project")
    cluster.settings(made)
    return made
