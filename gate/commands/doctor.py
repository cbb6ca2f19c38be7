"""`repro-gate doctor`: check whether this machine can run the gate, and how to fix it if not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from gate.commands.options import OUT, AsJson, Config, Out, show
from gate.commands.program import FILES, INTERRUPTS
from gate.errors import (
    DocumentError,
    GateError,
    RepositoryError,
    RunError,
    SettingsError,
    StorageError,
)
from gate.isolation.engine import Engine, connect_docker, engine_address
from gate.pipelines.call_setup import build_adapters
from gate.pipelines.doctor.doctor import Checks, Probes, examine
from gate.pipelines.doctor.health import CheckResult, DoctorReport, Examined
from gate.report.escape import clean
from gate.report.terminal_lines import Sentence
from gate.settings.event import MAX_EVENT_BYTES, ActionContext, read_context
from gate.system.console import QuietProgress
from gate.system.git.repository import GitRepository
from gate.system.github.pull_requests import probe_token
from gate.system.github.records import TokenSeen
from gate.system.machine import free_bytes

STYLES = {
    CheckResult.OK: "green",
    CheckResult.TODO: "cyan",
    CheckResult.WARN: "yellow",
    CheckResult.FAIL: "bold red",
}
LONGEST = 600
HEALTH_WIDTH = max(len(health.value) for health in CheckResult)


def doctor_view(report: DoctorReport) -> RenderableType:
    """Show one entry per check, with its fix below; a line break never splits a command.

    Text from outside goes through `clean`, and rich reads none of it as markup.
    """
    name_width = max((len(row.name) for row in report.examined), default=0)
    return Group(*(line for row in report.examined for line in _entry(row, name_width)))


def _entry(row: Examined, name_width: int) -> list[Sentence]:
    lead = f"  {row.health.value:<{HEALTH_WIDTH}}  {row.name:<{name_width}}  "
    sentence = Sentence(
        clean(row.found, LONGEST), lead=lead, lead_style=STYLES[row.health], indent=len(lead)
    )
    if not row.fix:
        return [sentence]
    arrow = f"{'':{len(lead)}}→ "
    fix = Sentence(
        clean(row.fix, LONGEST), lead=arrow, lead_style="bold", indent=len(lead), style="bold"
    )
    return [sentence, fix]


def doctor_command(
    config: Config = "",
    out: Out = OUT,
    base: Annotated[str, typer.Option(help="A commit that must be in the clone.")] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Check everything that a gate call needs.

    Says how to fix what is wrong. Trains nothing and writes nothing. Exit code 0, also where only
    the first baseline is left to do, or 3 when something would keep the gate from a verdict. On a
    runner it checks the permissions of GITHUB_TOKEN.

    Example: repro-gate doctor --config examples/digits/repro-gate.yml
    """
    event, event_fault = _event(os.environ)
    start = event.workspace if event else Path.cwd()
    repository = GitRepository(start)
    asked = Checks(
        top=_top(repository, start),
        start=start,
        config=config,
        out=out if out.is_absolute() else start / out,
        base=base,
        event=event,
        event_fault=event_fault,
    )
    adapters = build_adapters(FILES, asked.top, QuietProgress(), INTERRUPTS, os.environ)
    report = examine(asked, adapters, _probes(os.environ, event, repository, adapters.host["PATH"]))
    show(report, doctor_view(report), as_json=as_json)
    raise typer.Exit(int(report.exit_code))


def _top(repository: GitRepository, start: Path) -> Path:
    """Return the root of the work tree, or `start` outside of one: the git checks report that."""
    try:
        return repository.top_level()
    except RepositoryError:
        return start


def _event(variables: Mapping[str, str]) -> tuple[ActionContext | None, GateError | None]:
    """Return the job's event, or the error with which the gate would refuse it.

    Both are None outside of GitHub Actions.
    """
    if variables.get("GITHUB_ACTIONS") != "true":
        return None, None
    path = variables.get("GITHUB_EVENT_PATH", "")
    try:
        event = FILES.read_bytes(Path(path), max_bytes=MAX_EVENT_BYTES) if path else b"{}"
        return read_context(variables, event), None
    except (SettingsError, DocumentError, StorageError) as fault:
        return None, fault


def _probes(
    variables: Mapping[str, str],
    event: ActionContext | None,
    repository: GitRepository,
    training_path: str,
) -> Probes:
    address = engine_address(variables)
    engine = Engine(connect_docker(address), address)
    return Probes(
        free_bytes=free_bytes,
        engine=lambda: _why_no_engine(engine),
        # A function, not the token: the doctor starts the training's Python, and the token may
        # be read only after that process has ended (T1).
        token=partial(_token, event, variables) if event and "GITHUB_TOKEN" in variables else None,
        shallow=repository.is_shallow,
        holds=repository.holds,
        ignores=repository.ignores,
        submodules=repository.submodules,
        program=lambda name: shutil.which(name, path=training_path) is not None,
    )


def _why_no_engine(engine: Engine) -> str:
    try:
        engine.answer()
    except RunError as error:
        return error.message
    finally:
        engine.close()
    return ""


def _token(event: ActionContext, variables: Mapping[str, str], contents: bool) -> TokenSeen:  # noqa: FBT001 - the probe's only word
    """Read GITHUB_TOKEN and ask GitHub for its permissions; called after the last child ended.

    `contents` is true if the token's right to write contents matters too.
    """
    pull_request = event.pull_request
    token = variables.get("GITHUB_TOKEN", "").strip()
    return probe_token(
        event.api_url,
        event.repository,
        token,
        number=pull_request.number if pull_request else None,
        contents=contents,
    )
