"""Digests of tensors, sensitive to every bit and to every position.

All end in one SHA-256 over, for each tensor in order, a header (name if given, type and shape as
text, ended by a newline) and a body:

- `sha256`: the body is the tensor's row-major little-endian bytes. For parameters on the CPU,
  because a verdict rests on them.
- `grid64`: the body of a CPU tensor is the digest of its sums over rows and columns (`grid.py`),
  several times as fast. For what only a diagnosis rests on.
- `poly64`: the body of a tensor on another device is the 8 bytes of
  P = sum over i of w[i] * M**i (mod 2**64), where w are its elements read as signed integers of
  their own width (8-byte and wider ones as 4-byte words) in row-major order and M is the multiplier
  of Knuth's MMIX generator. Integer sums do not depend on the order in which threads add.

Reductions on a device are started when a digest is, and copied to the host together when several
digests are finished: one wait a device and step, however many tensors and streams there are.

Why P misses no single fault: M is odd, so changing one word by d changes P by d * M**i, which is
never 0 for |d| < 2**32. Swapping words i < j changes it by (w[i] - w[j]) * M**i * (M**(j-i) - 1);
M = 5 (mod 8), so the last factor has at most 2 + log2(j-i) factors of two and the first at most
31: below 2**31 words apart their sum stays under 64 and the product is not 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch

from .grid import grid_body
from .tensor_bytes import UnsupportedTensorError, local, row_major, use_bytes

MULTIPLIER: Final = 6364136223846793005
CHUNK_WORDS: Final = 1 << 20
_WORD_TYPES: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32}

_powers_of: dict[torch.device, torch.Tensor] = {}

OnProblem = Callable[[str], None]


class StartedDigest:
    """A digest whose device values have not been waited for.

    `fast` takes the bodies of CPU tensors at once and by `grid64`; without it CPU tensors are read
    when the digest is finished, so they must not change in between. A tensor without plain memory
    is left out and told to `on_problem`.
    """

    def __init__(
        self,
        tensors: Iterable[tuple[str, torch.Tensor | None]],
        what: str,
        on_problem: OnProblem,
        *,
        fast: bool,
    ) -> None:
        self._algorithm = "grid64" if fast else "sha256"
        # A tensor of another device is here as its polynomial, a scalar of that device.
        self._parts: list[tuple[bytes, bytes | torch.Tensor]] = []
        for name, tensor in tensors:
            if tensor is None:
                self._parts.append((f"{name} none\n".encode(), b""))
                continue
            try:
                self._add(name, local(tensor), fast=fast)
            except UnsupportedTensorError as error:
                on_problem(f"{what} {name} is left out of the digest: {error}")
                self._parts.append((b"left out\n", b""))

    def _add(self, name: str, tensor: torch.Tensor, *, fast: bool) -> None:
        shown = f"{name} " if fast else ""
        header = f"{shown}{tensor.dtype} {tuple(tensor.shape)}\n".encode()
        if tensor.device.type != "cpu":
            self._algorithm = "poly64"
            self._parts.append((header, polynomial(tensor)))
        else:
            self._parts.append((header, grid_body(tensor) if fast else tensor))

    def device_values(self) -> list[torch.Tensor]:
        """The scalars that are not on the host yet, in order."""
        parts = [body for _, body in self._parts if isinstance(body, torch.Tensor)]
        return [body for body in parts if body.device.type != "cpu"]

    def finish(self, values: dict[torch.device, list[int]]) -> str:
        """`algorithm:hex`; takes this digest's device values off the front of `values`."""
        hasher = hashlib.sha256()
        for header, body in self._parts:
            hasher.update(header)
            if isinstance(body, bytes):
                hasher.update(body)
            elif body.device.type == "cpu":
                use_bytes(body, hasher.update)
            else:
                hasher.update(values[body.device].pop(0).to_bytes(8, "little", signed=True))
        return f"{self._algorithm}:{hasher.hexdigest()}"


def finish_all(started: Sequence[StartedDigest]) -> list[str]:
    """The digests in order; all device values come in one copy a device."""
    waiting: dict[torch.device, list[torch.Tensor]] = {}
    for digest in started:
        for value in digest.device_values():
            waiting.setdefault(value.device, []).append(value)
    values = {device: torch.stack(scalars).tolist() for device, scalars in waiting.items()}
    return [digest.finish(values) for digest in started]


def start_parameters(parameters: Sequence[torch.Tensor], on_problem: OnProblem) -> StartedDigest:
    """The digest that baselines hold: of the parameters alone, by SHA-256 on the CPU."""
    named = ((str(index), parameter) for index, parameter in enumerate(parameters))
    return StartedDigest(named, "parameter", on_problem, fast=False)


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
