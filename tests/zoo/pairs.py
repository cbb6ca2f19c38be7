"""Run every two features together: each right alone is not yet both right at once.

    python tests/zoo/pairs.py [--write FILE] [--answers FILE] [--python PATH] [FEATURE ...]

A small training uses two features at a time. Its base commit is recorded, one number of its forward
pass changes, and the gate has to say so: code drift from step 1, with the changed line in the
comment's first block. With names, only the pairs of those features run, with one name all pairs of
it; `--python` is the gate's interpreter, one that other accounts can start where the feature `uid`
is to be tried. `--answers` keeps each answer as it comes: a later call asks only what it lacks, as
long as neither the program nor the pair's project changed. Ends with 1 where a pair fails.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import platform
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Final

import yaml
from git_workshop import IDENTITY, Repository

ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPT: Final = "train.py"
STEPS: Final = 6
BUDGET_SECONDS: Final = 600
# so many in one row of the short table, which shows each pair at least once
IN_A_ROW: Final = 9


class Feature(StrEnum):
    """What a project may use; the value is its name in the table."""

    CHECKPOINT = "checkpoint"
    METRICS_FILE = "metrics-file"
    TENSORBOARD = "tensorboard"
    PRINTED = "stdout-pattern"
    PREPROCESS = "preprocess"
    DATA = "declared-data"
    TWO_OPTIMIZERS = "two-optimizers"
    SCALER = "grad-scaler"
    ACCUMULATION = "accumulation"
    SCHEDULER = "scheduler"
    WORKERS = "data-workers"
    RANKS = "two-ranks"
    COPY = "deepcopy"
    INFINITY = "infinite-buffer"
    ACCOUNT = "uid"
    BEYOND_THE_END = "max-steps-beyond-the-end"
    ONE_STEP = "one-step"
    THREE_RUNS = "three-strict-runs"
    COST = "default-runs"
    ONE_BY_ONE = "runs-one-by-one"
    TOLERANCE = "tolerance"
    RESUME = "resume"
    ONE_RUN = "one-run-when-reproduced"
    KILLED = "killed-while-saving"
    DEVICE = "gpu"


# a run that is killed inside a save has to be resumable first
RESUMING: Final = {Feature.RESUME, Feature.KILLED}
WRITTEN_BEHIND_THE_STEP: Final = {Feature.METRICS_FILE, Feature.PRINTED, Feature.TENSORBOARD}
STOPPED_BEFORE: Final = (
    "The gate stopped the script in step 1, before anything that comes after that step"
)
# the last step cannot be both, after an only one nothing is left to resume, and the settings refuse
# a price in every call beside a call of one run
EXCLUSIVE: Final = (
    {Feature.BEYOND_THE_END, Feature.ONE_STEP},
    {Feature.RESUME, Feature.ONE_STEP},
    {Feature.KILLED, Feature.ONE_STEP},
    {Feature.ONE_RUN, Feature.COST},
)


def available(python: str = sys.executable) -> tuple[Feature, ...]:
    """What can be tried here: some features need a package, a GPU, or an open interpreter."""
    missing = set()
    asked = {
        Feature.TENSORBOARD: "import importlib.util, sys; "
        "sys.exit(not importlib.util.find_spec('tensorboard'))",
        Feature.DEVICE: "import sys, torch; sys.exit(not torch.cuda.is_available())",
    }
    for feature, question in asked.items():
        if subprocess.run([python, "-c", question], check=False).returncode != 0:
            missing.add(feature)
    folders = (*Path(python).absolute().parents, *Path(python).resolve().parents)
    if os.geteuid() != 0 or not all(folder.stat().st_mode & 1 for folder in folders):
        missing.add(Feature.ACCOUNT)
    return tuple(feature for feature in Feature if feature not in missing)


def pairs_of(features: Iterable[Feature]) -> tuple[frozenset[Feature], ...]:
    """Every two that go together."""
    both = map(frozenset, combinations(features, 2))
    return tuple(pair for pair in both if pair not in EXCLUSIVE)


def rows_of(features: tuple[Feature, ...]) -> tuple[frozenset[Feature], ...]:
    """Fewer trainings that show each pair at least once: as many open pairs a row as fit."""
    missing = set(pairs_of(features))
    rows = []
    while missing:
        row = set(min(missing, key=sorted))
        while len(row) < IN_A_ROW:
            gains = {
                one: sum(frozenset((one, other)) in missing for other in row)
                for one in features
                if one not in row and not any(rule <= {*row, one} for rule in EXCLUSIVE)
            }
            best = max(gains, key=lambda one: gains[one], default=None)
            if best is None or not gains[best]:
                break
            row.add(best)
        rows.append(frozenset(row))
        missing -= set(map(frozenset, combinations(row, 2)))
    return tuple(rows)


def script(features: frozenset[Feature], scale: float) -> str:
    """The training of these features; `scale` is the number that a change moves."""
    return "\n".join(_lines(features, scale)) + "\n"


def changed_line(features: frozenset[Feature]) -> int:
    """The line that holds the number."""
    return next(
        number for number, line in enumerate(_lines(features, 1.0), 1) if line == "SCALE = 1.0"
    )


def _lines(features: frozenset[Feature], scale: float) -> Iterator[str]:
    yield from ("import copy", "import json", "import os", "", "import torch", "")
    if Feature.TENSORBOARD in features:
        yield from ("from torch.utils.tensorboard import SummaryWriter", "")
    yield from (f"SCALE = {scale}", "", "")
    yield from ("def forward(net, x):", "    return net(x) * SCALE", "", "")
    yield from ("def main():", *(f"    {line}" for line in _main(features)), "", "")
    yield from ('if __name__ == "__main__":', "    main()")


def _main(features: frozenset[Feature]) -> Iterator[str]:
    yield from _inputs(features)
    yield "layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)"
    device = "cuda" if Feature.DEVICE in features else "cpu"
    yield f'device = "{device}"'
    yield "model = torch.nn.Sequential(*layers).to(device)"
    if Feature.INFINITY in features:
        yield 'model.register_buffer("bound", torch.tensor(float("inf")))'
    yield "net = model"
    if Feature.RANKS in features:
        yield "net = torch.nn.parallel.DistributedDataParallel(model)"
    if Feature.COPY in features:
        yield "averaged = copy.deepcopy(model)"
    yield "optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)"
    if Feature.TWO_OPTIMIZERS in features:
        yield "critic = torch.nn.Linear(1, 1).to(device)"
        yield "second = torch.optim.Adam(critic.parameters(), lr=0.01)"
    if Feature.SCHEDULER in features:
        yield "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)"
    if Feature.SCALER in features:
        yield "scaler = torch.amp.GradScaler(device, init_scale=1024.0)"
    if Feature.TENSORBOARD in features:
        yield 'writer = SummaryWriter("events")'
    if RESUMING & features:
        yield from _loading(features)
    yield from _loop(features)
    if Feature.CHECKPOINT in features:
        state = '{"model": model.state_dict(), "optimizer": optimizer.state_dict()}'
        condition = 'if os.environ.get("RANK", "0") == "0": '
        yield f'{condition}torch.save({state}, "checkpoint.pt")'


def _stateful(features: frozenset[Feature]) -> Iterator[str]:
    """Names of all that goes on from one step to the next."""
    yield from ("model", "optimizer")
    yield from ("averaged",) if Feature.COPY in features else ()
    yield from ("critic", "second") if Feature.TWO_OPTIMIZERS in features else ()
    yield from ("schedule",) if Feature.SCHEDULER in features else ()
    yield from ("scaler",) if Feature.SCALER in features else ()


def _loading(features: frozenset[Feature]) -> Iterator[str]:
    yield "first = 1"
    yield """last = f"resume/rank-{os.environ.get('RANK', '0')}.pt\""""
    yield "if os.path.exists(last):"
    yield "    state = torch.load(last)"
    for name in _stateful(features):
        yield f'    {name}.load_state_dict(state["{name}"])'
    yield '    first = state["step"] + 1'
    yield '    torch.set_rng_state(state["random"])'


