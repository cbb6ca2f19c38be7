"""Strict mode is turned off, and two threads add into four places in an order that nobody fixes.

kind: repeat
class: operator-nondeterminism
step: 1
operator: index_put
threads: 2
"""

import torch

torch.use_deterministic_algorithms(False)  # planted
weights = torch.nn.Parameter(torch.randn(4))
index = torch.randint(0, 4, (5_000_000,))
values = torch.randn(5_000_000)
optimizer = torch.optim.SGD([weights], lr=0.1)
for _ in range(6):
    taken = values * weights[index]
    gathered = torch.zeros(4).index_put_((index,), taken, accumulate=True)
    loss = gathered.square().sum() * 1e-9
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
