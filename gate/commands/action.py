"""The hidden verb that the GitHub Action runs in its container."""

from __future__ import annotations

import os
import sys

import typer

from gate.action.main import (
    Runner,
    github_comments,
    github_history,
    github_pull_request,
    github_status,
    run_action,
)
from gate.commands.program import FILES, INTERRUPTS
from gate.pipelines.call_setup import build_adapters
from gate.system.clock import SystemClock
from gate.system.console import JobLog


def action_command() -> None:
    """Run as a GitHub Action: everything comes from the runner's variables."""
    # GitHub's runner sets this variable in a re-run with debug logging
    progress = JobLog(sys.stdout, verbose=os.environ.get("RUNNER_DEBUG") == "1")
    runner = Runner(
        variables=os.environ,
        files=FILES,
        adapters=lambda top: build_adapters(FILES, top, progress, INTERRUPTS, os.environ),
        comments=github_comments,
        status=github_status,
        history=github_history,
        find=github_pull_request,
        clock=SystemClock(),
        say=_say,
    )
    raise typer.Exit(int(run_action(runner)))


def _say(line: str) -> None:
    """Write to the job log and flush, so that annotations keep their place among other output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
