"""Shared by the parts: the sizes, and ways to train with the harness or through the gate."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from gate.evidence.collect import collect_run
from gate.evidence.run_evidence import RunEvidence
from gate.isolation.modes import Isolation, IsolationMode
from gate.isolation.processes import LocalProcesses
from gate.settings.load import parse_settings
from gate.system.clock import SystemClock
from gate.system.console import QuietProgress
from gate.system.files.files import LocalFiles
from gate.training.child_environment import path_with_interpreter
from gate.training.launch import Launcher, run_folders
from gate.training.run_folders import made_harness
from gate.training.runs import PlannedRun, RunMode, Snapshot
from gate.training.timeline import CallTime

PROJECT = Path(__file__).resolve().parents[2]
TRAINING = Path(__file__).resolve().parent / "training"
FILES = LocalFiles()
ALONE = Isolation(mode=IsolationMode.NONE, credentials=None, reason="the trainings are our own")
TRAINING_SECONDS = 400
SHOWN = 800
Sections = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The sizes of models and loops; each `gpt` is a list of arguments for `training/gpt.py`."""

    gpt: tuple[str, ...]
    small_gpt: tuple[str, ...]
    compiled_gpt: tuple[str, ...]
    steps: int
    repeats: int
    words: int
    rounds: int
    compile_modes: tuple[str, ...]
    examples: tuple[str, ...]


