"""The DataLoader draws its order from a generator of its own; saved between two epochs."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
generator = torch.Generator()
generator.manual_seed(7)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
rows = TensorDataset(torch.randn(8, 3))
loader = DataLoader(rows, batch_size=4, shuffle=True, generator=generator)
for epoch in range(10):
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    state = {"model": model.state_dict(), "epoch": epoch}
    state["optimizer"] = optimizer.state_dict()  # part: optimizer
    state["z"] = generator.get_state()  # part: random state of the DataLoader's generator
    torch.save(state, "checkpoint.pt")
