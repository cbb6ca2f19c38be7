"""Each data worker makes a generator without a seed for its augmentation.

kind: repeat
class: [initialisation-or-seed, data]
step: 1
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Rows with a little noise, as an augmentation adds it."""

    generator = None

    def __len__(self):
        return 48

    def __getitem__(self, index):
        if self.generator is None:
            self.generator = np.random.default_rng()  # planted
        x = torch.full((6,), index / 48)
        return x + float(self.generator.normal(0, 0.01)), x.sum()


if __name__ == "__main__":
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DataLoader(Rows(), batch_size=8, num_workers=2):
        loss = (model(x).squeeze(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
