"""A digest of all parameters after a step, sensitive to every bit and to every position.

Both kinds end in one SHA-256 over, for each parameter in the optimizer's order, a header (type and
shape as text, ended by a newline) and a body:

- `sha256`: the body is the tensor's row-major little-endian bytes. Used when all are on the CPU.
- `poly64`: the body of a tensor on another device is the 8 bytes of
  P = sum over i of w[i] * M**i (mod 2**64), where w are its elements read as signed integers of
  their own width (8-byte and wider ones as 4-byte words) in row-major order and M is the multiplier
  of Knuth's MMIX generator. Integer sums do not depend on the order in which threads add, and
  all P are copied to the host together.

Why P misses no single fault: M is odd, so changing one word by d changes P by d * M**i, which is
never 0 for |d| < 2**32. Swapping words i < j changes it by (w[i] - w[j]) * M**i * (M**(j-i) - 1);
M = 5 (mod 8), so the last factor has at most 2 + log2(j-i) factors of two and the first at most
31: below 2**31 words apart their sum stays under 64 and the product is not 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import torch

from .tensor_bytes import UnsupportedTensorError, local, row_major, use_bytes

MULTIPLIER: Final = 6364136223846793005
CHUNK_WORDS: Final = 1 << 20
_WORD_TYPES: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32}

_powers_of: dict[torch.device, torch.Tensor] = {}


def parameters_digest(parameters: Sequence[torch.Tensor], on_problem: Callable[[str], None]) -> str:
    """`algorithm:hex` over the parameters; one copy to the host for each device that is not a CPU.

    A parameter without plain memory is left out and told to `on_problem`.
    """
    usable = [_usable(parameter, index, on_problem) for index, parameter in enumerate(parameters)]
    polynomials = _polynomials([tensor for tensor in usable if tensor is not None])
    hasher = hashlib.sha256()
    for tensor in usable:
        if tensor is None:
            hasher.update(b"left out\n")
            continue
        hasher.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode("ascii"))
        if tensor.device.type == "cpu":
            use_bytes(tensor, hasher.update)
        else:
            value = polynomials[tensor.device].pop(0)
            hasher.update(value.to_bytes(8, "little", signed=True))
    return f"{'poly64' if polynomials else 'sha256'}:{hasher.hexdigest()}"


def _usable(
    parameter: torch.Tensor, index: int, on_problem: Callable[[str], None]
) -> torch.Tensor | None:
    try:
        return local(parameter)
    except UnsupportedTensorError as error:
        on_problem(f"parameter {index} is left out of the digest: {error}")
        return None


def _polynomials(tensors: Sequence[torch.Tensor]) -> dict[torch.device, list[int]]:
    """The values of P in order, by device; all are started before the first is waited for."""
    started: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.device.type != "cpu":
            started.setdefault(tensor.device, []).append(polynomial(tensor))
    return {device: torch.stack(values).tolist() for device, values in started.items()}


def polynomial(tensor: torch.Tensor) -> torch.Tensor:
    """P of one tensor, an int64 scalar on its device, computed without waiting for the device."""
    dense = row_major(tensor).reshape(-1)
    words = dense.view(_WORD_TYPES.get(dense.element_size(), torch.int32))
    powers = _powers(dense.device)
    total = torch.zeros((), dtype=torch.int64, device=dense.device)
    for start in range(0, words.numel(), CHUNK_WORDS):
        chunk = words[start : start + CHUNK_WORDS].to(torch.int64)
        chunk.mul_(powers[: chunk.numel()])
        total += chunk.sum() * _signed(pow(MULTIPLIER, start, 1 << 64))
    return total


def _powers(device: torch.device) -> torch.Tensor:
    """M**0 to M**(CHUNK_WORDS-1), made once a device by doubling."""
    if device not in _powers_of:
        powers = torch.ones(1, dtype=torch.int64, device=device)
        while powers.numel() < CHUNK_WORDS:
            factor = _signed(pow(MULTIPLIER, powers.numel(), 1 << 64))
            powers = torch.cat([powers, powers * factor])
        _powers_of[device] = powers
    return _powers_of[device]


def _signed(value: int) -> int:
    """The same 64 bits as the signed integer that torch takes."""
    return value - (1 << 64) if value >= 1 << 63 else value
