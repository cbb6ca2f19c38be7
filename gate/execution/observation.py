"""How closely a run is observed: the first run measures its own cost, every later one is told."""

from __future__ import annotations

from collections.abc import Mapping

from gate.records.record_settings import RecordSettings
from gate.records.runs import PlannedRun


def observation_variables(
    planned: PlannedRun, settings: RecordSettings, strides: Mapping[str, int]
) -> dict[str, str]:
    """The guest's variables about observing.

    `strides` are those of the first run of this call, empty for that run itself. All runs after it
    observe the same steps, however fast the machine is while they run.
    """
    told = ",".join(f"{group}={stride}" for group, stride in sorted(strides.items()))
    return {
        "REPRO_GATE_OBSERVE": "on" if planned.observe else "off",
        "REPRO_GATE_OVERHEAD_BUDGET": repr(settings.overhead_budget),
        "REPRO_GATE_FREE_SECONDS": repr(settings.free_seconds),
        **({"REPRO_GATE_STRIDES": told} if told else {}),
    }
