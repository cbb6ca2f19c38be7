"""What both entry points share: building the adapters, and turning a call into a request."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from gate.data.declared import FetchSources
from gate.data.fetching import Fetcher, LocalData
from gate.data.tools import Tools
from gate.errors import SettingsError
from gate.fleet.store import HistoryStore
from gate.isolation.confined_look import read_apart
from gate.isolation.engine import Engine, connect_docker, engine_address
from gate.isolation.restricted_paths import places_without_data, restrict_access, secret_paths
from gate.isolation.stop_signals import StopSignals
from gate.package.signing import SealServices
from gate.pipelines.adapters import Adapters, Publishers
from gate.pipelines.environments import brought_environment
from gate.pipelines.settings_file import find_config, settings_bytes
from gate.publishing.artifact import PackageRegistry, Tracker
from gate.publishing.credentials import login_file, s3_login_files
from gate.settings.delivery_sections import SigningSettings, TrackerSettings
from gate.settings.event import SigningMethod
from gate.settings.gate_settings import GateSettings
from gate.settings.load import parse_settings
from gate.system.clock import SystemClock
from gate.system.console import Progress
from gate.system.files.port import Files
from gate.system.git.repository import GitRepository
from gate.system.machine import gpus_seen, machine_facts, room
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line
from gate.training.child_environment import path_with_interpreter
from gate.training.isolating import Isolating
from gate.verdict.history_lines import HistoryLine
from gate.verdict.request import GateRequest

# folders of programs for the training alone: the locked packages of the commit under test and, in
# the second variable, those of the base commit
PROGRAMS = "REPRO_GATE_PROGRAMS"
BASE_PROGRAMS = "REPRO_GATE_BASE_PROGRAMS"


def build_adapters(
    files: Files,
    top: Path,
    progress: Progress,
    interrupts: StopSignals,
    variables: Mapping[str, str],
) -> Adapters:
    """Return the real adapters for the repository with the work tree `top`."""
    own = path_with_interpreter(
        variables.get("PATH", ""), Path(sys.executable), beside_torch=find_spec("torch") is not None
    )
    # T1: the gate's own account starts none of these programs, which the change may have installed
    path = _beside(variables.get(PROGRAMS, ""), own)
    libraries = variables.get("LD_LIBRARY_PATH", "")
    isolating = _isolating(interrupts, path, engine_address(variables), variables)
    tools = Tools(processes=isolating.processes, progress=progress, environment=variables)

    def without_secrets(sources: FetchSources) -> FetchSources:
        login = login_file(variables)
        logins = () if login is None else (login,)
        private = (*places_without_data(top, variables), *logins)
        return replace(sources, closed=(*sources.closed, *private))

    def closed(places: tuple[Path, ...], way: Path) -> AbstractContextManager[None]:
        private = (*secret_paths(top, variables), *places)
        return restrict_access(private, way, interrupts, isolating.device_groups)

    return Adapters(
        files=files,
        git=GitRepository(top),
        processes=isolating.processes,
        data=lambda sources: LocalData(Fetcher(top, without_secrets(sources), tools)),
        clock=SystemClock(),
        progress=progress,
        isolate=isolating.choose,
        for_reading=isolating.for_reading,
        answering=isolating.answering,
        beside=isolating.beside,
        room=room,
        closed=closed,
        clean_up=isolating.clean_up,
        release=isolating.release,
        cluster=isolating.cluster,
        # all variables, as a source: `child_environment` chooses those that reach a training
        host={**variables, "PATH": path},
        run=isolating.run,
        base_path=_beside(base, own) if (base := variables.get(BASE_PROGRAMS, "")) else "",
        gpus=lambda: gpus_seen(own, libraries),
        machine=lambda: machine_facts(own, libraries),
        seal_services=_seal_services,
        publishers=_publishers(variables, files),
    )


def _isolating(
    interrupts: StopSignals, path: str, address: str, variables: Mapping[str, str]
) -> Isolating:
    """Only build the objects: a call with refused settings must not start anything."""
    trains = shutil.which("python", path=path) or shutil.which("python3", path=path)
    engine = Engine(connect_docker(address), address)
    socket = address.removeprefix("unix://") if address.startswith("unix://") else ""
    return Isolating(engine, interrupts, trains or sys.executable, socket, variables)


def _beside(programs: str, own: str) -> str:
    """Return the search path with a folder of programs in front, if there is one."""
    return f"{programs}:{own}" if programs else own


def _publishers(variables: Mapping[str, str], files: Files) -> Publishers:
    login = login_file(variables)
    return Publishers(
        login_files=() if login is None else (login,),
        s3_files=s3_login_files(variables),
        registry=partial(_registry, variables=variables, files=files),
        history=partial(_history, variables=variables, files=files),
        push=_push,
        tracker=partial(_tracker, variables=variables, files=files),
    )


# these imports are slow, and few calls publish or seal without a key


def _registry(place: str, variables: Mapping[str, str], files: Files) -> PackageRegistry:
    from gate.publishing.registry import OciRegistry  # noqa: PLC0415 - see above

    return OciRegistry(place, variables, files)


def _tracker(settings: TrackerSettings, variables: Mapping[str, str], files: Files) -> Tracker:
    from gate.publishing.mlflow import MlflowTracker  # noqa: PLC0415 - see above

    return MlflowTracker(settings, variables, files)


def _history(place: str, variables: Mapping[str, str], files: Files) -> HistoryStore:
    from gate.fleet.remote_stores import opened_store  # noqa: PLC0415 - see above

    return opened_store(place, variables, files)


def _push(url: str, line: HistoryLine) -> None:
    from gate.fleet.exposition import push  # noqa: PLC0415 - see above

    push(url, line)


def _seal_services(settings: SigningSettings) -> SealServices:
    from gate.package.sigstore_services import SigstoreServices  # noqa: PLC0415 - see above

    return SigstoreServices(settings)


def parse_settings_apart(data: bytes, source: str) -> GateSettings:
    """Parse settings in a confined child: a clone, with its settings, may come from anyone."""
    form: RecordForm[GateSettings] = RecordForm(GateSettings)
    return read_apart(form, lambda: parse_settings(data, source), what=safe_line(source))


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalCall:
    """The options of a call from the command line."""

    config: str
    start: Path
    out: Path
    base: str
    commit: str
    allow_dirty: bool | None
    sign: SigningMethod = SigningMethod.KEY


def local_request(call: LocalCall, files: Files) -> GateRequest:
    """Return a request about the caller's own repository, with the settings of the work tree."""
    repository = GitRepository(call.start)
    top = repository.top_level()
    config = config_inside(find_config(call.config, call.start, top), top)
    text = settings_bytes(top / config, files)
    return request_for(call, repository, config, text, parse_settings_apart(text, str(config)))


