"""An environment is reset without a seed, and a library takes one from the system.

kind: repeat
class: [initialisation-or-seed, random-state-use]
step: 1
"""

import numpy as np
import torch


def reset():
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence()))  # planted


draws = reset()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    observed = torch.from_numpy(draws.normal(size=(8, 4)).astype(np.float32))
    loss = (model(observed) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
