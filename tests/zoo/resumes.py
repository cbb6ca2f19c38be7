"""Let the gate resume scripts that lack one thing each, and correct ones, and check what it names.

    python tests/zoo/resumes.py [--write docs/results/resume-zoo.md] [NAME ...]

Ends with 1 where another thing is named than the one that is missing, or a correct script accused.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml
from gate_bench import Bench
from git_workshop import Repository

from gate.diagnosis.diagnosis import ResumeCauseKind as Kind
from gate.verdict.resume_verdict import TORN
from gate.verdict.verdict import Outcome, Verdict

STEPS, AT_STEP = 12, 6
CHECKPOINT: Final = "out/last.pt"
# each line that restores something ends with its name, and is taken out of the script that lacks it
SCRIPT: Final = """\
import os, random, signal, sys
import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

data = torch.randn(64, 8)
target = data.sum(1, keepdim=True)
order = torch.randperm(64)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.7)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
step = place = 0
if os.path.exists("out/last.pt"):
    saved = torch.load("out/last.pt", weights_only=False)
    model.load_state_dict(saved["model"])  # weights
    optimizer.load_state_dict(saved["optimizer"])  # optimizer
    scheduler.load_state_dict(saved["scheduler"])  # scheduler
    scaler.load_state_dict(saved["scaler"])  # scaler
    average.load_state_dict(saved["average"])  # average
    place = saved["place"]  # sampler
    step = saved["step"]
    torch.set_rng_state(saved["torch"])  # torch
    np.random.set_state(saved["numpy"])  # numpy
    random.setstate(saved["python"])  # python
    EXTRA


def save():
    os.makedirs("out", exist_ok=True)
    state = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(), "scaler": scaler.state_dict(),
        "average": average.state_dict(), "place": place, "step": step,
        "torch": torch.get_rng_state(), "numpy": np.random.get_state(),
        "python": random.getstate(),
    }
    torch.save(state, "out/last.part")
    os.replace("out/last.part", "out/last.pt")


stopping = []
HANDLER
while step < 100:
    rows = order[[(place + one) % 64 for one in range(4)]]
    place += 4
    batch = data[rows]
    wanted = target[rows] + 0.1 * float(np.random.rand()) * random.random()
    with torch.autocast("cpu", enabled=False):
        loss = ((model(batch) - wanted) ** 2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    average.update_parameters(model)
    step += 1
    if SAVES:
        save()
    if stopping:
        sys.exit(0)
"""
RANKS: Final = """\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
data = torch.randn(64, 8)
target = data.sum(1, keepdim=True)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(7 + rank)
step = 0
if os.path.exists("out/last.pt"):
    saved = torch.load("out/last.pt")
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
    torch.set_rng_state(saved["torch"][RANK])
while step < 100:
    rows = [(step * 8 + rank * 4 + one) % 64 for one in range(4)]
    loss = ((model(data[rows]) - target[rows]) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 3 == 0:
        states = [torch.empty_like(torch.get_rng_state()) for _ in range(world)]
        dist.all_gather(states, torch.get_rng_state())
        if rank == 0:
            os.makedirs("out", exist_ok=True)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step, "torch": states}, "out/last.pt")
        dist.barrier()
