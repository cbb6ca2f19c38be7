"""A separate program: ranks all-reduce given gradients many times while the machine is busy.

    torchrun --nproc-per-node N all_reduce.py REPETITIONS

Beside it are `rank-0.safetensors` to `rank-(N-1).safetensors`: the contribution of each rank. Every
second repetition gives the contributions to other ranks, as another placement of ranks would. Rank
0 writes `all-reduce.json` to the folder in REPRO_GATE_OUT. The program needs nothing but torch. The
gate reads its output as an untrusted `AllReduceSpread`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Tensor = Any
Tensors = dict[str, Tensor]
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
# as many numbers of each rank are summed; each rank has the contributions of all ranks in memory
MAX_ELEMENTS = 4_000_000
MAX_DELAY_SECONDS = 0.002
DECADES = (0, 1, 2, 3, 4)
ORDERS = 8
# with two ranks, both orders give the same sum
LEAST_RANKS = 3


def gradients(path: Path) -> Tensors:
    """Return the float tensors of a safetensors file by name, up to `MAX_ELEMENTS` numbers."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    by_name: Tensors = {}
    elements = 0
    for name, entry in sorted(json.loads(data[8:end]).items()):
        if name == "__metadata__" or entry["dtype"] not in DTYPES:
            continue
        first, last = entry["data_offsets"]
        raw = bytearray(data[end + first : end + last])
        if not raw:
            continue
        tensor = torch.frombuffer(raw, dtype=DTYPES[entry["dtype"]])
        elements += tensor.numel()
        if elements > MAX_ELEMENTS:
            break
        by_name[name] = tensor
    return by_name


class Load:
    """Keeps a thread busy during the reductions, as other work on a machine does."""

    def __init__(self) -> None:
        """Start the load."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        numbers = torch.ones(96, 96)
        while not self._ended.is_set():
            numbers = (numbers @ numbers).clamp(max=1.0)

    def end(self) -> None:
        """End the load."""
        self._ended.set()
        self._thread.join()


class Spread:
    """How far the results of one tensor are apart, element by element, and from the exact sum."""

    def __init__(self, parts: list[Tensor]) -> None:
        """Take the contribution of each rank."""
        exact = torch.stack([part.double() for part in parts])
        self.sum, self.magnitude = exact.sum(dim=0), exact.abs().sum(dim=0)
        self.low = torch.full_like(self.sum, math.inf)
        self.high = torch.full_like(self.sum, -math.inf)
        self.first: Tensor = None
        self.total, self.squares = torch.zeros_like(self.sum), torch.zeros_like(self.sum)
        self.count, self.error = 0, 0.0
        self.same: set[bytes] = set()
        self.placed: set[bytes] = set()

    def add(self, result: Tensor, *, same: bool) -> None:
        """Add a result; `same` is true if each rank contributed its own part."""
        digest = hashlib.sha256(result.view(torch.uint8).numpy().tobytes()).digest()
        self.placed.add(digest)
        if same:
            self.same.add(digest)
        values = result.double()
        self.low, self.high = torch.minimum(self.low, values), torch.maximum(self.high, values)
        # Relative to the first result: for values that hardly move, squares would lose all digits.
        self.first = values if self.first is None else self.first
        away = values - self.first
        self.total, self.squares = self.total + away, self.squares + away * away
        self.count += 1
        self.error = max(self.error, self._largest((values - self.sum).abs()))

    def _largest(self, distance: Tensor) -> float:
        """Return the largest distance, relative to the sum of the magnitudes of that element."""
        known = self.magnitude > 0
        return float((distance[known] / self.magnitude[known]).max()) if known.any() else 0.0

    @property
    def spread(self) -> float:
        """The widest range of an element's results."""
        return self._largest(self.high - self.low)

    @property
    def deviation(self) -> float:
        """The largest standard deviation of an element's results."""
        mean = self.total / self.count
        return self._largest((self.squares / self.count - mean * mean).clamp(min=0).sqrt())


def reduced(tensor: Tensor, device: str) -> Tensor:
    """Return the sum of the tensor over all ranks."""
    mine = tensor.clone().to(device)
    dist.all_reduce(mine)
    return mine.cpu()


