"""What both entry points share: building the edges, and turning a call into a request."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gate.codec.digests import sha256_hex
from gate.codec.documents import write_document
from gate.delivery import (
    Reports,
    Sealing,
    Signer,
    seal_package,
    stale_outputs,
    verify_command,
    write_package,
    write_reports,
)
from gate.edges.clock import SystemClock
from gate.edges.closed_places import closed_to_others, private_places
from gate.edges.docker_api import connect_docker
from gate.edges.engine import Engine, engine_address
from gate.edges.git import GitRepository
from gate.edges.interrupts import Interrupts
from gate.edges.isolating import Isolating
from gate.errors import AttestationError, ExitCode, GateError, SettingsError, StorageError
from gate.execution.child_environment import path_with_interpreter
from gate.pipeline import Gated, gate, judge, read_baselines, train_all
from gate.ports import Files, Progress, Secrets
from gate.records.report import ReportLinks
from gate.records.request import GateRequest
from gate.records.verdict import Verdict
from gate.report.page_sources import page_sources
from gate.session import Edges
from gate.settings.load import FILE_NAME, MINIMAL_FILE, parse_settings
from gate.told_runs import take_over
from gate.verdict.assemble import error_verdict

MAX_SETTINGS_BYTES = 256 * 1024


def build_edges(
    files: Files,
    top: Path,
    progress: Progress,
    interrupts: Interrupts,
    variables: Mapping[str, str],
) -> Edges:
    """The real edges for a repository whose work tree is `top`."""
    interpreter = Path(sys.executable)
    path = path_with_interpreter(
        variables.get("PATH", ""), interpreter, beside_torch=find_spec("torch") is not None
    )
    trains = shutil.which("python", path=path) or shutil.which("python3", path=path)
    address = engine_address(variables)
    engine = Engine(connect_docker(address), address)
    isolating = Isolating(engine, interrupts, trains or sys.executable)

    def closed(places: tuple[Path, ...], way: Path) -> AbstractContextManager[None]:
        private = (*private_places(top, variables), *places)
        return closed_to_others(private, way, interrupts)

    return Edges(
        files=files,
        git=GitRepository(top),
        processes=isolating.processes,
        clock=SystemClock(),
        progress=progress,
        isolate=isolating.choose,
        closed=closed,
        clean_up=isolating.clean_up,
        release=isolating.release,
        host={**variables, "PATH": path},
        run=isolating.run,
    )


def find_config(config: str, start: Path, top: Path) -> Path:
    """The settings file: the given one, else the one here, else the repository's.

    Raises `SettingsError` that shows a minimal file when there is none.
    """
    if config:
        given = start / config
        if not given.is_file():
            raise SettingsError(
                f"{config}: no such file", hint=f"Make one; a minimal file:\n{MINIMAL_FILE}"
            )
        return given
    for folder in (start, top):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    raise SettingsError(
        f"no {FILE_NAME} here or at the repository's root",
        hint=f"Make one; a minimal file:\n{MINIMAL_FILE}",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalCall:
    """The options of a call from the command line."""

    config: str
    start: Path
    out: Path
    base: str
    commit: str
    allow_dirty: bool


def local_request(call: LocalCall, files: Files) -> GateRequest:
    """A request about the caller's own repository: the work tree's settings decide."""
    repository = GitRepository(call.start)
    top = repository.top_level()
    config = find_config(call.config, call.start, top).resolve()
    if not config.is_relative_to(top.resolve()):
        raise SettingsError(
            f"{config} lies outside the repository {top}",
            hint="Start in the repository that holds the settings file.",
        )
    text = files.read_bytes(config, max_bytes=MAX_SETTINGS_BYTES)
    return GateRequest(
        top=top,
        project=config.parent.relative_to(top.resolve()).as_posix(),
        config_name=config.name,
        settings=parse_settings(text, str(config.relative_to(top.resolve()))),
        settings_text=text,
        settings_from="work tree",
        out=call.out if call.out.is_absolute() else call.start / call.out,
        commit=repository.resolve(call.commit) if call.commit else None,
        base_commit=repository.resolve(call.base) if call.base else None,
        allow_dirty=call.allow_dirty,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a gate call came to, written down; `fault` is what stopped it, if anything did."""

    verdict: Verdict
    reports: Reports
    sealing: Sealing
    package: Path | None
    out: Path
    exit_code: ExitCode
    fault: GateError | None = None


