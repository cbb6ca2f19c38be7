"""One digest and one duration for each step, however many optimizers and ranks it had."""

from __future__ import annotations

from gate.codec.digests import field, sha256_hex
from gate.evidence.ranks import TrainedRank
from gate.records.evidence import StepDigest, StepTiming


def step_digests(ranks: tuple[TrainedRank, ...]) -> tuple[StepDigest, ...]:
    """The parameters after each step.

    One rank with one optimizer keeps the guest's own digest. Otherwise the digest is SHA-256 over
    the length-prefixed parts `rank:optimizer:digest`, ranks in order, optimizers as they stepped.
    """
    parts: dict[int, list[tuple[str, str]]] = {}
    for rank in ranks:
        for line in rank.lines:
            place = f"{rank.files.rank}:{line.optimizer}"
            parts.setdefault(line.step, []).append((place, line.parameters))
    return tuple(
        StepDigest(step=step, parameters=_combined(found)) for step, found in sorted(parts.items())
    )


def _combined(parts: list[tuple[str, str]]) -> str:
    if len(parts) == 1:
        return parts[0][1]
    joined = b"".join(field(f"{place}:{digest}".encode("ascii")) for place, digest in parts)
    return f"sha256:{sha256_hex(joined)}"


def step_timings(rank: TrainedRank) -> tuple[StepTiming, ...]:
    """Seconds of each step, summed over its optimizers; a step not fully timed is left out."""
    seconds: dict[int, list[float | None]] = {}
    for line in rank.lines:
        seconds.setdefault(line.step, []).append(line.seconds)
    timings = []
    for step, found in sorted(seconds.items()):
        known = [value for value in found if value is not None]
        if len(known) == len(found):
            timings.append(StepTiming(step=step, seconds=sum(known)))
    return tuple(timings)
