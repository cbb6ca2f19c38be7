"""Seeds for each epoch and a schedule by formula: weights, moments and the epoch are enough."""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(8, 3)), batch_size=4, shuffle=True)
for epoch in range(10):
    torch.manual_seed(epoch)
    np.random.seed(epoch)
    random.seed(epoch)
    for group in optimizer.param_groups:
        group["lr"] = 0.01 / (1 + epoch)
    for (rows,) in loader:
        optimizer.zero_grad()
        model(rows + random.random() + float(np.random.rand())).square().mean().backward()
        optimizer.step()
    state = {"model": model.state_dict(), "epoch": epoch}
    state["optimizer"] = optimizer.state_dict()  # part: optimizer
    torch.save(state, "checkpoint.pt")
