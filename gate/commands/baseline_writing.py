"""Shared by the verbs that write a baseline: who accepts, why, from which run, and the writing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gate.baseline.entry import MAX_WHO, Baseline, entry_name
from gate.baseline.folder import write_entries
from gate.commands.program import FILES
from gate.errors import SettingsError
from gate.system.git.repository import GitRepository
from gate.system.github.records import RunAddress, run_address
from gate.text.untrusted_text import safe_line, visible
from gate.verdict.request import GateRequest

# the variables that GitHub's own command line reads, in its order
TOKENS: Final = ("GH_TOKEN", "GITHUB_TOKEN")
# A verdict proposes a command with this reason. Pasted unchanged it would explain nothing.
PLACEHOLDERS: Final = frozenset(("why the result moved",))
COMMIT_IT: Final = "Commit the folder: the gate judges by what is committed.\n"


def who_accepts(top: Path) -> str:
    """Return who accepts the entry: the actor of a job, or git's user.

    This is a claim, as the author of a commit is; nothing verifies it.
    """
    actor = os.environ.get("GITHUB_ACTOR", "") if os.environ.get("GITHUB_ACTIONS") else ""
    name = actor or GitRepository(top).user_name(os.environ.get("HOME", ""))
    return visible(name).strip()[:MAX_WHO]


def token_of(option: str) -> str:
    """Return the token for GitHub; raises `SettingsError` naming `option` if none is set."""
    token = next(filter(None, (os.environ.get(name, "").strip() for name in TOKENS)), "")
    if not token:
        raise SettingsError(
            f"{option} needs a token: GH_TOKEN is not set",
            hint="`export GH_TOKEN=$(gh auth token)`, or download the artifact and use --from.",
        )
    return token


def address_of(run: str, top: Path) -> RunAddress:
    """Return the address of a run, named by number or URL, in a repository that the clone knows."""
    return run_address(run, GitRepository(top).remotes(), os.environ)


def download(address: RunAddress, token: str, artifact: str, gate_id: str) -> Callable[[Path], str]:
    """Return a function that downloads a run's artifact to a path and returns its description.

    GitHub is asked only when that function is called.
    """

    def fill(path: Path) -> str:
        # imported here because the HTTP modules are slow to import, and most calls do not need them
        from gate.system.github.artifacts import fetch_artifact  # noqa: PLC0415

        with FILES.replacing(path) as file:
            name = fetch_artifact(file, address, token, name=artifact, gate_id=gate_id)
        return f"artifact {name} of run {address.run}"

    return fill


def refuse_no_reason(reason: str, verb: str = "accept") -> None:
    """Raise `SettingsError` for an empty reason, and for the placeholder that the gate prints."""
    words = reason.strip(" \t'\".").lower()
    if words and words not in PLACEHOLDERS:
        return
    raise SettingsError(
        f"{verb} needs --reason" if not words else f"{verb} needs a reason, not {reason[:60]!r}",
        hint='Reviewers read it in the diff. Say what changed the result: --reason "lr 2e-3".',
    )


def write_baseline(
    request: GateRequest, before: Baseline | None, after: Baseline, *, silent: bool = False
) -> None:
    """Write the entries that differ between `before` and `after`, and print their files.

    Prints a note for each written entry that is provisional, since the gate ignores it until a
    second call reproduces it.
    """
    folder = request.top / request.repository_path(request.settings.baseline.path)
    written = write_entries(FILES, folder, before, after)
    for name in written:
        if not silent:
            sys.stdout.write(f"written: {folder / name}\n")
    for entry in after.entries:
        if entry_name(entry) in written and entry.provisional and entry.far is not None:
            sys.stderr.write(
                "note: it is far from the entries of other environments "
                f"({safe_line(entry.far.described)}), and is ignored until another call "
                "gives the same bits: record it again\n"
            )
