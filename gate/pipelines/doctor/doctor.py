"""The checks of `repro-gate doctor`, which cover everything that a gate call needs.

They write only below the output folder, and remove that again. No script is trained.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

from gate.baseline.entry import Baseline
from gate.baseline.select import select_entry
from gate.errors import (
    CancelledError,
    DocumentError,
    GateError,
    RepositoryError,
    SettingsError,
    StorageError,
)
from gate.isolation.confined_look import read_apart
from gate.isolation.modes import Isolation, IsolationMode
from gate.pipelines.adapters import Adapters
from gate.pipelines.call_setup import parse_settings_apart
from gate.pipelines.committed_policy import policy_hint, policy_sentence, uncommitted_policy
from gate.pipelines.doctor.commit_checks import (
    NO_POLICY,
    PolicyPaths,
    examined_command,
    examined_ignored,
    examined_policy,
    examined_work_tree,
    named_paths,
    no_program,
    policy_of,
)
from gate.pipelines.doctor.health import (
    CheckResult,
    DoctorReport,
    Examined,
    GateSeen,
)
from gate.pipelines.doctor.machine_checks import (
    examined_baseline,
    examined_driver,
    examined_gpu,
    examined_isolation,
    examined_python,
    examined_shared_memory,
)
from gate.pipelines.doctor.preconditions import (
    examined_credentials,
    examined_earlier_runs,
    examined_engine,
    examined_gates,
    examined_history,
    examined_room,
    examined_settings,
    examined_token,
    failed_check,
    ignored_read,
)
from gate.pipelines.policy_files import baseline_below
from gate.pipelines.settings_file import find_config, settings_bytes
from gate.pipelines.snapshots import held_out
from gate.settings.event import ActionContext
from gate.settings.gate_settings import GateSettings, is_of_github
from gate.settings.load import MINIMAL_FILE, parse_settings, training_settings
from gate.system.files.port import Files
from gate.system.git.objects import submodule
from gate.system.git.repository import Git
from gate.system.github.records import TokenSeen
from gate.system.machine import GpusSeen, TrainingSeen
from gate.system.version import VERSION
from gate.text.documents import RecordForm
from gate.training.environment import Environment
from gate.training.probe import probe_training, read_answer

NOT_LOOKED_AT = "not checked: see the rows above"
GATES: Final[RecordForm[tuple[GateSeen, ...]]] = RecordForm(tuple[GateSeen, ...])
BASELINE: Final[RecordForm[Baseline | None]] = RecordForm(Baseline | None)
SEEN: Final[RecordForm[TrainingSeen]] = RecordForm(TrainingSeen)
FEWER_ENTRIES: Final = "Remove entries of machines that are gone."
MAX_SETTINGS_FILES: Final = 200
NO_FOLDER: Final = Examined(
    name="isolation",
    health=CheckResult.WARN,
    found="not checked: it needs a folder in the output folder, see disk",
)
NOT_PROBED: Final = TrainingSeen(problem=NOT_LOOKED_AT)
LookResult = TypeVar("LookResult")


@dataclass(frozen=True, kw_only=True, slots=True)
class Probes:
    """The questions that the doctor asks beside the adapters of a gate call.

    `engine` returns why no container engine is usable, or an empty text. `token` is None without a
    token; its argument says whether to test `contents: write` too. `holds` says whether a commit
    contains a path. `ignores` says whether git ignores a path of the work tree. `program` says
    whether a name on PATH can be started here. `submodules` returns the submodules of a commit.
    """

    free_bytes: Callable[[Path], int]
    engine: Callable[[], str]
    token: Callable[[bool], TokenSeen] | None
    shallow: Callable[[], bool]
    holds: Callable[[str, str], bool]
    ignores: Callable[[str], bool]
    program: Callable[[str], bool]
    submodules: Callable[[str], tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checks:
    """Where to look: `event` is None outside a runner, `base` a commit that the clone should have.

    `event_fault` is why the gate would refuse the runner's event.
    """

    top: Path
    start: Path
    config: str
    out: Path
    base: str
    event: ActionContext | None
    event_fault: GateError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Workplace:
    """What was found about the place of trainings.

    `fault` is why the folder could not be made or removed.
    """

    isolation: Isolation | None = None
    about_isolation: Examined = NO_FOLDER
    training: TrainingSeen = NOT_PROBED
    fault: GateError | None = None


def examine(asked: Checks, adapters: Adapters, probes: Probes) -> DoctorReport:
    """Run every check once; a check that raises becomes a row and does not end the others."""
    pull_request = asked.event is not None and asked.event.pull_request is not None
    settings, path, about_settings = _settings(asked, adapters, pull_request=pull_request)
    work = _workplace(asked, adapters, settings)
    # the token is used only now, after the last process of the training's account is gone (T1)
    token = _rows("token", lambda: _token(asked.event, probes, settings))
    host = _host(adapters)
    training, isolation = work.training, work.isolation
    rows = (
        *([failed_check("event", asked.event_fault)] if asked.event_fault else []),
        about_settings,
        *_rows("gates", lambda: _gates(asked, adapters)),
        *_rows("history", lambda: _clone(asked, adapters.git, probes)),
        *_commit(asked, adapters, probes, settings, path),
        *token,
        examined_engine(settings, _why_no_engine(probes)),
        work.about_isolation,
        examined_python(training),
        examined_gpu(settings, training, host, isolation),
        examined_driver(settings, training, host),
        examined_shared_memory(training, isolation),
        *_rows("disk", lambda: (_room(asked.out, probes, work.fault),)),
        *_rows("baseline", lambda: (_baseline(asked, adapters, settings, path, training),)),
    )
    return DoctorReport(version=VERSION, examined=rows)


def _attempt(look: Callable[[], LookResult]) -> LookResult | GateError:
    """Return what a look found, or the fault that ended it; only a cancelled call is raised."""
    try:
        return look()
    except CancelledError:
        raise
    except GateError as fault:
        return fault
    except OSError as fault:
        return StorageError(
            f"{fault.strerror or type(fault).__name__}", hint="Check the path and its permissions."
        )


def _rows(name: str, look: Callable[[], tuple[Examined, ...]]) -> tuple[Examined, ...]:
    """Return the rows of a look; its fault becomes a row with this name."""
    answer = _attempt(look)
    return (failed_check(name, answer),) if isinstance(answer, GateError) else answer


def _host(adapters: Adapters) -> GpusSeen:
    gpus = _attempt(adapters.gpus)
    return GpusSeen(problem=gpus.message) if isinstance(gpus, GateError) else gpus


def _why_no_engine(probes: Probes) -> str:
    engine = _attempt(probes.engine)
    return engine.message if isinstance(engine, GateError) else engine


def _token(
    event: ActionContext | None, probes: Probes, settings: GateSettings
) -> tuple[Examined, ...]:
    """Return rows on what the token may do, also for earlier runs if the settings ask for them."""
    pull_request = event is not None and event.pull_request is not None
    # on other branches the job needs no write permission, and should not have it
    writes = settings.report.history and event is not None and event.on_default_branch
    token = probes.token(writes) if probes.token else None
    row = examined_token(token, pull_request=pull_request)
    if not settings.report.history:
        return (row,)
    return row, examined_earlier_runs(token, on_default_branch=writes)


def _settings(
    asked: Checks, adapters: Adapters, *, pull_request: bool
) -> tuple[GateSettings, Path | None, Examined]:
    """Return the settings and their path; minimal settings if none can be read."""

    def read() -> tuple[GateSettings, Path, Examined]:
        path = find_config(asked.config, asked.start, asked.top)
        text = settings_bytes(path, adapters.files)
        shown = str(path.relative_to(asked.top) if path.is_relative_to(asked.top) else path)
        about = examined_settings(shown, pull_request=pull_request)
        return parse_settings_apart(text, shown), path, about

    read_settings = _attempt(read)
    if isinstance(read_settings, GateError):
        # a broken settings file must not prevent the other checks
        minimal = parse_settings(MINIMAL_FILE.encode("utf-8"), "minimal")
        return minimal, None, failed_check("settings", read_settings)
    return read_settings


def _gates(asked: Checks, adapters: Adapters) -> tuple[Examined, ...]:
    """Compare the settings files of the work tree with each other; no row for a single file."""
    # On a runner the files are the pull request's. Reading one of them there is enough (T5).
    if asked.event is not None:
        return ()
    try:
        names = adapters.git.visible_files()
    except RepositoryError:
        # the row `history` reports it
        return ()
    chosen = sorted(filter(_may_be_settings, names))[:MAX_SETTINGS_FILES]
    what = "the settings files of the work tree"
    seen = read_apart(GATES, lambda: tuple(_seen(asked.top, chosen, adapters.files)), what=what)
    return examined_gates(seen)


def _seen(top: Path, names: list[str], files: Files) -> Iterator[GateSeen]:
    for name in names:
        # it may be a template or broken; the row of the settings is about the requested file only
        with suppress(SettingsError, DocumentError, StorageError):
            text = settings_bytes(top / name, files)
            settings = parse_settings(text, name)
            baseline = posixpath.normpath(PurePosixPath(name).parent / settings.baseline.path)
            yield GateSeen(config=name, gate_id=settings.report.gate_id, baseline=baseline)


def _may_be_settings(name: str) -> bool:
    path = PurePosixPath(name)
    named = "repro-gate" in path.stem and path.suffix in {".yml", ".yaml"}
    return named and not is_of_github(name)


def _clone(asked: Checks, git: Git, probes: Probes) -> tuple[Examined, ...]:
    base = asked.base
    if asked.event is not None and asked.event.pull_request is not None:
        base = asked.event.pull_request.base_sha
    if asked.event is None:
        git.resolve("HEAD")
    shallow, credentials = probes.shallow(), git.credentials_left()
    try:
        missing = bool(base) and not git.resolve(base)
    except RepositoryError:
        missing = True
    history = examined_history(base, missing=missing, shallow=shallow)
    return history, examined_credentials(credentials)


def _commit(
    asked: Checks,
    adapters: Adapters,
    probes: Probes,
    settings: GateSettings,
    path: Path | None,
) -> tuple[Examined, ...]:
    """Check what a gate call would find in the commit.

    Outside a runner that is HEAD, together with the state of the work tree.
    """
    git = adapters.git
    commit = asked.event.head_commit if asked.event else _attempt(lambda: git.resolve("HEAD"))
    if isinstance(commit, GateError):
        # the row `history` reports it
        return ()
    inside = path is not None and asked.top.resolve() in path.resolve().parents
    policy = _policy_paths(asked.top, settings, path) if path and inside else NO_POLICY
    rows = () if asked.event else _rows("work tree", lambda: (_work_tree(git, policy),))
    rows = (*rows, *_rows("commit", lambda: _submodules(probes.submodules(commit))))
    if path is None or not inside:
        return rows
    if not asked.event:
        rows = (*rows, *_rows("policy", lambda: _policy(asked.top, policy, adapters)))
    place = path.resolve().parent.relative_to(asked.top.resolve()) / settings.train.workdir
    look = partial(_command, asked.top, probes, settings, commit, place)
    folder = path.resolve().parent.relative_to(asked.top.resolve()).as_posix()
    return (
        *rows,
        *_rows("command", lambda: (look(),)),
        *_rows("data", lambda: _ignored_data(asked, adapters, settings, folder)),
    )


def _ignored_data(
    asked: Checks, adapters: Adapters, settings: GateSettings, folder: str
) -> tuple[Examined, ...]:
    """Return a row for a file that a script reads and git ignores; none if none is found."""
    # on a runner the scripts are a pull request's, and are not parsed here (T5)
    if asked.event is not None:
        return ()
    here = "" if folder == "." else folder
    ignored = ignored_read(asked.top, here, settings, adapters.files, adapters.git)
    return () if ignored is None else (examined_ignored(ignored.path, ignored.place, ignored.ways),)


def _work_tree(git: Git, policy: PolicyPaths) -> Examined:
    changed = git.changed_files()
    return examined_work_tree(changed, git.untracked() if changed else (), policy)


def _submodules(submodules: tuple[str, ...]) -> tuple[Examined, ...]:
    """Return the row with which the gate refuses the first submodule of a commit, if it has one."""
    return tuple(failed_check("commit", submodule(path)) for path in submodules[:1])


def _policy_paths(top: Path, settings: GateSettings, path: Path) -> PolicyPaths:
    config = path.resolve().relative_to(top.resolve())
    return policy_of(settings, config.parent.as_posix(), config.name)


def _policy(top: Path, policy: PolicyPaths, adapters: Adapters) -> tuple[Examined, ...]:
    """Return a row for policy files that are not committed as they are here, if there are any."""
    git = adapters.git
    # the row `work tree` reports the files that git lists as changed
    seen = set(git.changed_files())
    rows = tuple(
        path for path in uncommitted_policy(top, policy, git, adapters.files) if path not in seen
    )
    if not rows:
        return ()
    sentence = policy_sentence(rows, policy, git.resolve("HEAD"))
    return (examined_policy(sentence, policy_hint(rows, policy, git)),)


def _command(
    top: Path, probes: Probes, settings: GateSettings, commit: str, workdir: Path
) -> Examined:
    command = settings.train.command
    paths = named_paths(command, workdir.as_posix())
    missing = tuple(word for word, named in paths.items() if not probes.holds(commit, named))
    there = tuple(word for word in missing if (top / paths[word]).exists())
    # an image contains its own programs, so those of this machine say nothing
    here = (
        settings.isolation.mode is not IsolationMode.CONTAINER and settings.isolation.image is None
    )
    program = command[0]
    if here and "/" not in program and not probes.program(program):
        return no_program(program)
    ignored = sorted(paths[word] for word in there if probes.ignores(paths[word]))
    return examined_command(command, missing, there, ignored)


def _room(out: Path, probes: Probes, fault: GateError | None) -> Examined:
    return failed_check("disk", fault) if fault else examined_room(probes.free_bytes(out))


def _workplace(asked: Checks, adapters: Adapters, settings: GateSettings) -> Workplace:
    """Check isolation and training from a folder below the output folder, then remove the folder.

    The training's account owns files in the folder, so the account is released after that.
    """
    seen = [Workplace()]
    work = asked.out / "doctor"

    def look() -> None:
        # noted before the folder is made: an output folder that existed before is not removed
        new = not adapters.files.exists(asked.out)
        with held_out(asked.out, adapters.files), ExitStack() as ends:
            ends.callback(adapters.release)
            ends.callback(adapters.files.remove_tree, asked.out if new else work)
            adapters.files.fresh_folder(work)
            seen.append(_looked_from(work, asked, adapters, settings))

    fault = _attempt(look)
    # if the folder cannot be removed, the findings are still valid
    return replace(seen[-1], fault=fault)


def _looked_from(
    work: Path, asked: Checks, adapters: Adapters, settings: GateSettings
) -> Workplace:
    isolation = _attempt(lambda: adapters.isolate(settings, (work,)))
    if isinstance(isolation, GateError):
        return Workplace(about_isolation=failed_check("isolation", isolation), training=NOT_PROBED)
    training = _attempt(lambda: _training(asked.out, adapters, settings, isolation, work / "run"))
    if isinstance(training, GateError):
        training = TrainingSeen(problem=training.message, hint=training.hint)
    about = examined_isolation(isolation, on_runner=asked.event is not None)
    return Workplace(isolation=isolation, about_isolation=about, training=training)


def _training(
    out: Path, adapters: Adapters, settings: GateSettings, isolation: Isolation, run: Path
) -> TrainingSeen:
    """Look at the training's Python, isolated like a run: it may belong to the tested change."""
    adapters.files.fresh_folder(run)
    with ExitStack() as ends:
        if isolation.needs_restricted_paths:
            ends.enter_context(adapters.closed((out,), run))
        ends.callback(adapters.clean_up, isolation)
        return probe_training(
            settings,
            isolation,
            run,
            adapters.files,
            adapters.processes,
            adapters.host,
            read=_read_apart,
        )


