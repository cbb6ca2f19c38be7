"""The action's post step: stop and remove what a killed step left behind.

A runner that cancels kills the client of the engine in the end, not the container: that one would
go on and hold its GPU, and what it started with it. After a step that ended in order there is
nothing left to do.
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
    """What the post step is given: the runner's variables, and the adapters to work through."""

    variables: Mapping[str, str]
    files: Files
    engine: Engine
    say: Callable[[str], None]


def main() -> int:
    """Clean up after the step that this container was started for; the answer is an exit code."""
    address = engine_address(os.environ)
    step = PostStep(
        variables=os.environ,
        files=LocalFiles(),
        engine=Engine(connect_docker(address), address),
        say=lambda line: print(line, flush=True),  # noqa: T201 - the job's log
    )
    return int(clean_up(step))


def clean_up(step: PostStep) -> ExitCode:
    """End the step's containers, then remove its copies of the code and give its files back.

    A fault is reported and returns `ERROR`: something may still run on this machine.
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
    """The step's own container first: while it runs it may still start others."""
    try:
        step.engine.answer()
    except RunError as error:
        # without an engine to ask, the step had none either
        step.say(safe_block(f"cannot look for containers: {error.message}"))
        return
    if state.container and step.engine.remove(state.container):
        step.say("removed the gate's own container, which was still running")
    removed = step.engine.remove_run(state.run) if state.run else 0
    if removed:
        step.say(f"removed {count(removed, 'leftover training container')}")


def _tidy_workspace(step: PostStep) -> None:
    """What root wrote there must belong to the workspace's owner, or the next checkout fails."""
    workspace = Path(step.variables.get("GITHUB_WORKSPACE", ".")).resolve()
    out = workspace / read_inputs(step.variables).out
    # a link there is the pull request's, and could lead root anywhere
    if out.resolve() == out and step.files.exists(out / "work"):
        step.files.remove_tree(out / "work")
        step.files.give_to(out, *step.files.owner(workspace))
        step.say("removed leftover copies of the code from the output folder")
