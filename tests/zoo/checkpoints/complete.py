"""All that a training may have, saved in the middle of an epoch."""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
scaler = torch.amp.GradScaler("cpu")
average = torch.optim.swa_utils.AveragedModel(model)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), batch_size=4, shuffle=True)
for _epoch in range(10):
    began = torch.get_rng_state()
    for number, (rows,) in enumerate(loader):
        noise = random.random() + float(np.random.rand())
        loss = model(rows + noise).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        average.update_parameters(model)
        state = {"version": "1.2.0", "max_epochs": 10, "seed": 0}
        state["net"] = model.state_dict()  # part: model
        state["opt"] = optimizer.state_dict()  # part: optimizer
        state["rate"] = scheduler.state_dict()  # part: scheduler
        state["amp"] = scaler.state_dict()  # part: GradScaler
        state["ema"] = average.state_dict()  # part: average of the weights
        state["a"] = torch.get_rng_state()  # part: random state of torch
        state["b"] = np.random.get_state()  # part: random state of NumPy
        state["c"] = random.getstate()  # part: random state of Python
        state["loader"] = (began, number)  # part: position of the DataLoader
        torch.save({"everything": state}, "checkpoint.pt")
