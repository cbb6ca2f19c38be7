"""Reads a folder for an audit; its files are untrusted, reads are bounded, no link is followed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from gate.audit.items import RepositoryFacts, WishList
from gate.audit.repository_lines import unpinned_images, wish_list
from gate.baseline.entry import Baseline
from gate.baseline.folder import files_in, read_entries
from gate.errors import GateError, SettingsError, StorageError
from gate.evidence.lock_files import MAX_LOCK_BYTES, MAX_LOCKS, LockFile
from gate.evidence.lock_readers import has_hashes, is_explicit, read_lock
from gate.isolation.confined_look import read_apart
from gate.package.keys import read_trusted_keys
from gate.package.seal_records import KeyStatus
from gate.pipelines.audited_folder import AuditedScripts, Look, is_below, list_files, with_folders
from gate.pipelines.tree_files import ALWAYS, EXPLICIT_LISTS, REQUIREMENTS
from gate.settings.gate_settings import FILE_NAME, BaselineSettings, GateSettings
from gate.settings.load import parse_settings
from gate.system.files.port import Files
from gate.system.git.repository import Git
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line

FACTS: Final[RecordForm[RepositoryFacts]] = RecordForm(RepositoryFacts)
SMALLER: Final = "Take what was generated out of it, or name a smaller folder."
MAX_SMALL_BYTES: Final = 1024 * 1024
TRUST_FILE: Final = ".repro-gate/trusted-keys.json"
WORKFLOWS: Final = ".github/workflows"
WISHES: Final = ("requirements*.txt", "pyproject.toml", "environment*.yml", "environment*.yaml")


def look_at_repository(place: Path, files: Files, git: Git) -> RepositoryFacts:
    """Return the facts of the folder `place`, inside a work tree or not.

    Raises `StorageError` if it is not a folder.
    """
    shown = safe_line(str(place))
    if not files.is_folder(place):
        raise StorageError(f"{shown} is not a folder", hint="Name a folder, or give --package.")
    top, commit, problem = _work_tree(place, git)
    look = Look(top=top, files=files)
    changed = list_files(look, git if commit or not problem else None)
    here = "" if place == top else place.relative_to(top).as_posix()
    known = RepositoryFacts(
        place=shown, commit=commit, git_problem=problem, changed=tuple(map(safe_line, changed))
    )
    # git runs in this process, which parses nothing; the confined child parses and starts nothing
    facts = read_apart(FACTS, lambda: _read(look, here, known), what=shown, hint=SMALLER)
    # names are added here because they need not be UTF-8, and the child's answer has to be
    return replace(facts, names=frozenset(with_folders(look.names)), incomplete=look.incomplete)


def _read(look: Look, here: str, known: RepositoryFacts) -> RepositoryFacts:
    settings, settings_place, settings_problem = _settings(look, here)
    baseline, baseline_problem = _baseline(look, settings, settings_place)
    keys, keys_problem = _keys(look, settings, settings_place)
    folders = tuple(dict.fromkeys((settings_place, here, "")))
    scripts = AuditedScripts(look, here, settings, settings_place)
    return replace(
        known,
        settings=settings,
        settings_place=settings_place,
        settings_problem=settings_problem,
        baseline=baseline,
        baseline_problem=baseline_problem,
        active_keys=keys,
        keys_problem=keys_problem,
        workflow=_workflow(look),
        locks=tuple(_locks(look, folders, settings, settings_place)),
        wishes=tuple(_wishes(look, folders)),
        images=_images(look, folders),
        training=scripts.training,
        script_missing=scripts.missing,
        scripts=len(scripts.read),
        modules=scripts.modules,
        unreadable=scripts.unreadable,
        lines=scripts.lines,
    )


def _work_tree(place: Path, git: Git) -> tuple[Path, str, str]:
    """Return the root of the work tree and its commit, or why there is none."""
    try:
        top = git.top_level()
    except GateError as fault:
        return place, "", fault.message
    # git's configuration (core.worktree) can place the work tree elsewhere
    if not place.is_relative_to(top):
        return place, "", "git says that its work tree is elsewhere"
    try:
        return top, git.resolve("HEAD"), ""
    except GateError as fault:
        return top, "", fault.message


def _settings(look: Look, here: str) -> tuple[GateSettings | None, str, str]:
    """Return the settings here or at the root, their folder, and why they are unreadable."""
    for folder in dict.fromkeys((here, "")):
        name = f"{folder}/{FILE_NAME}" if folder else FILE_NAME
        if not look.files.exists(look.top / name):
            continue
        data = look.read(name, MAX_SMALL_BYTES)
        if data is None:
            return None, folder, f"{FILE_NAME} is a link, too large or no file"
        try:
            return parse_settings(data, FILE_NAME), folder, ""
        except SettingsError as fault:
            return None, folder, "; ".join((fault.message, *fault.details[:1]))
    return None, here, ""


def _baseline(
    look: Look, settings: GateSettings | None, folder: str
) -> tuple[Baseline | None, str]:
    path = (settings.baseline if settings is not None else BaselineSettings()).path
    place = PurePosixPath(folder, path).as_posix()
    if not is_below(place):
        return None, "baseline.path leads out of the repository"
    try:
        look.files.refuse_links(look.top / place, below=look.top)
        return read_entries(files_in(look.files, look.top / place, place), place), ""
    except GateError as fault:
        return None, fault.message


def _keys(look: Look, settings: GateSettings | None, folder: str) -> tuple[int, str]:
    """Return how many keys of the trust file are active, and why it is unreadable."""
    chosen = settings.signing.trusted_keys if settings is not None else TRUST_FILE
    name = PurePosixPath(folder, chosen).as_posix()
    if is_below(name) and not look.files.exists(look.top / name):
        return 0, ""
    data = look.read(name, MAX_SMALL_BYTES)
    if data is None:
        return 0, f"{safe_line(name)} is a link, too large or no file of the repository"
    try:
        keys = read_trusted_keys(data, name).keys
    except GateError as fault:
        return 0, fault.message
    return sum(key.status is KeyStatus.ACTIVE for key in keys), ""


def _workflow(look: Look) -> str:
    """Return the first workflow that mentions the gate; its text is searched, not parsed."""
    for name in look.names:
        path = PurePosixPath(name)
        if path.parent.as_posix() == WORKFLOWS and path.suffix in {".yml", ".yaml"}:
            # a search is enough to find the workflow, and parses no untrusted YAML
            data = look.read(name, MAX_SMALL_BYTES) or b""
            if b"repro-gate" in data:
                return safe_line(name)
    return ""


def _beside(look: Look, folders: tuple[str, ...], patterns: tuple[str, ...]) -> Iterator[str]:
    """Yield files directly in these folders whose names match."""
    for name in look.names:
        path = PurePosixPath(name)
        parent = "" if path.parent.as_posix() == "." else path.parent.as_posix()
        if parent in folders and any(fnmatchcase(path.name, pattern) for pattern in patterns):
            yield name


def _locks(
    look: Look, folders: tuple[str, ...], settings: GateSettings | None, place: str
) -> Iterator[LockFile]:
    """Yield lock files as a gate call finds them: named by the settings, or beside them."""
    named = settings.environment.locks if settings is not None else ()
    places = [PurePosixPath(place, name).as_posix() for name in named]
    locks = _beside(look, folders, (*ALWAYS, *REQUIREMENTS, *EXPLICIT_LISTS))
    for name in list(dict.fromkeys((*places, *locks)))[:MAX_LOCKS]:
        data = look.read(name, MAX_LOCK_BYTES)
        sure = name in places or PurePosixPath(name).name in ALWAYS
        if data is None:
            if sure:
                yield LockFile(path=safe_line(name)[:500], problem="is a link, too large, or gone")
        elif sure or has_hashes(data) or is_explicit(data):
            yield read_lock(safe_line(name)[:500], data)


def _wishes(look: Look, folders: tuple[str, ...]) -> Iterator[WishList]:
    for name in _beside(look, folders, WISHES):
        data = look.read(name, MAX_SMALL_BYTES)
        wishes = wish_list(safe_line(name), data) if data is not None else None
        if wishes is not None:
            yield wishes


def _images(look: Look, folders: tuple[str, ...]) -> tuple[str, ...]:
    contents = (
        look.read(name, MAX_SMALL_BYTES) for name in _beside(look, folders, ("Dockerfile*",))
    )
    images = (image for data in contents if data is not None for image in unpinned_images(data))
    return tuple(map(safe_line, dict.fromkeys(images)))
