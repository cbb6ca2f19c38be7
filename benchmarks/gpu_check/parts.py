"""The table of parts, in order; each part checks one thing and yields rows as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from gpu_check.bench import Bench
from gpu_check.rows import Row

Look = Callable[[Bench], Iterator[Row]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part; `where` is `module:function`, which only the process that runs the part imports."""

    name: str
    title: str
    where: str


def function_of(where: str) -> Look:
    """Import and return the function that `module:function` names."""
    module, _, name = where.partition(":")
    found: Look = getattr(import_module(module), name)
    return found


PARTS = (
    Part(name="facts", title="the machine", where="gpu_check.looking:facts"),
    Part(name="tests", title="the tests that need a GPU", where="gpu_check.looking:tests"),
    Part(name="doctor", title="what the doctor says", where="gpu_check.looking:doctor"),
    Part(
        name="account", title="the device under another account", where="gpu_check.looking:account"
    ),
    Part(
        name="examples", title="both examples through the gate", where="gpu_check.gating:examples"
    ),
    Part(
        name="digests", title="device and host give one digest", where="gpu_check.digests:digests"
    ),
    Part(
        name="observing",
        title="step times with and without observing",
        where="gpu_check.gating:observing",
    ),
    Part(name="workers", title="data workers that seed", where="gpu_check.gating:workers"),
    Part(
        name="stability", title="each workload twice strict", where="gpu_check.repeating:stability"
    ),
    Part(name="compile", title="torch.compile", where="gpu_check.repeating:compiled"),
    Part(name="graphs", title="a whole step in a CUDA graph", where="gpu_check.repeating:graphs"),
    Part(name="knobs", title="precision and torch's old flags", where="gpu_check.repeating:knobs"),
    Part(name="ranks", title="ranks on one device", where="gpu_check.gating:ranks"),
    Part(name="price", title="the price of determinism", where="gpu_check.gating:price"),
    Part(
        name="repeats", title="false alarms in strict repeats", where="gpu_check.repeating:repeats"
    ),
)
BY_NAME = {part.name: part for part in PARTS}
