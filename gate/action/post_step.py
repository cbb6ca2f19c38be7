"""The action's post step: stops and removes what a killed step left behind.

When a runner cancels, it finally kills the engine's client but not the container. That container
would keep running with its GPU, and so would the containers that it started. After a step that
ended normally there is nothing to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gate.errors import ExitCode, GateError, RunError
from gate.isolation.engine import Engine, connect_docker, engine_address
from gate.report.runner_files import fault_annotation
from gate.settings.event import StepState, read_inputs, read_step_state
from gate.system.files.files import LocalFiles
from gate.system.files.port import Files
from gate.text.phrases import count
from gate.text.untrusted_text import safe_block


@dataclass(frozen=True, kw_only=True, slots=True)
class PostStep:
    """What the post step gets: the runner's variables and its adapters."""

    variables: Mapping[str, str]
    files: Files
    engine: Engine
    say: Callable[[str], None]


def main() -> int:
    """Clean up after the step that this container was started for; return an exit code."""
    address = engine_address(os.environ)
    step = PostStep(
        variables=os.environ,
        files=LocalFiles(),
        engine=Engine(connect_docker(address), address),
        say=lambda line: print(line, flush=True),  # noqa: T201 - the job's log
    )
    return int(clean_up(step))


def clean_up(step: PostStep) -> ExitCode:
    """End the step's containers, remove its copies of the code, and give back its files.

    A fault is reported and returns `ERROR`, because something may still run on this machine.
    """
    try:
        _end_containers(step, read_step_state(step.variables))
        _tidy_workspace(step)
    except GateError as fault:
        step.say(fault_annotation(fault))
        step.say(safe_block(str(fault)))
        return fault.exit_code
    return ExitCode.PASS


def _end_containers(step: PostStep, state: StepState) -> None:
    """End the step's own container first: while it runs, it may start others."""
    try:
        step.engine.answer()
    except RunError as error:
        # without a reachable engine, the step could not start a container either
        step.say(safe_block(f"cannot look for containers: {error.message}"))
        return
    if state.container and step.engine.remove(state.container):
        step.say("removed the gate's own container, which was still running")
    removed = step.engine.remove_run(state.run) if state.run else 0
    if removed:
        step.say(f"removed {count(removed, 'leftover training container')}")


def _tidy_workspace(step: PostStep) -> None:
    """Give root's files to the workspace's owner; otherwise the next checkout fails."""
    workspace = Path(step.variables.get("GITHUB_WORKSPACE", ".")).resolve()
    out = workspace / read_inputs(step.variables).out
    # a link there comes from the pull request, and could lead root anywhere
    if out.resolve() == out and step.files.exists(out / "work"):
        step.files.remove_tree(out / "work")
        step.files.give_to(out, *step.files.owner(workspace))
        step.say("removed leftover copies of the code from the output folder")
