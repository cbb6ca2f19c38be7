"""Buffers of the model that hold the same bytes at the end as before the first forward pass.

What a module registers before then counts too: some libraries call their modules past `Module`, so
that no first call is seen.

An infinity in one of them is a constant of the script's, such as a bound or a mask, and no number
that the training came to. Equal bytes at both ends are the only proof: a running average that has
overflowed stays infinite too.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from ..plain_bytes import byte_size, use_bytes

MAX_BUFFERS = 1000
MAX_BYTES = 4 << 20
MAX_ALL_BYTES = 64 << 20
MAX_NAME = 1000


class ConstantBuffers:
    """What buffers hold before the training begins, and which of it is still the same.

    That is when they are registered, and once more when the first module is called: until then a
    script fills them.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[weakref.ref[torch.Tensor], bytes]] = {}
        self._places: set[tuple[int, str]] = set()
        self._left = MAX_ALL_BYTES
        self._begun = False

    def note_registered(self, module: nn.Module, name: str, buffer: torch.Tensor | None) -> None:
        """Remember a buffer as it is registered, until a module is called.

        What takes the place of another was computed, and may be what the training came to.
        """
        place = id(module), name
        if self._begun or place in self._places or len(self._places) >= MAX_BUFFERS:
            return
        self._places.add(place)
        if buffer is not None:
            self._remember(buffer)

    def look(self, module: nn.Module) -> None:
        """Remember the floating-point buffers of a module that is about to be called; once."""
        if not self._begun:
            self._begun = True
            for buffer in module.buffers():
                self._remember(buffer)

    def _remember(self, buffer: torch.Tensor) -> None:
        if not _can_hold(buffer):
            return
        known = self._before.get(id(buffer))
        # a number may have been that of a buffer that is gone
        if known is None or known[0]() is not buffer:
            if len(self._before) >= MAX_BUFFERS or byte_size(buffer) > self._left:
                return
            self._left -= byte_size(buffer)
        self._before[id(buffer)] = weakref.ref(buffer), _digest(buffer)

    def names(self, modules: Sequence[nn.Module]) -> list[str]:
        """The names, as the state has them, of those that hold the same infinities now."""
        return sorted(self._constant(modules))[:MAX_BUFFERS]

    def _constant(self, modules: Sequence[nn.Module]) -> Iterator[str]:
        for number, module in enumerate(modules):
            for name, buffer in module.named_buffers(remove_duplicate=False):
                reference, digest = self._before.get(id(buffer), (None, b""))
                same = reference is not None and reference() is buffer and len(name) < MAX_NAME - 20
                if same and _digest(buffer) == digest and bool(torch.isinf(buffer).any()):
                    yield f"model/{number}/{name}"


def _can_hold(buffer: torch.Tensor) -> bool:
    plain = type(buffer) is torch.Tensor and buffer.layout is torch.strided
    # one on the device `meta` has no bytes
    return (
        plain
        and not buffer.is_meta
        and buffer.is_floating_point()
        and byte_size(buffer) <= MAX_BYTES
    )


def _digest(buffer: torch.Tensor) -> bytes:
    digest = hashlib.sha256(f"{buffer.dtype} {tuple(buffer.shape)}\n".encode())
    with torch.no_grad():
        use_bytes(buffer.detach(), digest.update)
    return digest.digest()
