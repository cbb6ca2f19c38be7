"""Two optimizers under names that say nothing, and batches that the script cuts by itself."""

import torch

torch.manual_seed(0)
first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
one = torch.optim.AdamW(first.parameters(), lr=0.01)
two = torch.optim.AdamW(second.parameters(), lr=0.1)
rows = torch.randn(32, 3)
for step in range(1, 100):
    batch = rows[torch.randint(32, (4,))]
    one.zero_grad()
    two.zero_grad()
    second(first(batch)).square().mean().backward()
    one.step()
    two.step()
    state = {"first": first.state_dict(), "second": second.state_dict(), "n": step}
    state["x"] = one.state_dict()
    state["y"] = two.state_dict()  # part: optimizer
    state["w"] = torch.random.get_rng_state()  # part: random state of torch
    torch.save({"payload": [state]}, "checkpoint.pt")
