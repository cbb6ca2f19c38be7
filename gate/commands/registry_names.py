"""Options of the verbs that ask a registry: its name, a commit, a gate, the clone's settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gate.commands.program import FILES
from gate.errors import RepositoryError, SettingsError
from gate.pipelines.call_setup import parse_settings_apart
from gate.pipelines.settings_file import find_config, settings_bytes
from gate.settings.delivery_sections import check_repository
from gate.settings.gate_settings import GateSettings
from gate.system.gate_names import DEFAULT_GATE, GATE_ID
from gate.system.git.repository import GitRepository
from gate.text.untrusted_text import safe_line

FULL_HASH: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
MAX_COMMITS: Final = 100_000
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")


def full_hash(commit: str) -> str:
    """Return the full hash of a commit: as given, or looked up by its name in the clone.

    Raises `SettingsError` for a name that the clone does not know.
    """
    if FULL_HASH.match(commit):
        return commit
    try:
        return GitRepository(Path.cwd()).resolve(commit)
    except RepositoryError as error:
        raise SettingsError(
            f"{safe_line(commit)!r} is not a full hash, and cannot be looked up: {error.message}",
            hint="Give all digits of the hash, or call this in a clone that has the commit.",
        ) from error


def commits_on(branch: str) -> tuple[str, ...] | None:
    """Return the hashes of the branch's commits, newest first; None if no branch is named."""
    if not branch:
        return None
    return GitRepository(Path.cwd()).commits_of(branch, max_commits=MAX_COMMITS)


def clone_settings(config: str) -> tuple[GateSettings | None, Path]:
    """Return the settings of the clone and their folder; None and the current folder without any.

    Raises `SettingsError` if `config` names a file that does not exist.
    """
    start = Path.cwd()
    top = next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), start)
    try:
        path = find_config(config, start, top)
    except SettingsError:
        if config:
            raise
        return None, start
    text = settings_bytes(path, FILES)
    return parse_settings_apart(text, path.name), path.parent


def registry_place(source: str, settings: GateSettings | None) -> tuple[str, str]:
    """Return the repository in the registry, and the digest behind its `@`, or an empty text.

    Without `source` the settings' `publish.oci` is used. Raises `SettingsError` if that is not set
    either, and for a malformed name or digest.
    """
    if not source:
        if settings is None or settings.publish.oci is None:
            raise SettingsError(
                "no registry is named",
                hint="Give --from registry.example.org/team/runs, or set publish.oci in "
                "repro-gate.yml.",
            )
        return settings.publish.oci, ""
    place, _, digest = source.partition("@")
    try:
        check_repository(place)
    except ValueError as error:
        raise SettingsError(
            f"--from {safe_line(source)!r} {error}",
            hint="Give --from HOST/NAME, without https://.",
        ) from error
    if "@" in source and not DIGEST.match(digest):
        raise SettingsError(
            f"--from {safe_line(source)!r} has no digest behind the @",
            hint="It is sha256: and 64 hexadecimal digits, as the comment shows it.",
        )
    return place, digest


def gate_name(gate_id: str, settings: GateSettings | None) -> str:
    """Return the id of the gate: the option's, or the settings', or the default.

    Raises `SettingsError` for an option that is not the id of a gate.
    """
    if gate_id and not GATE_ID.match(gate_id):
        raise SettingsError(
            f"--gate-id {safe_line(gate_id)!r} is not the id of a gate",
            hint="It is what report.gate_id says in the gate's settings.",
        )
    return gate_id or (settings.report.gate_id if settings else DEFAULT_GATE)