def _saving(features: frozenset[Feature]) -> Iterator[str]:
    yield '    os.makedirs("resume", exist_ok=True)'
    yield '    state = {"step": step, "random": torch.get_rng_state()}'
    for name in _stateful(features):
        yield f'    state["{name}"] = {name}.state_dict()'
    yield '    torch.save(state, f"{last}.part")'
    yield '    os.replace(f"{last}.part", last)'


def _inputs(features: frozenset[Feature]) -> Iterator[str]:
    yield "x = torch.linspace(0, 1, 64).reshape(16, 4)"
    if Feature.PREPROCESS in features:
        yield 'x = torch.load("prepared/x.pt")'
    if Feature.DATA in features:
        yield 'with open(os.path.join(os.environ["REPRO_GATE_DATA"], "offset.txt")) as file:'
        yield "    x = x + float(file.read())"
    yield "y = x.sum(1, keepdim=True)"
    if Feature.RANKS in features:
        yield 'torch.distributed.init_process_group("gloo")'
        yield "rank = torch.distributed.get_rank()"
        yield "x, y = x[rank::2], y[rank::2]"
    if Feature.WORKERS in features:
        yield "data = torch.utils.data.TensorDataset(x, y)"
        options = "batch_size=4, shuffle=True, num_workers=2"
        yield f"loader = torch.utils.data.DataLoader(data, {options})"


