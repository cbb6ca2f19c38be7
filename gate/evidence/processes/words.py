"""How many files a run may leave, and what is said of two processes of one rank."""

from __future__ import annotations

MAX_NAMES = 20_000
MAX_SHOWN_PIDS = 100  # characters; they are digits
ONE_A_RANK = (
    "Processes that update shared weights race, and their result is not reproducible. Set RANK "
    "in each process of a distributed training, or train in one process only."
)
