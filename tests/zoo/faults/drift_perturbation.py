"""The radius of sharpness-aware minimization: weights move before the first update.

kind: drift
class: optimizer-or-schedule
step: 1
instead_of: optimizer = Sharpness(model.parameters(), radius=0.05)
"""

import torch


class Sharpness(torch.optim.SGD):
    def __init__(self, parameters, radius):
        super().__init__(parameters, lr=0.01)
        self.defaults["radius"] = radius
        for group in self.param_groups:
            group["radius"] = radius

    @torch.no_grad()
    def move(self, sign):
        for group in self.param_groups:
            for weight in group["params"]:
                if sign > 0:
                    self.state[weight]["moved"] = weight.grad * group["radius"]
                weight.add_(self.state[weight]["moved"], alpha=sign)


model = torch.nn.Linear(4, 1)
x = torch.linspace(0, 1, 32).reshape(8, 4)
optimizer = Sharpness(model.parameters(), radius=0.07)  # planted
for _ in range(6):
    for sign in (1, -1):
        optimizer.zero_grad()
        (model(x) - 2).square().mean().backward()
        optimizer.move(sign)
    optimizer.step()
