"""What both entry points share: building the adapters, and turning a call into a request."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gate.adapters.account.restricted_paths import restrict_access, secret_paths
from gate.adapters.clock import SystemClock
from gate.adapters.engine.docker_api import connect_docker
from gate.adapters.engine.engine import Engine, engine_address
from gate.adapters.git.repository import GitRepository
from gate.adapters.isolating import Isolating
from gate.adapters.machine import gpus_seen
from gate.adapters.process.stop_signals import StopSignals
from gate.codec.digests import sha256_hex
from gate.codec.documents import write_document
from gate.errors import AttestationError, ExitCode, GateError, SettingsError, StorageError
from gate.execution.child_environment import path_with_interpreter
from gate.pipelines.delivery import (
    Reports,
    Sealing,
    Signer,
    seal_package,
    stale_outputs,
    verify_line,
    write_package,
    write_reports,
)
from gate.pipelines.gate import Gated, judge, read_baselines, train_all
from gate.pipelines.imported_evidence import take_over
from gate.pipelines.runs import Adapters
from gate.ports import Files, Progress, Secrets
from gate.records.baseline import PROPOSED_BASELINE
from gate.records.report import ReportLinks
from gate.records.request import GateRequest
from gate.records.runs import RunMode
from gate.records.settings import FILE_NAME
from gate.records.verdict import Verdict
from gate.report.page.page_sources import page_sources
from gate.settings.load import MINIMAL_FILE, parse_settings
from gate.verdict.assemble import error_verdict

MAX_SETTINGS_BYTES = 256 * 1024


def build_adapters(
    files: Files,
    top: Path,
    progress: Progress,
    interrupts: StopSignals,
    variables: Mapping[str, str],
) -> Adapters:
    """The real adapters for a repository whose work tree is `top`."""
    interpreter = Path(sys.executable)
    path = path_with_interpreter(
        variables.get("PATH", ""), interpreter, beside_torch=find_spec("torch") is not None
    )
    trains = shutil.which("python", path=path) or shutil.which("python3", path=path)
    address = engine_address(variables)
    engine = Engine(connect_docker(address), address)
    socket = address.removeprefix("unix://") if address.startswith("unix://") else ""
    # nothing is tried here: a call that is refused for its settings must start nothing
    isolating = Isolating(engine, interrupts, trains or sys.executable, socket)

    def closed(places: tuple[Path, ...], way: Path) -> AbstractContextManager[None]:
        private = (*secret_paths(top, variables), *places)
        return restrict_access(private, way, interrupts, isolating.device_groups)

    return Adapters(
        files=files,
        git=GitRepository(top),
        processes=isolating.processes,
        clock=SystemClock(),
        progress=progress,
        isolate=isolating.choose,
        closed=closed,
        clean_up=isolating.clean_up,
        release=isolating.release,
        # all variables as a source: what reaches a training is chosen in `child_environment`
        host={**variables, "PATH": path},
        run=isolating.run,
        gpus=lambda: gpus_seen(path, variables.get("LD_LIBRARY_PATH", "")),
    )


def find_config(config: str, start: Path, top: Path) -> Path:
    """The settings file: the given one, else the one here, else the repository's.

    Raises `SettingsError` that shows a minimal file when there is none.
    """
    if config:
        given = start / config
        if not given.is_file():
            raise SettingsError(
                f"{config}: no such file", hint=f"Create one; a minimal file:\n{MINIMAL_FILE}"
            )
        return given
    for folder in (start, top):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    raise SettingsError(
        f"no {FILE_NAME} here or at the repository's root",
        hint=f"Create one; a minimal file:\n{MINIMAL_FILE}",
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
    # paths in the settings are relative to this file and are read from commits: both need it inside
    if not config.is_relative_to(top.resolve()):
        raise SettingsError(
            f"{config} is outside the repository {top}",
            hint="Run the command in the repository that contains the settings file.",
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
class DeliveredVerdict:
    """The result of a gate call; `fault` is what stopped it, if anything did."""

    verdict: Verdict
    reports: Reports
    sealing: Sealing
    package: Path | None
    out: Path
    exit_code: ExitCode
    fault: GateError | None = None


Pipeline = Callable[[GateRequest, Adapters], Gated]


def run_only(request: GateRequest, adapters: Adapters) -> Path:
    """The first of two jobs: train, judge nothing; the folder with the evidence."""
    with adapters.files.held_folder(request.out):
        # this call judges nothing: an older verdict beside its evidence would be read as its own
        for path in stale_outputs(request.out):
            adapters.files.remove_tree(path)
        train_all(request, adapters, read_baselines(request, adapters))
    return request.out / "evidence"


def judging(folder: Path) -> Pipeline:
    """The second of two jobs: judge the evidence in a folder; nothing is trained."""

    def judge_imported(request: GateRequest, adapters: Adapters) -> Gated:
        baselines = read_baselines(request, adapters)
        imported = take_over(request, adapters, folder)
        counted = imported.evidence.runs_of(RunMode.AUDIT)
        failure = (
            "" if counted or not request.settings.operator_audit else "the job that ran took none"
        )
        return judge(
            request,
            baselines,
            imported.evidence,
            imported.isolation,
            operator_audit_failure=failure,
        )

    return judge_imported


def run_and_deliver(
    request: GateRequest,
    adapters: Adapters,
    secrets: Secrets,
    pipeline: Pipeline,
    *,
    trusted_keys: str = "",
    allow_plain_key: bool = False,
) -> DeliveredVerdict:
    """Come to a verdict, then write every document; a fault on the way is written down as well.

    `trusted_keys` is the file that the verify command names, where it is not the one of the
    settings. Settings, usage and cancellation are no verdict: their errors pass through, and so
    does that of another call which works in the output folder.
    """
    with adapters.files.held_folder(request.out):
        # a call that fails early must not leave an older verdict and its seal to be read as its own
        for path in stale_outputs(request.out):
            adapters.files.remove_tree(path)
        # now, for a fault's report too: git does not look at a clone that was trained beside
        commit = request.commit or adapters.git.resolve("HEAD")
        try:
            gated = pipeline(request, adapters)
        except GateError as fault:
            if fault.exit_code is not ExitCode.ERROR:
                raise
            return _deliver_fault(request, adapters, commit, fault)
        try:
            named = trusted_keys or request.repository_path(request.settings.signing.trusted_keys)
            return _deliver(request, adapters, gated, secrets, (named, allow_plain_key))
        except AttestationError as fault:
            # asked for a seal that cannot be made: no verdict stands without it, and none is lost
            return _deliver_fault(request, adapters, commit, fault)


def _deliver(
    request: GateRequest,
    adapters: Adapters,
    gated: Gated,
    secrets: Secrets,
    keys: tuple[str, bool],
) -> DeliveredVerdict:
    adapters.progress.step("packing and sealing")
    package = write_package(gated.verdict, gated.evidence, gated.baseline, request, adapters.files)
    signer = Signer(
        secrets=secrets,
        allow_plain_key=keys[1],
        # of the canonical form: line ends of a checkout do not change what was compared with
        baseline_digest=sha256_hex(write_document(gated.baseline)) if gated.baseline else "",
    )
    sealing = seal_package(gated.verdict, package, request, signer, adapters.files)
    if gated.proposed is not None:
        path = request.out / PROPOSED_BASELINE
        adapters.files.write_bytes(path, write_document(gated.proposed))
    command = verify_line(gated.verdict, request, keys[0]) if sealing.bundle is not None else ""
    shown = request.shown_out / package.path.name
    links = ReportLinks(
        run_url=request.run_url,
        package_path=str(shown),
        verify_command=command,
        history=request.history.lines,
    )
    drawn = page_sources(gated.verdict, gated.evidence, gated.baseline)
    return DeliveredVerdict(
        verdict=gated.verdict,
        reports=write_reports(gated.verdict, request, links, adapters.files, drawn),
        sealing=sealing,
        package=package.path,
        out=request.out,
        exit_code=gated.verdict.exit_code,
    )


def _deliver_fault(
    request: GateRequest, adapters: Adapters, commit: str, fault: GateError
) -> DeliveredVerdict:
    now = adapters.clock.now().isoformat()
    verdict = error_verdict(request, commit, now, fault)
    links = ReportLinks(run_url=request.run_url, history=request.history.lines)
    try:
        reports = write_reports(verdict, request, links, adapters.files)
    except StorageError as second:
        # the first fault is the answer; that it could not be written down as well is a second one
        raise fault from second
    return DeliveredVerdict(
        verdict=verdict,
        reports=reports,
        sealing=Sealing(why_not="only a pass is sealed"),
        package=None,
        out=request.out,
        exit_code=verdict.exit_code,
        fault=fault,
    )
