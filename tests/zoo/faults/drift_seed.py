"""The script seeds itself, and another number is its favourite now.

kind: drift
class: initialisation-or-seed
step: 1
instead_of: torch.manual_seed(42)
"""

import torch

torch.manual_seed(43)  # planted
model = torch.nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.linspace(0, 1, 48).reshape(8, 6)
for _ in range(6):
    loss = torch.nn.functional.cross_entropy(model(x), torch.arange(8) % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
