"""The faults of a game day: what is planted into which training, and the right answer to it.

A fault that any training can have is planted by a module that the script imports first. The other
faults need a small training of their own, which is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gate.verdict.verdict import FailureMode, Outcome

SCRIPT: Final = "train.py"
MODULE: Final = "repro_gate_gameday.py"
# the training prints this once the planted code ran; without it there was nothing to catch
MARK: Final = "repro-gate gameday: planted"


class Way(StrEnum):
    """How a fault is planted after a baseline was recorded without it."""

    COMMIT = "a commit"
    OUTSIDE = "a file that no setting declares"
    BASELINE = "an entry of another environment"
    DATA = "the declared data"
    KEY = "the trust file"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A fault by its code; `modes` and `outcomes` are those of a right answer.

    `module` is the code that a script of any project imports, or empty if only a built-in training
    can have the fault. `script` is that training with the fault and `before` the same training
    without it. Both are empty for the common training. `extra` is added to its settings. `passes`
    is true if the right answer is a pass that says what moved.
    """

    code: str
    title: str
    way: Way
    modes: frozenset[FailureMode]
    outcomes: frozenset[Outcome]
    module: str = ""
    script: str = ""
    before: str = ""
    extra: str = ""
    command: str = f"python {SCRIPT}"
    passes: bool = False

    @property
    def any_project(self) -> bool:
        """Whether the user's own project can have this fault."""
        return bool(self.module) or self.way in {Way.BASELINE, Way.KEY}


SETTINGS: Final = """\
version: 1
train:
  command: {command}
  max_steps: 8
  timeout_seconds: 300
cost: {{when: never}}
{extra}"""

