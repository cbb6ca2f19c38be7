"""Records what steps are given: the number of samples in a batch, and optimizers' settings.

Settings are recorded at the first steps and then at powers of two, the same steps in every run. A
number on a device is left out, since reading it would make the host wait.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import torch
from torch.optim import Optimizer

_EACH_STEP_UNTIL: Final = 20
_MAX_GROUPS: Final = 100
_MAX_SETTINGS: Final = 500
_MAX_NAME: Final = 80
_OWN_NUMBERS: Final = frozenset((bool, int, float, torch.Tensor))
_NAME_SIGNS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


class GivenSettings:
    """The settings of each optimizer; read only at the steps that record them."""

    def __init__(self) -> None:
        self._noted: dict[int, dict[str, str]] = {}
        self._last_written: dict[int, dict[str, str]] = {}

    def note(self, number: int, optimizer: Optimizer, step: int) -> None:
        """Read the settings before the update of this step."""
        if step <= _EACH_STEP_UNTIL or step & (step - 1) == 0:
            self._noted[number] = settings_of(optimizer)

    def take(self, number: int, optimizer: Optimizer, step: int) -> dict[str, Any]:
        """Return the settings for the step's line if any differs from the last written ones."""
        if number not in self._noted:
            # nothing noted before the step: a scaler skipped it, or it belongs to a replayed graph
            self.note(number, optimizer, step)
        settings = self._noted.pop(number, None)
        if settings is None or settings == self._last_written.get(number):
            return {}
        new = number not in self._last_written
        self._last_written[number] = settings
        return {"settings": settings, **({"kind": _kind(optimizer)} if new else {})}


def settings_of(optimizer: Optimizer) -> dict[str, str]:
    """Return `<group>/<name>` → a short number, equal to the value in the final state."""
    settings: dict[str, str] = {}
    for position, group in enumerate(optimizer.param_groups[:_MAX_GROUPS]):
        for name, value in group.items():
            if name == "params" or type(name) is not str:
                continue
            for path, word in _words(name, value):
                if len(path) <= _MAX_NAME and _NAME_SIGNS.issuperset(path.replace("/", "")):
                    settings[f"{position}/{path}"] = word
                if len(settings) >= _MAX_SETTINGS:
                    return settings
    return settings


def _words(name: str, value: object) -> Iterator[tuple[str, str]]:
    if type(value) is tuple or type(value) is list:
        for position, part in enumerate(value[:_MAX_GROUPS]):
            yield from _words(f"{name}/{position}", part)
        return
    word = _word(value)
    if word is not None:
        yield name, word


def _word(value: object) -> str | None:
    """Return a number of exactly these types; a class of the script's may run code when read."""
    # asked for each setting at each step, and nearly all are numbers of Python's
    if type(value) not in _OWN_NUMBERS:
        value = _plain(value)
    if type(value) is torch.Tensor and value.device.type == "cpu" and not value.dim():
        narrow = value.dtype == torch.float32
        value = value.item()
        if narrow and type(value) is float:
            return _shortest(value)
    if type(value) is bool or type(value) is float:
        return repr(value).lower()
    # the state has no longer integers either
    return repr(value) if type(value) is int and abs(value) < 2**63 else None


def _plain(value: object) -> object:
    """Return a number of NumPy, as schedules by `np.cos` give it, as one of Python's or torch's."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or type(value) not in {numpy.float32, numpy.float64, numpy.int64}:
        return value
    number: Any = value
    narrow = type(value) is numpy.float32
    return (
        torch.tensor(number.item(), dtype=torch.float32, device="cpu") if narrow else number.item()
    )


def _shortest(number: float) -> str:
    """Return a float32 in its shortest form: 0.001, not 0.0010000000474974513."""
    for digits in range(1, 9):
        word = f"{number:.{digits}g}"
        if torch.tensor(float(word), dtype=torch.float32, device="cpu").item() == number:
            return repr(float(word))
    return repr(number)


def _kind(optimizer: Optimizer) -> str:
    name = type(optimizer).__name__
    return name if name.isascii() and name.isidentifier() and len(name) <= _MAX_NAME else ""


# of a batch, and of a container in it: looking costs time of the training
MAX_PARTS: Final = 64
# a longer first dimension is no batch; the gate accepts no larger number
MAX_SAMPLES: Final = 2**32


def samples_in(batch: object) -> int | None:
    """Return the first dimension that all tensors and arrays of a batch share; None if they differ.

    Outer parts are looked at first, at most `MAX_PARTS`. Of a tensor only the shape is read.
    """
    if (type(batch) is list or type(batch) is tuple) and all(
        type(part) is torch.Tensor for part in batch[:MAX_PARTS]
    ):
        # the usual case: a few plain tensors side by side
        return _shared({part.size(0) for part in batch[:MAX_PARTS] if part.dim()})
    # A class of the training's own may raise on any access, and an informational number must not
    # end a strict run.
    with suppress(Exception):
        return _shared(set(islice(_first_dimensions(batch), MAX_PARTS)))
    return None


def _shared(sizes: set[int]) -> int | None:
    size = sizes.pop() if len(sizes) == 1 else None
    return size if size is not None and size <= MAX_SAMPLES else None


def _first_dimensions(batch: object) -> Iterable[int]:
    waiting: deque[Any] = deque((batch,))
    for _ in range(MAX_PARTS):
        if not waiting:
            return
        part = waiting.popleft()
        if isinstance(part, torch.Tensor):
            if part.dim():
                # `size`, since a nested tensor has no `.shape`
                yield part.size(0)
        elif type(part).__module__ == "numpy":
            if part.ndim:
                yield len(part)
        elif isinstance(part, Mapping):
            waiting.extend(islice(part.values(), MAX_PARTS))
        elif isinstance(part, list | tuple):
            waiting.extend(part[:MAX_PARTS])
