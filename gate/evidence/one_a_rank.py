"""Each rank is one process: what is said where several trained as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gate.errors import EvidenceError

MAX_SHOWN_PIDS = 100  # characters; they are digits
ONE_A_RANK = (
    "Processes that update shared weights race, and their result is not reproducible. Set RANK "
    "in each process of a distributed training, or train in one process only."
)
ONE_TRAINING = (
    "The gate judges one training a call. Give each stage a settings file of its own (--config), "
    "or run the first stage under `preprocess`."
)


class SeveralTrainedError(EvidenceError):
    """Several processes left the record of one rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSpan:
    """When a process made its first and its last step, by the machine's clock; None: not known."""

    pid: int
    first: float | None = None
    last: float | None = None


def several_processes(rank: int, spans: Sequence[TrainingSpan]) -> SeveralTrainedError:
    """The fault that several processes trained as one rank: at once, or one after the other."""
    shown = ", ".join(str(span.pid) for span in spans)[:MAX_SHOWN_PIDS]
    if _one_after_the_other(spans):
        who = "" if rank == 0 else f" as rank {rank}"
        return SeveralTrainedError(
            f"{len(spans)} processes trained{who} one after the other (pids {shown})",
            hint=ONE_TRAINING,
        )
    alike = "without ranks" if rank == 0 else f"as rank {rank}"
    return SeveralTrainedError(
        f"{len(spans)} processes trained {alike} (pids {shown})", hint=ONE_A_RANK
    )


def _one_after_the_other(spans: Sequence[TrainingSpan]) -> bool:
    """Whether each made its first step after the last one of those before."""
    known = sorted((s.first, s.last) for s in spans if s.first is not None and s.last is not None)
    return len(known) == len(spans) and all(
        before[1] < after[0] for before, after in pairwise(known)
    )
