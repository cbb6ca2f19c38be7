"""The gradients of one step, for the gate to sum in many orders."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from .output import Output, Problems
from .safetensors_file import write_safetensors
from .state import optimized_parameters


def write_gradients(optimizer: Optimizer, output: Output, problems: Problems) -> None:
    """Write what the optimizer has just used; a parameter without gradient is left out."""
    found = {
        f"gradient/{index:06d}": parameter.grad
        for index, parameter in enumerate(optimized_parameters(optimizer))
        if isinstance(parameter.grad, torch.Tensor)
    }
    write_safetensors(output.path("gradients", ".safetensors"), found, problems.note)