COMMON: Final = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.sin(torch.arange(6400.0)).reshape(64, 100)
y = x.square().mean(1, keepdim=True)
model = nn.Sequential(nn.Linear(100, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
    loss = (model(inputs) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
# the beginning of every module, and the whole module if nothing is planted
NOTHING: Final = f'''\
"""Planted by `repro-gate gameday` into a copy of the project."""

from pathlib import Path

acted = []


def script(path):
    return Path(path + ".original").read_text("utf-8")


def planted():
    if not acted:
        acted.append(True)
        print("{MARK}", flush=True)
'''
WRAPPER: Final = """\
import repro_gate_gameday; exec(compile(repro_gate_gameday.script(__file__), __file__, "exec"))
"""
NOISE: Final = """
import secrets

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

noise = torch.Generator()
noise.manual_seed(secrets.randbits(60))


def disturb(optimizer, *_):
    planted()
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is not None:
                drawn = torch.randn(weight.grad.shape, generator=noise)
                weight.grad.add_(drawn.to(weight.grad), alpha=1e-3)


register_optimizer_step_pre_hook(disturb)
"""
ORDER: Final = """
import uuid

from torch.utils.data import sampler


def disordered(kind):
    original = kind.__iter__

    def order(self):
        found = list(original(self))
        if len(found) > 1:
            planted()
        return iter(sorted(found, key=lambda _: uuid.uuid4().hex))

    kind.__iter__ = order


disordered(sampler.RandomSampler)
disordered(sampler.SequentialSampler)
"""
PRECISION: Final = """
import torch

torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16).__enter__()
planted()


def widened(module, inputs, output):
    # a loss of a different type would be different work, and no drift of a number
    return output.float() if getattr(output, "dtype", None) == torch.bfloat16 else output


torch.nn.modules.module.register_module_forward_hook(widened)
"""
OUTSIDE: Final = """
from torch.optim.optimizer import register_optimizer_step_pre_hook

try:
    scale = float(Path({place!r}).read_text())
except OSError:
    scale = None


def disturb(optimizer, *_):
    if scale is None:
        return
    planted()
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is not None:
                weight.grad.mul_(scale)


register_optimizer_step_pre_hook(disturb)
"""
UNWRITTEN: Final = """\
import torch

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.linspace(0, 1, 128).reshape(8, 16)
for _ in range(8):
    scratch = torch.tensor([hash(object()) for _ in range(16)])
    del scratch
    mask = torch.{new}(16, dtype=torch.int64)
    mask[:8] = 1
    loss = (model(x * (mask % 1009).float() / 1009) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
RANKS: Final = """\
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    mine = torch.linspace(0, 1, 16) * (10.0 ** (3 * rank)) / 3
    total = mine.clone()
    if rank:
        time.sleep(time.perf_counter_ns() // 1000 % 97 / 1000)
        dist.send(mine, 0)
    else:
        for place in range(2):
            room = torch.empty_like(mine)
            dist.recv(room{source})
            total = total * 0.5 + room * (place + 1)
    dist.broadcast(total, 0)
    loss = (model(total / 1e6) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""
RESUMED: Final = """\
import os
import sys

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.linspace(0, 1, 32).reshape(8, 4)
first = 1
if "--resume" in sys.argv:
    saved = torch.load("last.pt", weights_only=True)
    first = saved["step"] + 1
    model.load_state_dict(saved["model"])
{restored}
for step in range(first, 9):
    loss = (model(x) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state = {{"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}}
    torch.save(state, "last.pt.new")
    os.replace("last.pt.new", "last.pt")
"""
DATA: Final = """\
import os
from pathlib import Path

import torch

text = Path(os.environ["REPRO_GATE_DATA"], "data.txt").read_text()
numbers = [float(word) for word in text.split()]
x = torch.tensor(numbers).reshape(8, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(8):
    loss = (model(x) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DECLARED: Final = "data: [{{path: {place}}}]\n"
RESUME: Final = """\
resume: {command: python train.py --resume, checkpoint: last.pt, at_step: 4}
"""
RESTORED: Final = '    optimizer.load_state_dict(saved["optimizer"])\n'

_REPEAT: Final = frozenset((Outcome.NONDETERMINISTIC,))
_DRIFT: Final = frozenset((Outcome.CODE_DRIFT,))
_MOVED: Final = frozenset((Outcome.ENVIRONMENT_DRIFT,))
FAULTS: Final = (
    Fault(
        code="F1",
        title="noise from a generator without a seed",
        way=Way.COMMIT,
        modes=frozenset((FailureMode.RANDOM,)),
        outcomes=_REPEAT,
        module=NOISE,
    ),
    Fault(
        code="F2",
        title="memory that is read before it is written",
        way=Way.COMMIT,
        modes=frozenset((FailureMode.OPERATOR,)),
        outcomes=_REPEAT,
        script=UNWRITTEN.format(new="empty"),
        before=UNWRITTEN.format(new="zeros"),
    ),
    Fault(
        code="F3",
        title="another version of torch than the baseline's",
        way=Way.BASELINE,
        modes=frozenset((FailureMode.LIBRARY,)),
        outcomes=_MOVED,
    ),
    Fault(
        code="F4",
        title="samples sorted by random keys",
        way=Way.COMMIT,
        modes=frozenset((FailureMode.DATA,)),
        outcomes=_REPEAT,
        module=ORDER,
    ),
    Fault(
        code="F5",
        title="a rank that takes messages as they arrive",
        way=Way.COMMIT,
        modes=frozenset((FailureMode.DISTRIBUTED,)),
        outcomes=_REPEAT,
        script=RANKS.format(source=""),
        before=RANKS.format(source=", src=place + 1"),
        command=f"torchrun --standalone --nproc-per-node 3 {SCRIPT}",
    ),
    Fault(
        code="F6",
        title="products in bfloat16",
        way=Way.COMMIT,
        modes=frozenset((FailureMode.ARITHMETIC,)),
        outcomes=_DRIFT,
        module=PRECISION,
    ),
    Fault(
        code="F7",
        title="a resume that forgets the optimizer",
        way=Way.COMMIT,
        modes=frozenset((FailureMode.CHECKPOINT,)),
        outcomes=frozenset((Outcome.RESUME_DIFFERS,)),
        script=RESUMED.format(restored=""),
        before=RESUMED.format(restored=RESTORED),
        extra=RESUME,
    ),
    Fault(
        code="F8",
        title="one commit with two results, by a file that nobody declared",
        way=Way.OUTSIDE,
        modes=frozenset((FailureMode.FLAKY,)),
        outcomes=_MOVED,
        module=OUTSIDE,
    ),
    Fault(
        code="moved-data",
        title="declared data with another content",
        way=Way.DATA,
        modes=frozenset((FailureMode.DATA,)),
        outcomes=frozenset((Outcome.DATA_DRIFT,)),
        script=DATA,
        before=DATA,
    ),
    Fault(
        code="deleted-snapshot",
        title="declared data that is gone",
        way=Way.DATA,
        modes=frozenset((FailureMode.NONE,)),
        outcomes=frozenset((Outcome.ERROR,)),
        script=DATA,
        before=DATA,
    ),
    Fault(
        code="revoked-key",
        title="a package whose key was revoked",
        way=Way.KEY,
        modes=frozenset(),
        outcomes=frozenset(),
    ),
    Fault(
        code="node-upgrade",
        title="a node with another driver than the baseline's",
        way=Way.BASELINE,
        modes=frozenset((FailureMode.NONE,)),
        outcomes=frozenset((Outcome.WITHIN_TOLERANCE,)),
        passes=True,
    ),
)
