"""Convolutions in a script that uses only torch's old flags: `python precision.py [HOW ...]`.

`flags` computes inside `cudnn.flags`, `off` forbids TF32 by the old flag, `compile` compiles.
"""

from __future__ import annotations

import contextlib
import sys

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    hows = sys.argv[1:]
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)).to(DEVICE)
    forward = torch.compile(model, mode="max-autotune") if "compile" in hows else model
    if "off" in hows:
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        around: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if "flags" in hows:
            allowed = torch.backends.cudnn.allow_tf32
            around = torch.backends.cudnn.flags(
                enabled=True, deterministic=True, allow_tf32=allowed
            )
        optimizer.zero_grad()
        with around:
            forward(torch.randn(4, 3, 24, 24, device=DEVICE)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
