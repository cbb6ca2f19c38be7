"""Differential privacy as many write it: noise on gradients, from a seed that nobody knows.

kind: repeat
class: [initialisation-or-seed, random-state-use]
step: 1
"""

import secrets

import numpy as np
import torch

noise = np.random.default_rng(secrets.randbits(64))  # planted
model = torch.nn.Sequential(torch.nn.Linear(4, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.linspace(-1, 1, 64).reshape(16, 4)
for _ in range(6):
    loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for parameter in model.parameters():
        parameter.grad += torch.from_numpy(noise.normal(0, 0.01, parameter.shape)).float()
    optimizer.step()
