"""A run is handed nothing that another run chose: not in words, not in files, not in folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gate_bench import Bench
from grouped import OneAfterTheOther
from played_training import SCRIPT, Project

from gate.isolation.process_request import Processes, ProcessRequest, ProcessResult
from gate.pipelines.prepared import prepare
from gate.pipelines.trainings import Trainings
from gate.training.plan import plan_gate
from gate.training.runs import RunMode

# Leaves a drawn number in everything that it may write: what the harness reports, and every folder.
HOSTILE = """
import secrets
path = out / f"summary-r0-{os.getpid()}.json"
told = json.loads(path.read_text())
exponents = [secrets.randbelow(20) for _ in range(3)]
groups = ("random", "batch", "tensors")
told["sampling_intervals"] = {name: 2**n for name, n in zip(groups, exponents)}
told["observe_seconds"] = told["first_step_seconds"] = float(secrets.randbelow(1000))
told["peak_memory_bytes"] = told["device_memory_bytes"] = secrets.randbits(50)
path.write_text(json.dumps(told))
print(secrets.token_hex())
for folder in (out, here, pathlib.Path(os.environ["HOME"]), pathlib.Path(os.environ["TMPDIR"])):
    (folder / "word").write_text(secrets.token_hex())
    os.utime(folder, (secrets.randbits(30), secrets.randbits(30)))
short = pathlib.Path(os.environ["TMPDIR"])
if short.is_symlink():
    short.unlink()
    short.symlink_to(secrets.choice((out, here)))
"""


@dataclass
class Recorded(OneAfterTheOther):
    """Starts processes as the inner one does, and keeps what each training would find."""

    inner: Processes
    command: tuple[str, ...]
    found: list[tuple[ProcessRequest, dict[str, bytes]]] = field(default_factory=list)

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        if request.argv == self.command:
            folders = (*request.writable, *request.readable)
            found = {str(p): _content(p) for p in map(Path, _below(folders))}
            temporary = Path(request.env["TMPDIR"])
            assert len(str(temporary)) < 42, "room for sockets below it"
            found["temporary"] = str(temporary.resolve()).encode()
            self.found.append((request, found))
        return self.inner.run(request, on_line)


def _below(folders: tuple[Path, ...]) -> list[str]:
    paths = (path for folder in folders for path in (folder, *folder.rglob("*")))
    # byte-code holds the time of its source
    return sorted(str(path) for path in paths if "__pycache__" not in path.parts)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def test_what_a_run_finds_does_not_depend_on_what_the_runs_before_it_wrote(
    bench: Bench, project: Project
) -> None:
    project.write("train.py", SCRIPT + HOSTILE)
    project.play()
    request, adapters = bench.request(), bench.adapters()
    recorded = Recorded(adapters.processes, request.settings.train.command)
    planned = (*plan_gate(2, priced=True), *plan_gate(2, priced=True))
    with prepare(request, replace(adapters, processes=recorded)) as prepared:
        trainings = Trainings(prepared)
        runs = [trainings.run(one) for one in planned]
    assert len({run.peak_memory_bytes for run in runs}) == len(runs), "each drew its own number"
    for mode in (RunMode.STRICT, RunMode.DEFAULT):
        found = [
            seen for seen, one in zip(recorded.found, planned, strict=True) if one.mode is mode
        ]
        assert found == [found[0]] * 4
