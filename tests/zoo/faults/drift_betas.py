"""The second moment of Adam forgets faster.

kind: drift
class: optimizer-or-schedule
step: 1
instead_of: settings["betas"] = (0.9, 0.999)
"""

import torch

model = torch.nn.Linear(4, 1)
x = torch.linspace(-1, 1, 32).reshape(8, 4)
settings = {"lr": 0.01}
settings["betas"] = (0.9, 0.95)  # planted
optimizer = torch.optim.Adam(model.parameters(), **settings)
for step in range(8):
    loss = (model(x) * (step + 1) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