Story = Callable[[GateRequest, Edges], Gated]


def run_only(request: GateRequest, edges: Edges) -> Path:
    """The first of two jobs: train, judge nothing; the folder with the evidence."""
    with edges.files.held_folder(request.out):
        for path in stale_outputs(request.out):
            edges.files.remove_tree(path)
        train_all(request, edges, read_baselines(request, edges))
    return request.out / "evidence"


def judging(folder: Path) -> Story:
    """The second of two jobs: judge the evidence in a folder; nothing is trained."""

    def story(request: GateRequest, edges: Edges) -> Gated:
        baselines = read_baselines(request, edges)
        told = take_over(request, edges, folder)
        counted = told.evidence.labelled("census")
        failure = "" if counted or not request.settings.census else "the job that ran took none"
        return judge(request, baselines, told.evidence, told.isolation, census_failure=failure)

    return story


def run_and_deliver(
    request: GateRequest,
    edges: Edges,
    secrets: Secrets,
    *,
    trusted_keys: str,
    allow_plain_key: bool = False,
    story: Story = gate,
) -> Outcome:
    """Gate, then write every document; a fault while running is written down as well.

    `story` is another one that ends in a verdict. Settings, usage and cancellation are no verdict:
    their errors pass through, and so does that of another call which works in the output folder.
    """
    with edges.files.held_folder(request.out):
        for path in stale_outputs(request.out):
            edges.files.remove_tree(path)
        # now, for a fault's report too: git does not look at a clone that was trained beside
        commit = request.commit or edges.git.resolve("HEAD")
        try:
            gated = story(request, edges)
        except GateError as fault:
            if fault.exit_code is not ExitCode.ERROR:
                raise
            return _deliver_fault(request, edges, commit, fault)
        try:
            return _deliver(request, edges, gated, secrets, (trusted_keys, allow_plain_key))
        except AttestationError as fault:
            # asked for a seal that cannot be made: no verdict stands without it, and none is lost
            return _deliver_fault(request, edges, commit, fault)


def _deliver(
    request: GateRequest,
    edges: Edges,
    gated: Gated,
    secrets: Secrets,
    keys: tuple[str, bool],
) -> Outcome:
    edges.progress.step("packing and sealing")
    package = write_package(gated.verdict, gated.evidence, gated.baseline, request, edges.files)
    signer = Signer(
        secrets=secrets,
        allow_plain_key=keys[1],
        baseline_digest=sha256_hex(write_document(gated.baseline)) if gated.baseline else "",
    )
    sealing = seal_package(gated.verdict, package, request, signer, edges.files)
    if gated.proposed is not None:
        path = request.out / "proposed-baseline.json"
        edges.files.write_bytes(path, write_document(gated.proposed))
    command = verify_command(gated.verdict, request, keys[0]) if sealing.seals else ""
    shown = request.shown_out / package.path.name
    links = ReportLinks(run_url=request.run_url, package_path=str(shown), verify_command=command)
    drawn = page_sources(gated.verdict, gated.evidence, gated.baseline)
    return Outcome(
        verdict=gated.verdict,
        reports=write_reports(gated.verdict, request, links, edges.files, drawn),
        sealing=sealing,
        package=package.path,
        out=request.out,
        exit_code=gated.verdict.exit_code,
    )


def _deliver_fault(request: GateRequest, edges: Edges, commit: str, fault: GateError) -> Outcome:
    now = edges.clock.now().isoformat()
    verdict = error_verdict(request, commit, now, fault)
    links = ReportLinks(run_url=request.run_url)
    try:
        reports = write_reports(verdict, request, links, edges.files)
    except StorageError as second:
        raise fault from second
    return Outcome(
        verdict=verdict,
        reports=reports,
        sealing=Sealing(seals=(), why_not="only a pass is sealed"),
        package=None,
        out=request.out,
        exit_code=verdict.exit_code,
        fault=fault,
    )
