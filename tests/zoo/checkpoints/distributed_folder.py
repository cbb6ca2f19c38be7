"""A folder of torch.distributed.checkpoint, with parameters by their names."""

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
rows = torch.randn(32, 3)
for step in range(1, 100):
    first = 4 * step % 32
    optimizer.zero_grad()
    model(rows[first : first + 4]).square().mean().backward()
    optimizer.step()
    weights, kept = get_state_dict(model, optimizer)
    state = {"model": weights, "step": step}
    state["optimizer"] = kept  # part: optimizer
    state["rng"] = torch.get_rng_state()  # part: random state of torch
    dcp.save(state, checkpoint_id="checkpoint")
