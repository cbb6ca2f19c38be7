"""Compute one digest alone, as the harness's observer computes it among others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gate.harness.tensor_digests import chunk_sums, finish_all, polynomial, start_parameters


def parameters_digest(parameters: Sequence[torch.Tensor], on_problem: Callable[[str], None]) -> str:
    return finish_all([start_parameters(parameters, on_problem)])[0]


def polynomial_of(tensor: torch.Tensor) -> int:
    """Return P of one tensor on any device; the harness computes it for tensors off the CPU."""
    return polynomial([int(chunk) for chunk in chunk_sums(tensor)])
