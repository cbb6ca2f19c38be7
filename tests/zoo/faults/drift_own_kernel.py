"""A function with a backward pass of its own has another slope.

kind: drift
class: code-change
step: 1
instead_of: return torch.where(x > 0, gradient, gradient * 0.1)
"""

import torch


class Leaky(torch.autograd.Function):
    """A rectifier whose gradient leaks."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return torch.where(x > 0, gradient, gradient * 0.2)  # planted


model = torch.nn.Linear(4, 8)
last = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD([*model.parameters(), *last.parameters()], lr=0.05)
x = torch.linspace(-1, 1, 64).reshape(16, 4)
for _ in range(6):
    loss = (last(Leaky.apply(model(x))) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
