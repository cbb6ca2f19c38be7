"""What the action's step passes to its own post step, through the runner's state file.

A cancelled step writes nothing at its end, so everything is written at the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

RUN_NAME = "repro_gate_run"
CONTAINER_NAME = "repro_gate_container"
# Both are handed to the engine, so nothing but what the step itself writes is taken.
RUN_ID = re.compile(r"[0-9a-f]{16}\Z")
CONTAINER_ID = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepState:
    """The label of the step's own containers, and the container that it ran in itself.

    Both are empty when nothing was told: then there is nothing to look for.
    """

    run: str = ""
    container: str = ""


def state_file_text(state: StepState) -> str:
    """What to append to the file that `GITHUB_STATE` names."""
    return f"{RUN_NAME}={state.run}\n{CONTAINER_NAME}={state.container}\n"


def read_state(variables: Mapping[str, str]) -> StepState:
    """What the step wrote; a value that it cannot have written counts as none."""
    run = variables.get(f"STATE_{RUN_NAME}", "")
    container = variables.get(f"STATE_{CONTAINER_NAME}", "")
    return StepState(
        run=run if RUN_ID.match(run) else "",
        container=container if CONTAINER_ID.match(container) else "",
    )