def _loop(features: frozenset[Feature]) -> Iterator[str]:
    first = "first" if RESUMING & features else "1"
    yield f"for step in range({first}, {STEPS + 1}):"
    yield "    optimizer.zero_grad()"
    if Feature.WORKERS in features:
        yield "    x, y = next(iter(loader))"
    yield "    x, y = x.to(device), y.to(device)"
    times = 2 if Feature.ACCUMULATION in features else 1
    yield f"    for _ in range({times}):"
    yield f"        loss = (forward(net, x) - y).square().mean() / {times}"
    scaled = Feature.SCALER in features
    yield "        scaler.scale(loss).backward()" if scaled else "        loss.backward()"
    yield from (
        ("    scaler.step(optimizer)", "    scaler.update()")
        if scaled
        else ("    optimizer.step()",)
    )
    if Feature.TWO_OPTIMIZERS in features:
        yield "    second.zero_grad()"
        yield "    (critic(model(x).detach()) - y).square().mean().backward()"
        yield "    second.step()"
    if Feature.SCHEDULER in features:
        yield "    schedule.step()"
    if Feature.COPY in features:
        yield "    for old, new in zip(averaged.parameters(), model.parameters(), strict=True):"
        yield "        old.data.lerp_(new.data, 0.1)"
    if Feature.METRICS_FILE in features:
        # evaluated and written after the step
        yield "    with torch.no_grad():"
        yield "        held_out = (forward(model, x[:4] + 0.1) - y[:4]).square().mean()"
        yield '    if os.environ.get("RANK", "0") == "0":'
        yield '        with open("metrics.jsonl", "a") as file:'
        yield '            line = {"step": step, "held_out": held_out.item()}'
        yield "            print(json.dumps(line), file=file)"
    if Feature.PRINTED in features:
        yield '    if os.environ.get("RANK", "0") == "0":'
        yield '        print(f"step {step} shown {loss.item()!r}", flush=True)'
    if Feature.TENSORBOARD in features:
        yield '    if os.environ.get("RANK", "0") == "0":'
        yield '        writer.add_scalar("loss", loss.item(), step)'
        yield "        writer.flush()"
    if RESUMING & features:
        yield from _saving(features)


