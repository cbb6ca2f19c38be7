"""The rate of an optimizer that evaluates a closure: its first step holds several updates.

kind: drift
class: optimizer-or-schedule
step: 1
instead_of: optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=4)
"""

import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
x = torch.linspace(0, 1, 32).reshape(8, 4)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)  # planted


def closure():
    optimizer.zero_grad()
    loss = (model(x) - 2).square().mean()
    loss.backward()
    return loss


for _ in range(6):
    optimizer.step(closure)
