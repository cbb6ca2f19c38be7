"""Preconditions of the gate: settings, ignored data, clone, token, engine, disk space.

Scripts are parsed like those of an audit, and nothing is run. This is only for a person's own work
tree: on a runner the files are a pull request's, and no gate parses them in its own process (T5).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from gate.errors import GateError, StorageError
from gate.isolation.confined_look import read_apart
from gate.isolation.modes import IsolationMode
from gate.pipelines.audited_folder import AuditedScripts, Look, list_files
from gate.pipelines.doctor.health import CheckResult, Examined, GateSeen
from gate.settings.gate_settings import GateSettings
from gate.system.files.port import Files
from gate.system.git.repository import Git
from gate.system.github.records import TokenSeen
from gate.text.documents import RecordForm
from gate.training.missing_files import Project, ways_to_have

MAX_IGNORED: Final = 2000
# folders that tools keep beside the code and no training reads
CACHES: Final = frozenset(("__pycache__", "venv", "env", "node_modules", "build", "dist", "wandb"))


@dataclass(frozen=True, kw_only=True, slots=True)
class IgnoredRead:
    """A file that a script reads and git ignores; `ways` says how a run could get the file."""

    path: str
    place: str
    ways: str


IGNORED_READ: Final[RecordForm[IgnoredRead | None]] = RecordForm(IgnoredRead | None)


def ignored_read(
    top: Path, folder: str, settings: GateSettings, files: Files, git: Git
) -> IgnoredRead | None:
    """Return the first file that a script reads and git ignores, or None.

    `folder` is the folder of the settings.
    """
    look = Look(top=top, files=files)
    list_files(look, git)
    ignored = tuple(filter(_may_be_data, git.ignored()[:MAX_IGNORED]))
    # git runs in this process; the scripts may be anyone's, so a confined child parses them
    return read_apart(
        IGNORED_READ,
        lambda: _first(look, folder, settings, ignored),
        what="the syntax of the scripts",
    )


def _first(
    look: Look, folder: str, settings: GateSettings, ignored: tuple[str, ...]
) -> IgnoredRead | None:
    top, files = look.top, look.files
    scripts = AuditedScripts(look, "", settings, folder)
    project = Project(top=top, folder=folder or ".", files=files)
    had = _had(settings, folder)
    for name in sorted(scripts.read):
        for line, text in scripts.read[name].read_texts:
            path = _ignored_path(text, ignored, top, files)
            if path and not any(_is_in(path, place) for place in had):
                ways = ways_to_have(path, ignored, top, project)
                return IgnoredRead(path=path, place=f"{name}:{line}", ways=ways)
    return None


def _may_be_data(entry: str) -> bool:
    parts = PurePosixPath(entry).parts
    return not any(part.startswith(".") or part in CACHES for part in parts)


def _had(settings: GateSettings, folder: str) -> tuple[str, ...]:
    """Return the paths that a run has or writes although they are in no commit."""
    made = settings.preprocess.out if settings.preprocess is not None else None
    train = settings.train
    own = (made, *(source.at for source in settings.data))
    written = (train.checkpoint, train.metrics.file)
    places = [posixpath.join(folder, place) for place in own if place]
    places += [posixpath.join(folder, train.workdir, place) for place in written if place]
    return tuple(map(posixpath.normpath, places))


def _is_in(path: str, place: str) -> bool:
    return PurePosixPath(path).is_relative_to(place)


def _ignored_path(text: str, ignored: tuple[str, ...], top: Path, files: Files) -> str:
    """Return the ignored file that a text in a script names, wholly or by its last parts."""
    path = PurePosixPath(text)
    if not path.suffix or path.is_absolute() or ".." in path.parts or not text.isprintable():
        return ""
    for entry in ignored:
        if not entry.endswith("/"):
            if f"/{entry}".endswith(f"/{path}"):
                return entry
            continue
        for inside in (path.as_posix(), f"{entry}{path}"):
            # the text may be no possible file name, for example too long
            with suppress(StorageError):
                if inside.startswith(entry) and files.exists(top / inside):
                    return inside
    return ""


MIB = 1024**2
GIB = 1024**3
# enough for the package of a small model; the size of a large one is not known here
LEAST_FREE_BYTES = 256 * MIB
COMFORTABLE_FREE_BYTES = 4 * GIB
FULL_HISTORY = "Give actions/checkout `fetch-depth: 0`, or `git fetch --unshallow`."
HTTP_FOUND = 200
HTTP_FORBIDDEN = 403
HTTP_NOT_PROCESSABLE = 422


def failed_check(name: str, fault: GateError, health: CheckResult = CheckResult.FAIL) -> Examined:
    """Return a fault as a row, with the details that a user needs."""
    answer = "; ".join((fault.message, *fault.details))
    return Examined(name=name, health=health, found=answer, fix=fault.hint)


def examined_settings(source: str, *, pull_request: bool) -> Examined:
    """Return the row of settings that could be read; `failed_check` reports the others."""
    answer = f"{source} is valid"
    if pull_request:
        answer += " here; on a pull request the base commit's version decides"
    return Examined(name="settings", health=CheckResult.OK, found=answer)


def examined_gates(gates: tuple[GateSeen, ...]) -> tuple[Examined, ...]:
    """Return a row on whether several settings files are separate gates; none for one file."""
    if len(gates) <= 1:
        return ()
    faults = [
        *_shared(gates, "report.gate_id", lambda gate: gate.gate_id),
        *_shared(gates, "baseline", lambda gate: gate.baseline),
    ]
    if not faults:
        answer = f"{len(gates)} settings files, each with its own report.gate_id and baseline"
        return (Examined(name="gates", health=CheckResult.OK, found=answer),)
    return (
        Examined(
            name="gates",
            health=CheckResult.WARN,
            found="; ".join(faults),
            fix="Give each settings file its own report.gate_id and baseline.path: gates that "
            "share them overwrite each other's comment, history and baseline.",
        ),
    )


def _shared(
    gates: tuple[GateSeen, ...], what: str, value_of: Callable[[GateSeen], str]
) -> Iterator[str]:
    """Yield a sentence for each value that several files share, regardless of case."""
    files: dict[str, list[GateSeen]] = {}
    for gate in gates:
        files.setdefault(value_of(gate).casefold(), []).append(gate)
    for same in files.values():
        if len(same) > 1:
            names = " and ".join(gate.config for gate in same)
            yield f"{names} have one {what}: {value_of(same[0])}"


def examined_history(base: str, *, missing: bool, shallow: bool) -> Examined:
    """Return whether the clone has the commits that decide; `base` is the requested one."""
    if missing:
        return Examined(
            name="history",
            health=CheckResult.FAIL,
            found=f"the base commit {base[:12]} is not in this clone",
            fix=FULL_HISTORY,
        )
    if base:
        return Examined(
            name="history",
            health=CheckResult.OK,
            found=f"the base commit {base[:12]} is in this clone",
        )
    if shallow:
        return Examined(
            name="history",
            health=CheckResult.WARN,
            found="the clone is shallow: a base commit may be missing",
            fix=FULL_HISTORY,
        )
    return Examined(name="history", health=CheckResult.OK, found="the clone is complete")


def examined_credentials(credentials: tuple[str, ...]) -> Examined:
    """Return whether credentials are left in the clone."""
    if not credentials:
        return Examined(name="credentials", health=CheckResult.OK, found="none left in the clone")
    return Examined(
        name="credentials",
        health=CheckResult.WARN,
        found=f"left in the clone: {', '.join(credentials)}",
        fix="Give actions/checkout `persist-credentials: false`.",
    )


def examined_token(token: TokenSeen | None, *, pull_request: bool) -> Examined:
    """Return whether the verdict can be written on the pull request; the gate works without."""
    if token is None:
        return Examined(
            name="token",
            health=CheckResult.WARN if pull_request else CheckResult.OK,
            found="no token: no comment is written",
            fix="Give the step `GITHUB_TOKEN: ${{ github.token }}`." if pull_request else "",
        )
    health, answer, fix = _token(token, pull_request=pull_request)
    return Examined(name="token", health=health, found=answer, fix=fix)


def _token(token: TokenSeen, *, pull_request: bool) -> tuple[CheckResult, str, str]:
    if token.problem:
        return CheckResult.WARN, token.problem, token.fix
    if token.repository_status != HTTP_FOUND:
        fix = "Give the job `contents: read`, and the token of this job."
        return CheckResult.WARN, f"may not read the repository ({token.repository_status})", fix
    if not pull_request:
        return CheckResult.OK, "may read the repository; no pull request to comment on", ""
    # the probe sends a comment without text: GitHub answers 422 to a token that may comment
    if token.comment_status == HTTP_NOT_PROCESSABLE:
        return CheckResult.OK, "may read the repository and comment on the pull request", ""
    fix = (
        "Give the job `pull-requests: write`. From a fork it is never granted: docs/forks.md."
        if token.comment_status == HTTP_FORBIDDEN
        else "Check that the pull request is open and its conversation unlocked."
    )
    return CheckResult.WARN, f"may not comment on the pull request ({token.comment_status})", fix


def examined_earlier_runs(token: TokenSeen | None, *, on_default_branch: bool) -> Examined:
    """Return whether this job can add its line to the earlier runs, if the settings ask for it."""
    health, answer, fix = CheckResult.OK, "only a job on the default branch adds a line", ""
    # the row `token` reports a problem with the token
    if on_default_branch and (token is None or token.problem):
        health, answer = CheckResult.WARN, "not checked: see token"
    elif on_default_branch and token is not None:
        health, answer, fix = _contents(token)
    return Examined(name="earlier runs", health=health, found=answer, fix=fix)


def _contents(token: TokenSeen) -> tuple[CheckResult, str, str]:
    # the probe sends a branch without name: GitHub answers 422 to a token that may create one
    if token.contents_status == HTTP_NOT_PROCESSABLE:
        return CheckResult.OK, "may add a line to the branch repro-gate-history", ""
    fix = "Give the job on the default branch `contents: write`, or leave report.history at false."
    answer = f"may not write the branch repro-gate-history ({token.contents_status})"
    return CheckResult.WARN, answer, fix


def examined_engine(settings: GateSettings, problem: str) -> Examined:
    """Return whether a container engine answers, and whether the settings need one."""
    asked = settings.isolation
    if not problem:
        return Examined(name="engine", health=CheckResult.OK, found="a container engine answers")
    needed = IsolationMode.CONTAINER in {asked.mode, asked.minimum}
    needs_engine = asked.image is not None
    return Examined(
        name="engine",
        health=CheckResult.FAIL if needed else CheckResult.WARN if needs_engine else CheckResult.OK,
        found=f"{problem} ({'needed' if needed else 'wanted'})"
        if needed or needs_engine
        else "none (not needed)",
        fix="Mount its socket into the job, or set isolation.mode to uid."
        if needed or needs_engine
        else "",
    )


def examined_room(free_bytes: int) -> Examined:
    """Return whether evidence, a copy of the code for each run and the package have room."""
    answer = f"{free_bytes / GIB:.1f} GiB free in the output folder"
    if free_bytes >= COMFORTABLE_FREE_BYTES:
        return Examined(name="disk", health=CheckResult.OK, found=answer)
    return Examined(
        name="disk",
        health=CheckResult.FAIL if free_bytes < LEAST_FREE_BYTES else CheckResult.WARN,
        found=answer,
        fix="Free some space: two copies of the model and optimizer state have to fit, and the "
        "code.",
    )
