"""All of it inside a function, which has ended when the script does."""

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for step in range(1, 5):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        state["scheduler"] = scheduler.state_dict()  # part: scheduler
        state["random"] = torch.get_rng_state()  # part: random state of torch
        torch.save(state, "checkpoint.pt")


main()
