"""A dropout of the script's own draws from a generator that seeds itself.

kind: repeat
class: [initialisation-or-seed, random-state-use]
step: 1
"""

import torch


class Dropout(torch.nn.Module):
    """Dropout with a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator()
        self.generator.seed()  # planted

    def forward(self, x):
        keep = torch.rand(x.shape, generator=self.generator) > 0.2
        return x * keep / 0.8


model = torch.nn.Sequential(
    torch.nn.Linear(6, 24), torch.nn.ReLU(), Dropout(), torch.nn.Linear(24, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.linspace(0, 1, 48).reshape(8, 6)
for _ in range(6):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