def config_inside(config: Path, top: Path) -> Path:
    """Return the settings file's path below the root; raise `SettingsError` for one elsewhere.

    Paths in the settings are relative to this file and are read from commits, so it has to be
    inside.
    """
    real = config.resolve()
    if not real.is_relative_to(top.resolve()):
        raise SettingsError(
            f"{real} is outside the repository {top}",
            hint="Run the command in the repository that contains the settings file.",
        )
    return real.relative_to(top.resolve())


def request_for(
    call: LocalCall, repository: GitRepository, config: Path, text: bytes, settings: GateSettings
) -> GateRequest:
    """Return the request of a local call under these settings; `config` is relative to the root."""
    request = GateRequest(
        top=repository.top_level(),
        project=config.parent.as_posix(),
        config_name=config.name,
        settings=settings,
        settings_text=text,
        settings_from="work tree",
        out=call.out if call.out.is_absolute() else call.start / call.out,
        commit=repository.resolve(call.commit) if call.commit else None,
        base_commit=repository.resolve(call.base) if call.base else None,
        allow_dirty=call.allow_dirty,
        sign=call.sign,
        typed_config=call.config,
        typed_out=str(call.out),
    )
    return replace(
        request, environment_change=brought_environment(request, parse_settings_apart, repository)
    )