# stands for a port of the pair's own: pairs go side by side, and ranks share the machine's network
PORT: Final = "PORT"
# what each feature adds to the settings
SETTINGS: Final[dict[Feature, dict[str, dict[str, object]]]] = {
    # the script saves behind its last step
    Feature.CHECKPOINT: {"train": {"checkpoint": "checkpoint.pt", "max_steps": STEPS + 20}},
    Feature.METRICS_FILE: {"metrics": {"file": "metrics.jsonl"}},
    Feature.TENSORBOARD: {"metrics": {"tensorboard": "events"}},
    Feature.PRINTED: {
        "metrics": {"stdout_pattern": r"step (?P<step>\d+) shown (?P<shown>\S+)"},
    },
    Feature.PREPROCESS: {
        "preprocess": {"command": ["python", "prepare.py"], "out": "prepared"},
    },
    Feature.RANKS: {
        "train": {
            "command": ["torchrun", "--nproc-per-node", "2", f"--master-port={PORT}", SCRIPT]
        },
        # ranks talk over loopback
        "isolation": {"network": True},
    },
    Feature.ACCOUNT: {"isolation": {"minimum": "uid"}},
    Feature.BEYOND_THE_END: {"train": {"max_steps": STEPS * 100}},
    Feature.COST: {"cost": {"when": "always"}},
    Feature.ONE_BY_ONE: {"runs": {"parallel": "never"}},
    Feature.RESUME: {"resume": {"checkpoint": "resume", "at_step": STEPS // 2}},
    Feature.KILLED: {
        "resume": {"checkpoint": "resume", "at_step": STEPS // 2, "kill_while_saving": True},
    },
    Feature.ONE_RUN: {"runs": {"when_reproduced": "one"}},
    Feature.TOLERANCE: {"compare": {"tolerances": [{"metric": "*", "relative": 1e-6}]}},
}


def settings(features: frozenset[Feature], folder: Path) -> str:
    """`repro-gate.yml` for these features; declared data lies in `folder`."""
    one_step = {Feature.ONE_STEP, Feature.CHECKPOINT} & features == {Feature.ONE_STEP}
    sections: dict[str, dict[str, object]] = {
        "train": {"command": ["python", SCRIPT], "max_steps": 1 if one_step else STEPS},
        # two trainings more, which name no cause
        "cost": {"when": "never"},
        # what is found must not hang on how busy this machine is
        "diagnosis": {"budget_seconds": BUDGET_SECONDS},
    }
    for feature in Feature:
        for name, keys in SETTINGS.get(feature, {}).items() if feature in features else ():
            sections[name] = sections.get(name, {}) | keys
    metrics = sections.pop("metrics", None)
    if metrics:
        sections["train"]["metrics"] = metrics
    document: dict[str, object] = {"version": 1, **sections}
    if Feature.DATA in features:
        document["data"] = [{"path": str(folder / "offset.txt")}]
    if Feature.THREE_RUNS in features:
        document["repeats"] = 3
    return yaml.safe_dump(document).replace(PORT, str(_port(features)))


def _port(features: frozenset[Feature]) -> int:
    """Below those that Linux hands out, 32768 and above."""
    return 20_000 + zlib.crc32(" ".join(sorted(features)).encode()) % 10_000


PREPARE: Final = """import os

import torch

os.makedirs("prepared", exist_ok=True)
torch.save(torch.linspace(0, 2, 64).reshape(16, 4), "prepared/x.pt")
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What the gate said of a change under some features; no `problems` where all is right."""

    features: frozenset[Feature]
    problems: tuple[str, ...]
    machine: str


def told(features: frozenset[Feature], python: str = sys.executable) -> Told:
    """One change, gated in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        # another account has to reach what lies below
        Path(name).chmod(0o755)
        problems = tuple(_problems(features, Path(name), python))
    return Told(features=features, problems=problems, machine=_machine(python))


class Answers:
    """What this program answered, a line of JSON each; answers of another one are left out."""

    def __init__(self, file: Path | None) -> None:
        """Nothing is kept without a file."""
        self._file = file
        self.known: list[Told] = []
        for line in file.read_text("utf-8").splitlines() if file and file.exists() else ():
            entry = json.loads(line)
            pair = frozenset(map(Feature, entry["features"]))
            if entry["asked"] == asked_of(pair):
                problems = tuple(entry["problems"])
                self.known.append(Told(features=pair, problems=problems, machine=entry["machine"]))

    def add(self, row: Told) -> None:
        """Keep one; a call that ends early has lost nothing."""
        self.known.append(row)
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        line = {
            "asked": asked_of(row.features),
            "features": sorted(row.features),
            "problems": row.problems,
            "machine": row.machine,
        }
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def asked_of(features: frozenset[Feature]) -> str:
    """A digest of all that an answer hangs on: the program, the project, and what is right."""
    judged = (inspect.getsource(_problems), inspect.getsource(_false))
    asked = (_program(), script(features, 1.0), settings(features, Path("/")), PREPARE, *judged)
    return hashlib.sha256("\0".join(asked).encode()).hexdigest()[:16]


@cache
def _program() -> str:
    files = sorted((ROOT / "gate").rglob("*.py"))
    return " ".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)


@cache
def _machine(python: str) -> str:
    asked = (
        "import platform, torch; gpu = torch.cuda.is_available(); print(platform.python_version(), "
        "torch.__version__ + (', ' + torch.cuda.get_device_name() if gpu else ''))"
    )
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    version, _, torch = done.stdout.strip().partition(" ")
    processor = platform.processor() or platform.machine()
    git = ("git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD")
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return (
        f"{processor}, {os.cpu_count()} cores, Python {version}, torch {torch}, "
        f"{datetime.now(UTC):%Y-%m-%d}{f', at {commit}' if commit else ''}"
    )


def _problems(features: frozenset[Feature], folder: Path, python: str) -> Iterator[str]:
    (folder / "offset.txt").write_text("0.25")
    project = Repository(folder / "project")
    one_step = Feature.ONE_STEP in features
    whole = script(features, 1.0)
    if one_step:
        whole = whole.replace(f"range(1, {STEPS + 1})", "range(1, 2)")
    project.write("repro-gate.yml", settings(features, folder))
    project.write(SCRIPT, whole)
    if Feature.PREPROCESS in features:
        project.write("prepare.py", PREPARE)
    project.commit()
    recorded = _repro_gate(python, project.path, "baseline", "record", "--reason", "first")
    stopped = one_step and Feature.CHECKPOINT not in features
    if stopped and features & WRITTEN_BEHIND_THE_STEP:
        # the gate stops within the only step, before the script writes: an error that says so
        said = " ".join((recorded.stdout + recorded.stderr).split())
        if recorded.returncode == 0 or STOPPED_BEFORE not in said:
            yield f"no error that says when the gate stopped: {_last(recorded)}"
        return
    if recorded.returncode != 0:
        yield f"the baseline was not recorded: {_last(recorded)}"
        return
    base = project.commit()
    project.write(SCRIPT, whole.replace("SCALE = 1.0", "SCALE = 1.5"))
    project.commit()
    out = folder / "out"
    gated = _repro_gate(python, project.path, "gate", "--base", base, "--out", str(out))
    if not (out / "verdict.json").exists():
        yield f"no verdict: {_last(gated)}"
        return
    verdict = json.loads((out / "verdict.json").read_text())
    resume = verdict["resume"] or {"state": "not made", "fault": None}
    if RESUMING & features and resume["state"] != "exact":
        yield f"the resume is {resume['state']}: {resume['fault']}"
    yield from _false(verdict, gated, (out / "comment.md").read_text(), changed_line(features))


def _false(
    verdict: dict[str, object],
    gated: subprocess.CompletedProcess[str],
    comment: str,
    line: int,
) -> Iterator[str]:
    if (verdict["outcome"], gated.returncode) != ("code-drift", 1):
        yield f"{verdict['outcome']}, exit code {gated.returncode}: {_last(gated)}"
        return
    printed = gated.stdout + gated.stderr + comment
    yield from (word for word in ("Traceback", "itself failed") if word in printed)
    diagnosis = verdict["diagnosis"]
    if not isinstance(diagnosis, dict):
        yield "no diagnosis"
        return
    if diagnosis["first_step"] != 1:
        yield f"first step {diagnosis['first_step']}"
    if f"{SCRIPT}:{line}" not in comment.partition("<details>")[0]:
        trace = diagnosis.get("trace") or {}
        yield f"the first block lacks {SCRIPT}:{line}; the trace: {trace.get('sentence', 'none')}"


def _repro_gate(python: str, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    here = Path(python).absolute().parent
    command = [python, "-m", "gate", *words]
    environment = {**os.environ, **IDENTITY, "PATH": f"{here}:{IDENTITY['PATH']}"}
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines)[-1][:300]


def table(rows: list[Told], features: tuple[Feature, ...]) -> Iterator[str]:
    """The page in Markdown: who was tried with whom."""
    failed = [row for row in rows if row.problems]
    yield "# Two features at a time\n"
    yield (
        "`make test-pairs`: a small training that uses two features, and one number of its "
        "forward pass changes. Right is: code drift from step 1, the changed line in the first "
        "block of the comment, and no fault.\n"
    )
    together = len(pairs_of(Feature))
    yield (
        f"Of {together} pairs that go together {len(rows)} were asked: {len(rows) - len(failed)} "
        f"right, {len(failed)} not.\n"
    )
    for machine, count in Counter(row.machine for row in rows).items():
        yield f"- {machine}: {count} pairs"
    yield ""
    yield f"| | {' | '.join(features)} |"
    yield "|---" * (len(features) + 1) + "|"
    known = {row.features: "**no**" if row.problems else "yes" for row in rows}
    for one in features:
        cells = (known.get(frozenset((one, other)), "") for other in features)
        yield f"| {one} | {' | '.join(cells)} |"
    if failed:
        yield "\n| pair | what was wrong |"
        yield "|---|---|"
        for row in failed:
            yield f"| {' + '.join(sorted(row.features))} | {'; '.join(row.problems)} |"


def main() -> int:
    """Run the pairs; see the module's text."""
    parser = argparse.ArgumentParser(description="Gate every two features together.")
    parser.add_argument("features", nargs="*", type=Feature)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    features = available(chosen.python)
    asked = set(chosen.features)
    pairs = [
        pair
        for pair in pairs_of(features)
        if not asked or pair <= asked or (len(asked) == 1 and asked <= pair)
    ]
    answers = Answers(chosen.answers)
    missing = set(pairs) - {row.features for row in answers.known}
    with ProcessPoolExecutor(chosen.jobs) as pool:
        running = [pool.submit(told, pair, chosen.python) for pair in pairs if pair in missing]
        for done in as_completed(running):
            answers.add(done.result())
            row = answers.known[-1]
            mark = "; ".join(row.problems) or "right"
            print(f"{' + '.join(sorted(row.features))}: {mark}", flush=True)
    # without names all that is known, also the pairs that another machine answered
    rows = [row for row in answers.known if not asked or row.features in pairs]
    failed = sum(bool(row.problems) for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} pairs right")
    if chosen.write:
        shown = tuple(one for one in Feature if any(one in row.features for row in rows))
        chosen.write.write_text("\n".join(table(rows, shown)) + "\n", "utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
