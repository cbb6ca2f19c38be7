"""Rank 1 finds another version of a package first.

kind: repeat
class: none
step: null
ranks: 2
outcome: error
says: [rank 1 trains with helper-lib 2.0 instead of 1.0, rank 0 with the other]
"""

import importlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
site = Path(f"site-packages-{rank}").absolute()
about = site / f"helper_lib-{rank + 1}.0.dist-info"
about.mkdir(parents=True)
(site / "helper_lib.py").write_text("rate = 0.05\n")
(about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: helper-lib\nVersion: {rank + 1}.0\n")
(about / "RECORD").write_text("helper_lib.py,,\n")
sys.path.insert(0, str(site))  # planted
helper_lib = importlib.import_module("helper_lib")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=helper_lib.rate)
for _ in range(6):
    loss = (model(torch.ones(8, 4)) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
