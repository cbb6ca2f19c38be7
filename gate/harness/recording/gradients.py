"""The gradients of one step, for the gate to sum in many orders."""

from __future__ import annotations

from torch.optim import Optimizer

from ..output import Output, Problems
from ..tensors.plain_parts import gradient
from ..tensors.safetensors_file import write_safetensors
from .state import optimized_parameters


def write_gradients(optimizer: Optimizer, output: Output, problems: Problems) -> None:
    """Write what the optimizer has just used; a parameter without gradient is not there."""
    gradients = map(gradient, optimized_parameters(optimizer))
    found = {
        f"gradient/{index:06d}": each for index, each in enumerate(gradients) if each is not None
    }
    write_safetensors(output.path("gradients", ".safetensors"), found, problems.leave_out)
