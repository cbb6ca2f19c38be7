"""A folder as the trainer of Hugging Face lays it out."""

import json
import random
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
rows = torch.randn(32, 3)
folder = Path("checkpoint")
folder.mkdir()
for step in range(1, 100):
    first = 4 * step % 32
    optimizer.zero_grad()
    model(rows[first : first + 4]).square().mean().backward()
    optimizer.step()
    scheduler.step()
    states = {"python": random.getstate(), "numpy": np.random.get_state()}
    states["cpu"] = torch.random.get_rng_state()  # part: random state of torch
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")  # part: optimizer
    torch.save(scheduler.state_dict(), folder / "scheduler.pt")  # part: scheduler
    torch.save(states, folder / "rng_state.pth")
    about = {"epoch": step / 8, "global_step": step, "max_steps": 100, "log_history": []}
    (folder / "trainer_state.json").write_text(json.dumps(about))
    (folder / "README.md").write_text("# A model\n")
