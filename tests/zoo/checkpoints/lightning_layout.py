"""One file as Lightning lays it out, saved in the middle of an epoch without shuffling."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), batch_size=4)
step = 0
for epoch in range(10):
    for index, (rows,) in enumerate(loader):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        scheduler.step()
        step += 1
        batches = {"total": {"ready": step, "completed": step}, "current": {"ready": index + 1}}
        checkpoint = {
            "epoch": epoch,
            "global_step": step,
            "pytorch-lightning_version": "2.5.0",
            "state_dict": model.state_dict(),
            "loops": {"fit_loop": {"epoch_loop.batch_progress": batches}},
            "callbacks": {},
            "optimizer_states": [optimizer.state_dict()],  # part: optimizer
            "lr_schedulers": [scheduler.state_dict()],  # part: scheduler
        }
        torch.save(checkpoint, "checkpoint.pt")