def finite(value: float) -> float | None:
    """Return the value, or None if JSON cannot express it."""
    return value if math.isfinite(value) else None


def main() -> None:
    """Run the whole measurement; called in each rank."""
    repetitions = int(sys.argv[1])
    folder = Path(__file__).resolve().parent
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= world
    backend, device = ("nccl", f"cuda:{rank}") if on_gpu else ("gloo", "cpu")
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group(backend)
    given = [gradients(folder / f"rank-{other}.safetensors") for other in range(world)]
    usable = [name for name in given[0] if fits([values.get(name) for values in given])]
    spreads = {name: Spread([rank_values[name] for rank_values in given]) for name in usable}
    # `shuffled` has one seed in all ranks: each has to know which rank contributes what. `waits`
    # has none, so that the ranks arrive in a different order each time.
    shuffled, waits, load = random.Random(0), random.Random(), Load()  # noqa: S311 - no secret
    for number in range(2 * repetitions):
        same = not number % 2
        places = list(range(world)) if same else shuffled.sample(range(world), world)
        time.sleep(waits.random() * MAX_DELAY_SECONDS)
        for name in usable:
            result = reduced(given[places[rank]][name], device)
            if rank == 0:
                spreads[name].add(result, same=same)
    growth = [grown(given, usable, decades, rank, device) for decades in DECADES]
    load.end()
    if rank == 0:
        asked = {"ranks": world, "backend": backend, "repetitions": repetitions}
        write(spreads, {**asked, "growth": growth, "skipped": len(given[0]) - len(usable)})
    dist.barrier()
    dist.destroy_process_group()


def fits(parts: list[Tensor]) -> bool:
    """Whether all ranks have the tensor, with one size and type and only finite numbers."""
    if any(part is None for part in parts):
        return False
    kinds = {(part.dtype, part.numel()) for part in parts}
    return len(kinds) == 1 and all(bool(torch.isfinite(part.double()).all()) for part in parts)


def grown(
    given: list[Tensors], names: list[str], decades: int, rank: int, device: str
) -> dict[str, Any]:
    """Return the spread over placements when the parts are larger but their sum is the same.

    Two ranks get numbers that cancel. They are 10 to the power of `decades` times as large as the
    tensor's largest number.
    """
    worst, world = 0.0, len(given)
    for name in names if world >= LEAST_RANKS else ():
        parts = [rank_values[name] for rank_values in given]
        size = max(float(part.abs().max()) for part in parts)
        if not size or parts[0].dtype not in {torch.float32, torch.float64}:
            continue
        extra = torch.full_like(parts[0], size * 10.0**decades)
        large = [parts[0] + extra, parts[1] - extra, *parts[2:]]
        shuffled = random.Random(decades)  # noqa: S311 - no secret
        placed = [shuffled.sample(range(world), world) for _ in range(ORDERS)]
        results = torch.stack([reduced(large[places[rank]], device).double() for places in placed])
        worst = max(worst, float((results.amax(dim=0) - results.amin(dim=0)).max()) / size)
    return {"decades": decades, "spread": finite(worst)}


def write(spreads: dict[str, Spread], facts: dict[str, Any]) -> None:
    """Write what rank 0 measured as JSON."""
    found_spreads = spreads.values()
    facts |= {
        "schema_version": "repro-gate.all-reduce/1",
        "tensors": len(spreads),
        "elements": sum(spread.sum.numel() for spread in found_spreads),
        "same_results": max((len(spread.same) for spread in found_spreads), default=0),
        "placed_results": max((len(spread.placed) for spread in found_spreads), default=0),
        "worst_tensor": max(spreads, key=lambda name: spreads[name].spread, default="")[:200],
        "spread": finite(max((spread.spread for spread in found_spreads), default=0.0)),
        "deviation": finite(max((spread.deviation for spread in found_spreads), default=0.0)),
        "error": finite(max((spread.error for spread in found_spreads), default=0.0)),
    }
    Path(os.environ["REPRO_GATE_OUT"], "all-reduce.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
