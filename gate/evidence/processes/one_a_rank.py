"""Each rank is one process: what is said where several trained as one."""

from __future__ import annotations

from collections.abc import Sequence

from gate.errors import EvidenceError

MAX_SHOWN_PIDS = 100  # characters; they are digits
ONE_A_RANK = (
    "Processes that update shared weights race, and their result is not reproducible. Set RANK "
    "in each process of a distributed training, or train in one process only."
)


def several_processes(rank: int, pids: Sequence[str]) -> EvidenceError:
    """The fault that several processes trained as one rank."""
    alike = "without ranks" if rank == 0 else f"as rank {rank}"
    shown = ", ".join(pids)[:MAX_SHOWN_PIDS]
    return EvidenceError(f"{len(pids)} processes trained {alike} (pids {shown})", hint=ONE_A_RANK)
