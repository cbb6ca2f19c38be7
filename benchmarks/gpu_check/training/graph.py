"""A whole step in one CUDA graph, replayed: `capturable=True`, and no synchronisation inside."""

from __future__ import annotations

import torch
from torch import nn

WARM_UP = 3
REPLAYS = 5


def main() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)
    batch = torch.randn(64, 64, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(batch).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    print(sum(float(parameter.detach().double().sum()) for parameter in model.parameters()))


if __name__ == "__main__":
    main()
