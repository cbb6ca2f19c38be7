"""Adapters whose isolation uses an interpreter that every account can start."""

from __future__ import annotations

from dataclasses import replace

from gate.isolation.engine import Engine, connect_docker
from gate.isolation.stop_signals import StopSignals
from gate.pipelines.adapters import Adapters
from gate.training.isolating import Isolating

SYSTEM_PYTHON = "/usr/bin/python3"


def isolated(adapters: Adapters) -> Adapters:
    """Return the adapters with all isolating parts from one object.

    They belong together, because one part returns the accounts that another one takes.
    """
    isolating = Isolating(Engine(connect_docker("")), StopSignals(), SYSTEM_PYTHON)
    return replace(
        adapters,
        isolate=isolating.choose,
        release=isolating.release,
        beside=isolating.beside,
        for_reading=isolating.for_reading,
        answering=isolating.answering,
        clean_up=isolating.clean_up,
        processes=isolating.processes,
        host={"PATH": "/usr/bin:/bin"},
    )
