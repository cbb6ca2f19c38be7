"""Samples are scaled by another number.

kind: drift
class: data
step: 1
instead_of: return (row - 24.0) / 14.0, row.mean() / 48
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Rows, normalised as the paper does."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        row = torch.full((5,), float(index))
        return (row - 24.0) / 12.0, row.mean() / 48  # planted


model = torch.nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(Rows(), batch_size=8):
    loss = (model(x).squeeze(1) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