GPU_SIZES = Sizes(
    # GPT-2 small: 124 million parameters
    gpt=("--layers=12", "--width=768", "--sequence=1024", "--batch=8", "--words=50304"),
    small_gpt=("--layers=4", "--width=256", "--sequence=256", "--batch=8"),
    compiled_gpt=("--layers=4", "--width=256", "--sequence=256", "--batch=8"),
    steps=40,
    repeats=50,
    words=1_000_000_000,
    rounds=3,
    compile_modes=("default", "max-autotune", "reduce-overhead"),
    examples=("digits", "chargpt"),
)
DRY_SIZES = Sizes(
    gpt=(),
    small_gpt=(),
    # no transformer block: on a CPU the C++ compiler takes minutes for one
    compiled_gpt=("--layers=0",),
    steps=16,
    repeats=2,
    words=3_000_000,
    rounds=1,
    compile_modes=("default",),
    examples=("digits",),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GateCall:
    """A call of `repro-gate`: `document` is its standard output, `out` its output folder.

    `complaint` is the last line of standard error.
    """

    exit_code: int
    document: str
    complaint: str
    out: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """The place where a part works, and its sizes; without a `gpu` everything runs on the CPU."""

    gpu: bool
    sizes: Sizes
    folder: Path

    def train(
        self,
        *arguments: str,
        label: str = "strict-1",
        mode: RunMode = RunMode.STRICT,
        observe: bool = True,
        sections: Sections | None = None,
    ) -> RunEvidence:
        """Run a script of `training/` once with the gate's launcher, harness and readers.

        Raises `RunError` if the training or its harness had a problem.
        """
        text = self._settings(arguments, sections)
        settings = parse_settings(text.encode(), "repro-gate.yml")
        snapshot = Snapshot(commit="0" * 40, tree=TRAINING, workdir=".", digest="0" * 64)
        planned = PlannedRun(label=label, mode=mode, observe=observe)
        launcher = Launcher(
            files=FILES,
            processes=LocalProcesses(),
            progress=QuietProgress(),
            settings=settings,
            isolation=ALONE,
            host={**os.environ, "PATH": path_here()},
            harness=made_harness(FILES),
            call=CallTime(SystemClock()),
        )
        # a separate folder, removed after reading: a run's state has gigabytes
        with tempfile.TemporaryDirectory(dir=self.folder) as root:
            folders = run_folders(Path(root))
            record, ended = launcher.run(planned, snapshot, folders)
            return collect_run(
                FILES, record, folders.out, folders.tree, ended.output, settings.train
            )

    def repository(self, source: Path, settings: str = "") -> Path:
        """Create a repository with a copy of a folder of this project, and commit it.

        `settings` replaces its settings file.
        """
        clone = self.fresh_folder()
        shutil.copytree(source, clone / source.name)
        if settings:
            (clone / source.name / "repro-gate.yml").write_text(settings, "utf-8")
        self.commit(clone, "As it is here", ("init", "-q"))
        return clone

    def commit(self, clone: Path, message: str, *before: tuple[str, ...]) -> None:
        """Commit everything in a clone, after running the git commands of `before`."""
        git = ("git", "-C", str(clone), "-c", "user.name=gpu", "-c", "user.email=gpu@invalid")
        for words in (*before, ("add", "-A"), ("commit", "-q", "--allow-empty", "-m", message)):
            subprocess.run((*git, *words), check=True)

    def record(self, clone: Path, config: str) -> str:
        """Record a baseline of this machine and commit it; return why that failed, or empty.

        Records twice, because an entry far from those of other machines is ignored until its
        second recording.
        """
        words = ("baseline", "record", "--config", config, "--out", str(self.fresh_folder()))
        for time in ("first", "second"):
            ended = subprocess.run(
                (sys.executable, "-m", "gate", *words, "--reason", f"{time} on this machine"),
                cwd=clone,
                env=here(),
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode:
                return f"exit code {ended.returncode}: {last_line(ended.stderr)}"
            self.commit(clone, f"The baseline of this machine, recorded a {time} time")
        return ""

    def gate(self, verb: str, clone: Path, config: str, *options: str) -> GateCall:
        """Run `repro-gate VERB` in a clone, as a user does."""
        out = self.fresh_folder()
        words = ("--config", config, "--out", str(out), "--json")
        call = (sys.executable, "-m", "gate", verb, *words, *options)
        ended = subprocess.run(
            call, cwd=clone, env=here(), capture_output=True, text=True, check=False
        )
        return GateCall(
            exit_code=ended.returncode,
            document=ended.stdout,
            complaint=last_line(ended.stderr),
            out=out,
        )

    def gate_training(
        self, *arguments: str, sections: Sections | None = None, verb: str = "gate"
    ) -> GateCall:
        """Run `repro-gate` over one script of `training/`, in a new repository."""
        clone = self.repository(TRAINING, self._settings(arguments, sections))
        return self.gate(verb, clone, f"{TRAINING.name}/repro-gate.yml")

    def _settings(self, arguments: tuple[str, ...], sections: Sections | None) -> str:
        """Return the settings file for a script of `training/`; `sections` override defaults."""
        asked = {name: dict(section) for name, section in (sections or {}).items()}
        train = {
            "command": [sys.executable, *arguments],
            "max_steps": self.sizes.steps,
            "timeout_seconds": TRAINING_SECONDS,
            "device": "cuda" if self.gpu else "cpu",
            **asked.pop("train", {}),
        }
        return yaml.safe_dump({"version": 1, "train": train, **asked})

    def fresh_folder(self) -> Path:
        """Create a folder below the bench's own, which the training's account may enter."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        folder.chmod(0o755)
        return folder


def path_here() -> str:
    """Return PATH with this interpreter first, so that `python` is the one with torch."""
    return path_with_interpreter(os.environ["PATH"], Path(sys.executable), beside_torch=True)


def here() -> dict[str, str]:
    """Return a child's environment: PYTHONPATH begins with this project."""
    carried = os.environ.get("PYTHONPATH", "").split(":")
    found = dict.fromkeys((str(PROJECT), str(PROJECT / "benchmarks"), *filter(None, carried)))
    return {**os.environ, "PATH": path_here(), "PYTHONPATH": ":".join(found)}


def last_line(text: str) -> str:
    """Return the last line that is not blank, cut to 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def output_of(*command: str) -> str:
    """Return what a command prints, joined to one line; `not here` if it is not installed."""
    if shutil.which(command[0]) is None:
        return "not here"
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = map(str.strip, (ended.stdout or ended.stderr).splitlines())
    return "; ".join(filter(None, lines))[:SHOWN]
