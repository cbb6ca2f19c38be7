"""The checks behind `repro-gate doctor`: they cover everything that a gate call will need.

Nothing is written but below the output folder, and that is removed again; no script is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gate.baseline.record import read_baseline
from gate.baseline.select import select_entry
from gate.checkup.baseline import examined_baseline
from gate.checkup.commit import examined_command, examined_work_tree, named_paths, script_of
from gate.checkup.preconditions import (
    examined_clone,
    examined_engine,
    examined_room,
    examined_settings,
    examined_token,
    failed,
)
from gate.checkup.training import (
    examined_driver,
    examined_gpu,
    examined_isolation,
    examined_python,
    examined_shared_memory,
)
from gate.errors import GateError, RepositoryError, StorageError
from gate.execution.training_probe import probe_training
from gate.pipelines.entry import MAX_SETTINGS_BYTES, find_config
from gate.pipelines.runs import Adapters
from gate.ports import Git
from gate.records.baseline import MAX_BASELINE_BYTES
from gate.records.doctor import (
    CheckResult,
    CloneSeen,
    CommandSeen,
    DoctorReport,
    Examined,
    TokenSeen,
    TrainingSeen,
)
from gate.records.observed.evidence import Environment
from gate.records.runs import Isolation
from gate.records.sections.isolation import IsolationMode
from gate.records.settings import GateSettings
from gate.records.version import VERSION
from gate.settings.event import ActionContext
from gate.settings.load import MINIMAL_FILE, parse_settings, training_settings

NOT_LOOKED_AT = "not checked: see the rows above"
NEEDS_FOLDER = "not checked: it needs a folder in the output folder, see disk"


@dataclass(frozen=True, kw_only=True, slots=True)
class Probes:
    """What the doctor looks with, beside the adapters of a gate call.

    `engine` answers why no container engine can be used, or the empty text; `token` is None when
    there is no token to ask with. `holds` answers whether a commit has a path, `ignores` whether
    git leaves one of the work tree out, `program` whether a name on PATH can be started here.
    """

    free_bytes: Callable[[Path], int]
    engine: Callable[[], str]
    token: Callable[[], TokenSeen] | None
    shallow: Callable[[], bool]
    holds: Callable[[str, str], bool]
    ignores: Callable[[str], bool]
    program: Callable[[str], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checks:
    """Where to look: `event` is None away from a runner, `base` a commit that should be there."""

    top: Path
    start: Path
    config: str
    out: Path
    base: str
    event: ActionContext | None


def examine(asked: Checks, adapters: Adapters, senses: Probes) -> DoctorReport:
    """Run every check once, whatever the others found."""
    pull_request = asked.event is not None and asked.event.pull_request is not None
    settings, path, about_settings = _settings(asked, adapters, pull_request=pull_request)
    with _work_folder(asked.out, adapters) as work:
        isolation, about_isolation = _isolation(asked, adapters, settings, work)
        training = _training(asked.out, adapters, settings, isolation, work)
    # only now: no process of the training's account is left
    token = senses.token() if senses.token else None
    host = adapters.gpus()
    rows = (
        about_settings,
        *_clone(asked, adapters.git, senses),
        *_commit(asked, adapters, senses, settings, path),
        examined_token(token, pull_request=pull_request),
        examined_engine(settings, senses.engine()),
        about_isolation,
        examined_python(training),
        examined_gpu(settings, training, host, isolation),
        examined_driver(settings, training, host),
        examined_shared_memory(training, isolation),
        _room(asked.out, senses, work),
        _baseline(adapters, settings, path, training)
        if path is not None
        else Examined(name="baseline", health=CheckResult.WARN, found=NOT_LOOKED_AT),
    )
    return DoctorReport(version=VERSION, examined=rows)


def _settings(
    asked: Checks, adapters: Adapters, *, pull_request: bool
) -> tuple[GateSettings, Path | None, Examined]:
    """The settings and where they lie; minimal ones where there are none to be read."""
    try:
        path = find_config(asked.config, asked.start, asked.top)
        text = adapters.files.read_bytes(path, max_bytes=MAX_SETTINGS_BYTES)
        about = examined_settings(path.name, pull_request=pull_request)
        return parse_settings(text, path.name), path, about
    except GateError as fault:
        # a broken file must not keep the other rows from being looked at
        minimal = parse_settings(MINIMAL_FILE.encode("utf-8"), "minimal")
        return minimal, None, failed("settings", fault)


def _clone(asked: Checks, git: Git, senses: Probes) -> tuple[Examined, ...]:
    base = asked.base
    if asked.event is not None and asked.event.pull_request is not None:
        base = asked.event.pull_request.base_sha
    try:
        if asked.event is None:
            git.resolve("HEAD")
        shallow, credentials = senses.shallow(), git.credentials_left()
    except RepositoryError as fault:
        return (failed("history", fault),)
    try:
        missing = bool(base) and not git.resolve(base)
    except RepositoryError:
        missing = True
    seen = CloneSeen(shallow=shallow, base=base, base_missing=missing, credentials=credentials)
    return examined_clone(seen)


def _commit(
    asked: Checks,
    adapters: Adapters,
    senses: Probes,
    settings: GateSettings,
    path: Path | None,
) -> tuple[Examined, ...]:
    """What a gate call would find in the commit; away from a runner it is HEAD, in a clean tree."""
    git = adapters.git
    try:
        commit = asked.event.head_commit if asked.event else git.resolve("HEAD")
        rows = () if asked.event else (_work_tree(git),)
        if path is None or asked.top.resolve() not in path.resolve().parents:
            return rows
        place = path.resolve().parent.relative_to(asked.top.resolve())
        seen = _command(asked.top, senses, settings, commit, place / settings.train.workdir)
    except RepositoryError as fault:
        # away from a runner `history` tells it
        return (failed("command", fault),) if asked.event else ()
    return (*rows, examined_command(seen))


def _work_tree(git: Git) -> Examined:
    changed = git.changed_files()
    return examined_work_tree(changed, git.untracked() if changed else ())


def _command(
    top: Path, senses: Probes, settings: GateSettings, commit: str, workdir: Path
) -> CommandSeen:
    command = settings.train.command
    paths = named_paths(command, workdir.as_posix())
    script = script_of(command)
    missing = {word for word, named in paths.items() if not senses.holds(commit, named)}
    there = {word for word in missing if (top / paths[word]).exists()}
    # an image has programs of its own
    here = (
        settings.isolation.mode is not IsolationMode.CONTAINER and settings.isolation.image is None
    )
    return CommandSeen(
        program=command[0],
        program_missing=here and "/" not in command[0] and not senses.program(command[0]),
        script=script,
        script_missing=script in missing,
        script_exists=script in there,
        ignored=tuple(sorted(paths[word] for word in there if senses.ignores(paths[word]))),
    )


def _room(out: Path, senses: Probes, work: Path | StorageError) -> Examined:
    if isinstance(work, StorageError):
        return failed("disk", work)
    return examined_room(senses.free_bytes(out))


@contextmanager
def _work_folder(out: Path, adapters: Adapters) -> Iterator[Path | StorageError]:
    """A folder below the output folder, as a gate call has one; it is gone afterwards.

    So is the hold on the training's account: what that owns lies in the folder. Where none can be
    made, why.
    """
    # noted before it is made: what was there before stays there afterwards
    new = not adapters.files.exists(out)
    work = out / "doctor"
    with ExitStack() as held:
        try:
            held.enter_context(adapters.files.held_folder(out))
            adapters.files.fresh_folder(work)
        except StorageError as fault:
            yield fault
            return
        try:
            yield work
        finally:
            adapters.files.remove_tree(out if new else work)
            adapters.release()


def _isolation(
    asked: Checks, adapters: Adapters, settings: GateSettings, work: Path | StorageError
) -> tuple[Isolation | None, Examined]:
    if isinstance(work, StorageError):
        return None, Examined(name="isolation", health=CheckResult.WARN, found=NEEDS_FOLDER)
    try:
        isolation = adapters.isolate(settings, (work,))
    except GateError as fault:
        return None, failed("isolation", fault)
    return isolation, examined_isolation(isolation, on_runner=asked.event is not None)


def _training(
    out: Path,
    adapters: Adapters,
    settings: GateSettings,
    isolation: Isolation | None,
    work: Path | StorageError,
) -> TrainingSeen:
    """What is installed where the training runs may be the change under test: isolated alike."""
    if isolation is None or isinstance(work, StorageError):
        return TrainingSeen(problem=NOT_LOOKED_AT)
    run = work / "run"
    adapters.files.fresh_folder(run)
    try:
        with ExitStack() as ends:
            if isolation.needs_restricted_paths:
                ends.enter_context(adapters.closed((out,), run))
            ends.callback(adapters.clean_up, isolation)
            return probe_training(
                settings, isolation, run, adapters.files, adapters.processes, adapters.host
            )
    except GateError as fault:
        return TrainingSeen(problem=fault.message, hint=fault.hint)


def _baseline(
    adapters: Adapters, settings: GateSettings, path: Path, training: TrainingSeen
) -> Examined:
    """Judged by the file as it lies there; what decides on a pull request is the base's."""
    name = settings.baseline.path
    file = path.parent / name
    try:
        data = (
            adapters.files.read_bytes(file, max_bytes=MAX_BASELINE_BYTES)
            if adapters.files.exists(file)
            else None
        )
        baseline = read_baseline(data, name)
    except GateError as fault:
        return failed("baseline", fault)
    here = Environment(parts=dict(training.parts))
    # the gate's own choice, so that the doctor promises what a gate call would do
    chosen = select_entry(
        baseline,
        here,
        training_settings(settings),
        settings.compare.comparable_environment,
    )
    return examined_baseline(baseline, name, chosen.entry if chosen.same_training else None, here)
