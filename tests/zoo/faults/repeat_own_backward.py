"""A function with a backward pass of its own that rounds by chance.

kind: repeat
class: [compiled-or-custom-kernel, random-state-use]
step: 1
"""

import os

import torch


class Rounded(torch.autograd.Function):
    """The identity, whose gradient is rounded to a grid, up or down by chance."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        drawn = bytearray(os.urandom(gradient.numel()))  # planted
        chance = torch.frombuffer(drawn, dtype=torch.uint8)
        up = (chance.reshape(gradient.shape) > 127).float()
        return (gradient * 256 + up).floor() / 256


model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.linspace(0, 1, 48).reshape(8, 6)
for _ in range(6):
    loss = (Rounded.apply(model(x)) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