def _read_apart(output: bytes, timed_out: bool) -> TrainingSeen:  # noqa: FBT001 - as the probe calls it
    what = "the answer of the training's Python"
    return read_apart(SEEN, lambda: read_answer(output, timed_out), what=what)


def _baseline(
    asked: Checks,
    adapters: Adapters,
    settings: GateSettings,
    path: Path | None,
    training: TrainingSeen,
) -> Examined:
    """Check the entries in the work tree, although on a pull request the base's entries decide."""
    if path is None:
        return Examined(name="baseline", health=CheckResult.WARN, found=NOT_LOOKED_AT)
    name = settings.baseline.path
    folder = path.parent
    baseline = read_apart(
        BASELINE, lambda: baseline_below(folder, name, adapters), what=name, hint=FEWER_ENTRIES
    )
    # no script ran, so nothing is imported here; the entry's imports decide which packages count
    here = Environment(
        parts=dict(training.parts),
        packages=training.packages,
        origins=dict(training.origins),
    )
    # the gate's own selection, so that the doctor predicts what a gate call would do
    chosen = select_entry(
        baseline,
        here,
        training_settings(settings),
        settings.compare.comparable_environment,
    )
    entry = chosen.entry if chosen.same_training else None
    return examined_baseline(baseline, name, entry, here, chosen.nearest, config=asked.config)
