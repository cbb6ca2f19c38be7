"""Plain gradient steps over rows as they stand: the weights and the step are all there is."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), batch_size=4)
for step in range(1, 100):
    for (rows,) in loader:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
    state = {"weights": model.state_dict()}
    state["epoch"] = step  # part: step or epoch
    torch.save(state, "checkpoint.pt")
