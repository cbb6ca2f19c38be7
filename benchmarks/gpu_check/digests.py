"""The part `digests`: a digest on the device is the specified sum for each type, and its cost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from gate.harness.plain_tensors import SAFETENSORS_TYPES
from gate.harness.tensor_digests import chunk_sums, finish_all, polynomial, start_parameters
from gpu_check.bench import Bench
from gpu_check.rows import Row, held, told

MULTIPLIER = 6364136223846793005
MASK = (1 << 64) - 1
GPT2_SHAPES = (
    *((50257, 768), (1024, 768)),
    *(((768,), (768,), (768, 2304), (2304,), (768, 768), (768,)) * 12),
    *(((768,), (768,), (768, 3072), (3072,), (3072, 768), (768,)) * 12),
    *((768,), (768,)),
)
MILLI = 1000
ROUNDS = 5


def specified(tensor: torch.Tensor) -> int:
    """Compute P of docs/harness-protocol.md with NumPy, from the tensor's row-major bytes.

    Written from the specification and independent of the harness, so that both can be compared.
    """
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    width = min(dense.element_size(), 4)
    raw = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    words = np.frombuffer(raw, dtype=f"<i{width}").astype(np.int64).astype(np.uint64)
    total, power = 0, 1
    for word in words.tolist():
        total = (total + word * power) & MASK
        power = (power * MULTIPLIER) & MASK
    return total


def shaped(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Return tensors of one dtype with random bits, by layout.

    The layouts are flat, transposed, channels_last, empty, and a scalar.
    """
    width = dtype.itemsize
    drawn = torch.randint(0, 256, (240 * width,), dtype=torch.uint8)
    bits = drawn % 2 if dtype is torch.bool else drawn
    flat = bits.view(dtype).to(device)
    yield "flat", flat
    yield "transposed", flat.reshape(12, 20).t()
    images = flat.reshape(2, 6, 4, 5)
    yield "channels_last", images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    yield "empty", flat[:0]
    yield "scalar", flat[7]


def types(bench: Bench) -> Iterator[Row]:
    """Check the digest of every dtype in every layout, in strict mode."""
    device = torch.device("cuda" if bench.gpu else "cpu")
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(mode=True)
    for dtype in SAFETENSORS_TYPES:
        wrong = [
            name
            for name, tensor in shaped(dtype, device)
            if polynomial([int(chunk) for chunk in chunk_sums(tensor)]) != specified(tensor)
        ]
        seen = f"as specified, computed on {device}"
        what = str(dtype).removeprefix("torch.")
        yield held(what, f"differs: {', '.join(wrong)}" if wrong else seen, holds=not wrong)


def costs(bench: Bench) -> Iterator[Row]:
    """Measure time and memory of the parameters' digest: of many tensors, and of one large one."""
    device = torch.device("cuda" if bench.gpu else "cpu")
    shapes = GPT2_SHAPES if bench.gpu else GPT2_SHAPES[2:14]
    yield _cost(
        f"{len(shapes)} tensors as GPT-2's", [torch.randn(s, device=device) for s in shapes]
    )
    words = bench.sizes.words
    yield _cost(f"one of {words:,} words", [torch.ones(words, device=device)])


def _cost(what: str, tensors: list[torch.Tensor]) -> Row:
    problems: list[str] = []
    times = []
    before = _peak()
    for _ in range(ROUNDS + 1):
        _wait()
        begun = time.perf_counter()
        finish_all([start_parameters(tensors, problems.append)])
        _wait()
        times.append(time.perf_counter() - begun)
    cold, *warm = times
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    seen = (
        f"{min(warm) * MILLI:.2f} ms, cold {cold * MILLI:.2f} ms, "
        f"{size / min(warm) / 1e9:.1f} GB/s, {(_peak() - before) / 2**20:.0f} MiB of scratch"
    )
    if problems:
        return held(what, "; ".join(problems), holds=False)
    return told(what, seen)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def digests(bench: Bench) -> Iterator[Row]:
    """Check the digest of every type, then measure what it costs."""
    yield from types(bench)
    yield from costs(bench)
