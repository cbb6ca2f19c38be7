"""Cores and memory that are free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What this machine lets the gate use: numbers of cores, how many at a time, free memory.

    `cpu_quota` is less than the cores where a control group says so.
    """

    cpus: tuple[int, ...]
    cpu_quota: int
    free_bytes: int
