"""Auxiliary state of a training: gradient scalers of mixed precision, and averages of weights.

Both influence the next step or the result, so their state is evidence. A step that a scaler skips
counts as a step: the number of steps must not depend on when the last overflow came.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from ..output import Problems
from .state import named_tensors
from .training_hooks import outside_compiler

# Attribute of the scaled loss, which is freed after its backward pass, so nothing needs cleaning
# up.
_UNSCALED = "_repro_gate_unscaled"

Step = Callable[[], Any]
OnScalerStep = Callable[[GradScaler, Optimizer, Step], Any]
# Whether a step changed nothing. None without a scaler; a tensor if the answer is still on a
# device.
Skipped = torch.Tensor | bool | None
OnAverage = Callable[[nn.Module], None]


class AuxiliaryState:
    """The scalers and averages of one process, in the order of their first use."""

    def __init__(self) -> None:
        self._scalers: list[GradScaler] = []
        self._averages: list[nn.Module] = []

    def note_scaler(self, scaler: GradScaler) -> None:
        """Remember a scaler, and keep it alive until the state is written."""
        if not any(known is scaler for known in self._scalers):
            self._scalers.append(scaler)

    def note_average(self, average: nn.Module) -> None:
        """Remember an averaged model, and keep it alive until the state is written."""
        if not any(known is average for known in self._averages):
            self._averages.append(average)

    def capture(self, problems: Problems) -> dict[str, torch.Tensor]:
        """Return their tensors and numbers as `scaler/<i>/<key>` and `average/<i>/<name>`."""
        tensors: dict[str, torch.Tensor] = {}
        kinds: tuple[tuple[str, Sequence[Any]], ...] = (
            ("scaler", self._scalers),
            ("average", self._averages),
        )
        for kind, owners in kinds:
            for number, owner in enumerate(owners):
                with problems.noting(f"reading the state of {kind} {number}"):
                    tensors |= named_tensors(f"{kind}/{number}", owner.state_dict(), problems)
        return tensors


def install(on_scaler_step: OnScalerStep, on_average: OnAverage) -> None:
    """Call back around each step of an enabled `GradScaler` and after each new average."""
    _hook_new_scalers()
    _hook_scaler_steps(on_scaler_step)
    _hook_averages(on_average)


def unscaled(loss: torch.Tensor) -> torch.Tensor:
    """Return the loss before `GradScaler.scale`, or the loss itself if it was not scaled."""
    original: torch.Tensor = getattr(loss, _UNSCALED, loss)
    return original


def skipped_inside(optimizer: Optimizer) -> Skipped:
    """Return whether a fused step did nothing because the gradients had an infinity.

    `GradScaler.step` does not skip a fused optimizer. It sets `found_inf` on the optimizer during
    the step. The tensor may be on a device. It is not read here, since reading would wait.
    """
    found_inf: Any = getattr(optimizer, "found_inf", None)
    return found_inf.detach().clone() if isinstance(found_inf, torch.Tensor) else bool(found_inf)


def _hook_new_scalers() -> None:
    """Hook `scale` of `GradScaler`, and a subclass's own at its first instance."""
    hooked: set[type] = set()

    def new(kind: type[GradScaler], *_: Any, **__: Any) -> GradScaler:
        for owner in set(kind.__mro__) - hooked:
            hooked.add(owner)
            if "scale" in vars(owner):
                _hook_scale_of(owner)
        return object.__new__(kind)

    # Not around `__init__`: warnings from it would then point to this file.
    GradScaler.__new__ = new  # type: ignore[method-assign,assignment]


def _hook_scale_of(kind: Any) -> None:
    plain_scale: Any = kind.scale

    @functools.wraps(plain_scale)
    def scale(self: GradScaler, outputs: Any) -> Any:
        scaled = plain_scale(self, outputs)
        # a disabled scaler returns its argument, which is its own unscaled loss
        if isinstance(outputs, torch.Tensor) and scaled is not outputs:
            setattr(scaled, _UNSCALED, outputs.detach())
        return scaled

    kind.scale = outside_compiler(scale, recursive=False)


def _hook_scaler_steps(on_scaler_step: OnScalerStep) -> None:
    plain_step: Any = GradScaler.step

    @functools.wraps(plain_step)
    def step(self: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            return plain_step(self, optimizer, *args, **kwargs)

        return on_scaler_step(self, optimizer, run) if self.is_enabled() else run()

    GradScaler.step = outside_compiler(step, recursive=False)  # type: ignore[method-assign]


def _hook_averages(on_average: OnAverage) -> None:
    plain_update: Any = AveragedModel.update_parameters

    @functools.wraps(plain_update)
    def update_parameters(self: AveragedModel, model: nn.Module) -> None:
        plain_update(self, model)
        on_average(self)

    AveragedModel.update_parameters = outside_compiler(  # type: ignore[method-assign]
        update_parameters, recursive=False
    )