"""
FOLDERS: Final = """\
import os
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
data = torch.randn(64, 8)
target = data.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
MODEL
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
step = 0
if os.path.exists("out/last"):
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": torch.zeros(1, dtype=torch.int64)}
    dcp.load(state, checkpoint_id="out/last")
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    step = int(state["step"])
while step < 100:
    rows = [(step * 8 + rank * 4 + one) % 64 for one in range(4)]
    loss = ((model(data[rows]) - target[rows]) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step == 6:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": torch.tensor([step])}
        dcp.save(state, checkpoint_id="out/last")
"""
# each optimizer steps after a backward pass of its own, as in adversarial training
TWO: Final = """\
import os
import torch
from torch import nn

data = torch.randn(64, 8)
model, critic = nn.Linear(8, 8), nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
second = torch.optim.SGD(critic.parameters(), lr=0.01, momentum=0.9)
step = 0
if os.path.exists("out/last.pt"):
    saved = torch.load("out/last.pt")
    model.load_state_dict(saved["model"])
    critic.load_state_dict(saved["critic"])
    optimizer.load_state_dict(saved["optimizer"])
    second.load_state_dict(saved["second"])  # second
    step = saved["step"]
while step < 100:
    batch = data[[(step * 4 + one) % 64 for one in range(4)]]
    optimizer.zero_grad()
    critic(model(batch)).square().mean().backward()
    optimizer.step()
    second.zero_grad()
    (critic(model(batch).detach()) - 1).square().mean().backward()
    second.step()
    step += 1
    if step % 3 == 0:
        os.makedirs("out", exist_ok=True)
        state = {"model": model.state_dict(), "critic": critic.state_dict(), "step": step}
        state |= {"optimizer": optimizer.state_dict(), "second": second.state_dict()}
        torch.save(state, "out/last.part")
        os.replace("out/last.part", "out/last.pt")
"""
HANDLER: Final = "signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))"
EVERY: Final = "step % 3 == 0"
ZERO_MOMENT: Final = "[one['exp_avg_sq'].zero_() for one in optimizer.state.values()]"
ZERO_COUNT: Final = ZERO_MOMENT.replace("exp_avg_sq", "step")
HALF: Final = "[one.data.copy_(one.half().float()) for one in model.parameters()]"
IN_PLACE: Final = '"out/last.pt")\n        dist.barrier()'
RENAMED: Final = IN_PLACE.replace(
    'last.pt")', 'last.part")\n            os.replace("out/last.part", "out/last.pt")'
)
SECOND: Final = '    second.load_state_dict(saved["second"])  # second\n'


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """A script, how many ranks it has, and what the gate has to name; nothing where it is right."""

    name: str
    script: str
    kind: Kind | None = None
    says: str = ""
    ranks: int = 1
    checkpoint: str = CHECKPOINT
    kill: bool = False
    torn: str = ""
    """What a kill inside the save leaves torn, where it leaves no complete checkpoint."""


def plain(
    lacks: str = "", *, extra: str = "pass", saves: str = EVERY, handler: str = "pass"
) -> str:
    """The script without the line that ends with that name."""
    lines = [line for line in SCRIPT.splitlines() if not lacks or not line.endswith(f"# {lacks}")]
    text = "\n".join(lines) + "\n"
    return text.replace("EXTRA", extra).replace("SAVES", saves).replace("HANDLER", handler)


ALL: Final = (
    Resumed(name="torch", script=plain("torch"), kind=Kind.RANDOM, says="torch's generator"),
    Resumed(name="numpy", script=plain("numpy"), kind=Kind.RANDOM, says="NumPy's generator"),
    Resumed(name="python", script=plain("python"), kind=Kind.RANDOM, says="Python's generator"),
    Resumed(name="scheduler", script=plain("scheduler"), kind=Kind.SCHEDULE, says="learning rate"),
    Resumed(name="optimizer", script=plain("optimizer"), kind=Kind.OPTIMIZER, says="its state"),
    Resumed(
        name="moment",
        script=plain(extra=ZERO_MOMENT),
        kind=Kind.OPTIMIZER,
        says="second moment (exp_avg_sq) is zero",
    ),
    Resumed(name="scaler", script=plain("scaler"), kind=Kind.LOSS_SCALE, says="loss scale is"),
    Resumed(name="average", script=plain("average"), kind=Kind.AVERAGE, says="moving average"),
    Resumed(
        name="sampler", script=plain("sampler"), kind=Kind.SAMPLER, says="batch 7 is batch 1's"
    ),
    Resumed(name="weights", script=plain("weights"), kind=Kind.IGNORED, says="starts over"),
    Resumed(
        name="buffers",
        script=plain(extra="model[1].reset_running_stats()"),
        kind=Kind.WEIGHTS,
        says="of the model",
    ),
    Resumed(
        name="step-count",
        script=plain(extra=ZERO_COUNT),
        kind=Kind.OPTIMIZER,
        says="the optimizer's step count (step) is zero",
    ),
    Resumed(
        name="half-precision",
        script=plain(extra=HALF),
        kind=Kind.WEIGHTS,
        says="of the model",
    ),
    Resumed(
        name="second-optimizer",
        script=TWO.replace(SECOND, ""),
        kind=Kind.OPTIMIZER,
        says="the second optimizer starts without its state: the momentum (momentum_buffer)",
    ),
    Resumed(
        name="rank-state",
        script=RANKS.replace("RANK]", "0]"),
        kind=Kind.RANDOM,
        says="torch's generator of rank 1 has the state of rank 0",
        ranks=2,
    ),
    Resumed(
        name="repeated-step",
        script=TWO.replace('step = saved["step"]', 'step = saved["step"] - 1'),
        kind=Kind.REPEATED,
        says="repeats the data of step 6",
    ),
    Resumed(name="correct", script=plain()),
    Resumed(name="correct-on-signal", script=plain(saves="stopping", handler=HANDLER)),
    Resumed(name="correct-with-handler", script=plain(handler=HANDLER)),
    Resumed(name="correct-two-optimizers", script=TWO),
    Resumed(name="correct-ranks", script=RANKS.replace("RANK]", "rank]"), ranks=2),
    Resumed(
        name="correct-folder-ddp",
        script=FOLDERS.replace("MODEL", "model = nn.parallel.DistributedDataParallel(model)"),
        ranks=2,
        checkpoint="out/last",
    ),
    Resumed(
        name="correct-folder-fsdp",
        script=FOLDERS.replace("MODEL", "fully_shard(model)"),
        ranks=2,
        checkpoint="out/last",
    ),
    Resumed(
        name="killed-ranks",
        script=RANKS.replace("RANK]", "rank]"),
        ranks=2,
        kill=True,
        torn="train.py:35 writes out/last.pt in place",
    ),
    Resumed(
        name="killed-folder-fsdp",
        script=FOLDERS.replace("MODEL", "fully_shard(model)").replace("step == 6", EVERY),
        ranks=2,
        checkpoint="out/last",
        kill=True,
        torn="train.py:36 writes out/last/__0_0.distcp in place",
    ),
    # a file is cut in the folder, beside those of a complete checkpoint
    Resumed(name="correct-killed-folder", script=TWO, checkpoint="out", kill=True),
    Resumed(
        name="correct-killed-ranks",
        script=RANKS.replace("RANK]", "rank]").replace(IN_PLACE, RENAMED),
        ranks=2,
        kill=True,
    ),
)


def gated(case: Resumed, place: Path, bench: type[Bench] = Bench) -> Verdict:
    """Gate a real repository with the script."""
    project = Repository(place / "project")
    start = ["torchrun", "--nproc-per-node", str(case.ranks)] if case.ranks > 1 else ["python"]
    settings = {
        "version": 1,
        "train": {"command": [*start, "train.py"], "max_steps": STEPS},
        "resume": {
            "checkpoint": case.checkpoint,
            "at_step": AT_STEP,
            "kill_while_saving": case.kill,
        },
        "cost": {"when": "never"},
    }
    project.write("repro-gate.yml", yaml.safe_dump(settings))
    project.write("train.py", case.script)
    project.commit()
    return bench(project, place / "out").gate().verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What the gate said of a script, and whether that is all of what is so and no more."""

    case: Resumed
    outcome: str
    sentence: str
    right: bool


def told(case: Resumed) -> Told:
    """One script in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        verdict = gated(case, Path(folder))
    causes = () if verdict.resume is None else verdict.resume.causes
    named = "; ".join(one.sentence for one in causes)
    torn = [one.message for one in verdict.findings if one.code == TORN]
    named = named or "; ".join(torn)
    if case.torn:
        right = not causes and len(torn) == 1 and torn[0].startswith(case.torn)
    elif case.kind is None:
        right = verdict.outcome is Outcome.NO_BASELINE and not torn
        right &= not case.kill or (verdict.resume is not None and verdict.resume.survives_kills)
    else:
        # what follows from it may stand behind it
        right = [one.kind for one in causes][:1] == [case.kind] and case.says in named
    sentence = named or ("" if right else verdict.cause)
    return Told(case=case, outcome=verdict.outcome.value, sentence=sentence, right=right)


def table(rows: list[Told]) -> Iterator[str]:
    """The page in Markdown."""
    right = sum(row.right for row in rows)
    yield "# Resumed scripts that lack one thing\n"
    yield (
        "`make test-zoo`: each script of `tests/zoo/resumes.py` saves every few steps. It is "
        f"interrupted after step {AT_STEP} of {STEPS}, and resumed from its checkpoint alone. Each "
        "lacks one line of a correct script, or undoes one; those called correct lack nothing, and "
        "those called killed are also ended inside a save. "
        "*Right* is the missing state by name, first where others follow from it, and no word of a "
        "correct script.\n"
    )
    yield (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}: of {len(rows)} scripts "
        f"{right} right, {len(rows) - right} not.\n"
    )
    yield "| script | ranks | outcome | what the gate names | right |"
    yield "|---|---|---|---|---|"
    for row in rows:
        mark = "yes" if row.right else "**no**"
        yield f"| {row.case.name} | {row.case.ranks} | {row.outcome} | {row.sentence} | {mark} |"


def main() -> int:
    """Run them; see the module's text."""
    parser = argparse.ArgumentParser(description="Resume scripts that lack one thing.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    cases = [one for one in ALL if not chosen.names or one.name in chosen.names]
    rows = []
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for row in pool.map(told, cases):
            rows.append(row)
            mark = "right" if row.right else "wrong"
            print(f"{mark} {row.case.name}: {row.outcome}: {row.sentence}", flush=True)
    right = sum(row.right for row in rows)
    print(f"{right} of {len(rows)} right")
    if chosen.write:
        chosen.write.write_text("\n".join(table(rows)) + "\n", "utf-8")
    return 0 if right == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
