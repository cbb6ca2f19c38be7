"""Scripts that several ranks run over gloo, in forks of one process that has imported torch."""

from __future__ import annotations

from textwrap import indent

RANKS = """
import os
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def train(rank):
{body}

def work(rank):
    meeting = f"file://{{os.getcwd()}}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size={ranks})
    train(rank)
    if dist.is_initialized():
        dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, nprocs={ranks}, start_method="fork")
"""


def of_ranks(body: str, ranks: int = 2) -> str:
    """Return a script whose ranks each run `body`, in which `rank` is the rank's number."""
    return RANKS.format(body=indent(body.strip("\n"), "    "), ranks=ranks)
