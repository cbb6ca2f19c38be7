"""Runs scripts under the harness as the launcher does, and reads what they left."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness_runs import HarnessRuns
from torch_processes import run_script

from gate.system.files.files import LocalFiles
from gate.training.run_folders import install_harness

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]

PlainTensor = tuple[str, tuple[int, ...], bytes]


@pytest.fixture(autouse=True)
def _few_objects() -> None:
    """What a test looks for among all objects is its own; a walk over the rest takes a second."""
    gc.freeze()


def read_plain(path: Path) -> dict[str, PlainTensor]:
    """A second reader of the safetensors layout, so that the writer is not judged by itself.

    Name to dtype, shape and bytes; asserts what the layout promises.
    """
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header: dict[str, dict[str, Any]] = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"repro_gate_names": "paths"}
    body = data[8 + length :]
    ends = [entry["data_offsets"][1] for entry in header.values()]
    assert list(header) == sorted(header)
    assert [entry["data_offsets"][0] for entry in header.values()] == [0, *ends][: len(ends)]
    assert [0, *ends][-1] == len(body)
    return {
        name: (entry["dtype"], tuple(entry["shape"]), body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a script under the harness left."""

    code: int
    stdout: str
    stderr: str
    out: Path

    def names(self) -> list[str]:
        """Kinds of the files of the protocol, without rank and process id; no markers."""
        return sorted(path.name.split("-")[0] for path in self.out.glob("*-r*-*"))

    def path(self, kind: str) -> Path:
        """The only file of a kind."""
        (path,) = self.out.glob(f"{kind}-r*")
        return path

    def document(self, kind: str) -> dict[str, Any]:
        """The only JSON file of a kind."""
        found: dict[str, Any] = json.loads(self.path(kind).read_bytes())
        return found

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """The lines of the only JSON Lines file of a kind."""
        return [json.loads(line) for line in self.path(kind).read_bytes().splitlines()]

    def state(self) -> dict[str, PlainTensor]:
        """The tensors of the only state."""
        return read_plain(self.path("state"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Harness:
    """A copied harness, the folder under which runs live, and the seed that they get.

    Not `forked`: each in a Python that starts for it, and imports torch where the script does.
    """

    folder: Path
    runs: Path
    seed: int = 1234
    forked: bool = True

    def run(self, source: str, *, python_path: str = "", **variables: str) -> Outcome:
        """Run a script in a folder of its own; `variables` go over those of the protocol."""
        place = Path(tempfile.mkdtemp(dir=self.runs))
        (place / "script.py").write_text(source, encoding="utf-8")
        (place / "out").mkdir()
        # short: a path of a socket below it has at most 107 bytes
        (place / "t").mkdir()
        told = self._variables(place / "out", python_path) | variables
        # a package of the test's own may stand for one that a fork has already
        ended = run_script(place, told, forked=self.forked and not python_path)
        return Outcome(code=ended.code, stdout=ended.stdout, stderr=ended.stderr, out=place / "out")

    def _variables(self, out: Path, python_path: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": ":".join(filter(None, (str(self.folder), python_path))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(out.with_name("t")),
            "OMP_NUM_THREADS": "1",
            "REPRO_GATE_OUT": str(out),
            "REPRO_GATE_MODE": "strict",
            "REPRO_GATE_SEED": str(self.seed),
            "REPRO_GATE_MAX_STEPS": "3",
            "REPRO_GATE_THREADS": "1",
        }


def copy_harness(target: Path) -> Path:
    """The folder that the launcher puts first on PYTHONPATH."""
    install_harness(LocalFiles(), target)
    return target


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    folder = copy_harness(tmp_path_factory.mktemp("harness") / "copy")
    return Harness(folder=folder, runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def runs(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> HarnessRuns:
    """The same harness, whose runs are read as evidence."""
    return HarnessRuns(folder=harness.folder, runs=tmp_path_factory.mktemp("evidence-runs"))


@pytest.fixture(scope="session")
def read_state() -> Callable[[Path], dict[str, PlainTensor]]:
    return read_plain
