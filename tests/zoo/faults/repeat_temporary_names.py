"""Files get names by chance, and are read in the order of their names.

kind: repeat
class: data-order
step: 1
"""

import os
import tempfile

import torch

with tempfile.TemporaryDirectory() as folder:
    for index in range(24):
        handle, path = tempfile.mkstemp(dir=folder)  # planted
        with os.fdopen(handle, "w") as file:
            file.write(str(index / 24))
    values = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as file:
            values.append(float(file.read()))
x = torch.tensor(values).reshape(-1, 1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for start in range(0, 24, 4):
    batch = x[start : start + 4]
    loss = (model(batch) - batch.square()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
