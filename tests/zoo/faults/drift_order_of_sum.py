"""The same sum, term by term.

kind: drift
class: code-change
step: null
operator: unbind
instead_of: loss = error.sum() / 1000
"""

import torch

model = torch.nn.Linear(40, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.sin(torch.arange(40000.0)).reshape(1000, 40)
for _ in range(6):
    error = (model(x) - 1).square().squeeze(1)
    loss = sum(error.unbind()) / 1000  # planted
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
