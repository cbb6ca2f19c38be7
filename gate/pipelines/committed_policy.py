"""Checks that the policy files of a call are committed: baseline, settings and trust file.

On a pull request the base commit decides, and all three are read from it. In every other call the
files of the work tree decide. `git status` alone does not prove that they are committed: it omits
ignored files and files that `git update-index` hides.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from gate.baseline.folder import files_in
from gate.errors import DocumentError, GateError, RepositoryError, StorageError
from gate.pipelines.adapters import Adapters
from gate.pipelines.doctor.commit_checks import (
    PolicyPaths,
    add_and_commit,
    policy_of,
    uncommitted,
    uncommitted_fault,
)
from gate.pipelines.policy_files import committed_entries
from gate.system.files.port import Files
from gate.system.git.repository import MAX_FILE_BYTES, Git
from gate.text.untrusted_text import safe_line
from gate.verdict.request import GateRequest

SHOWN = 20
# no committed file has this content, so an unreadable file always differs
UNREADABLE = b"\0"
Contents = Mapping[str, bytes]


def with_policy_checked(request: GateRequest, adapters: Adapters) -> GateRequest:
    """Return the request with its uncommitted policy files; such a call is never sealed.

    Raises `RepositoryError` if there are any and the call does not allow uncommitted changes.
    """
    if request.pull_request:
        return request
    # raises now if the repository has no commit, which is the clearer message
    adapters.git.resolve("HEAD")
    git, policy = adapters.git, policy_of(request.settings, request.project, request.config_name)
    changed = git.changed_files() if request.commit is None else ()
    if changed and not request.allow_dirty:
        seen = uncommitted(changed, git.untracked(), policy)
        raise uncommitted_fault(seen, may_allow=request.allow_dirty is not None)
    # a call on a runner has read its settings from the commit already
    asked = policy if request.settings_from == "work tree" else replace(policy, settings="")
    differing = uncommitted_policy(request.top, asked, git, adapters.files, request.commit)
    if differing and not request.allow_dirty:
        raise policy_fault(differing, policy, git, request.commit)
    return replace(request, uncommitted_policy=differing)


def uncommitted_policy(
    top: Path, policy: PolicyPaths, git: Git, files: Files, commit: str | None = None
) -> tuple[str, ...]:
    """Return the policy files that differ from the commit under test and from HEAD.

    `commit` None stands for HEAD. An unreadable entry of the baseline is left to its reader to
    report.
    """
    head = git.resolve("HEAD")
    commits = tuple(dict.fromkeys((commit or head, head)))
    paths: list[str] = []
    for path in filter(None, (policy.settings, policy.trust)):
        here = _plain(_file(top / path, files))
        if all(_plain(_committed(git, commit_, path)) != here for commit_ in commits):
            paths.append(path)
    paths += _uncommitted_entries(top, policy.baseline, git, files, commits)
    return tuple(sorted(paths))


def policy_fault(
    paths: tuple[str, ...], policy: PolicyPaths, git: Git, commit: str | None = None
) -> RepositoryError:
    """Return the error for a policy that is not committed."""
    return RepositoryError(
        policy_sentence(paths, policy, commit or git.resolve("HEAD")),
        hint=policy_hint(paths, policy, git),
        details=tuple(safe_line(path) for path in paths[:SHOWN]),
    )


def policy_sentence(paths: tuple[str, ...], policy: PolicyPaths, commit: str) -> str:
    """Return a sentence that names the policy files that differ from the commit."""
    named = policy.names_of(paths)
    verb = "differs" if len(named) == 1 else "differ"
    # a file that the commit lacks is named in the same way
    return (
        f"{' and '.join(named)} {verb} from commit {commit[:12]}: the gate judges only by what is "
        "committed"
    )


def policy_hint(paths: tuple[str, ...], policy: PolicyPaths, git: Git) -> str:
    """Return the command that commits the policy, or fetches it, even if ignore rules hide it."""
    ignored, changed = git.ignored(), set(git.changed_files())
    left_out = [path for path in paths if path.startswith(ignored)] if ignored else []
    hidden = [path for path in paths if path not in changed and path not in left_out]
    command = add_and_commit(paths, policy, force=bool(left_out))
    if not hidden:
        return f"{command}."
    if git.is_sparse():
        # `git add` here would commit that the files are gone
        folders = dict.fromkeys(shlex.quote(str(PurePosixPath(path).parent)) for path in hidden)
        return (
            "This work tree is sparse, and the files are not in it: "
            f"`git sparse-checkout add {' '.join(folders)}`."
        )
    return (
        "`git ls-files -v` lists with h or S the files whose changes git hides. Clear these marks "
        f"with `git update-index --no-assume-unchanged --no-skip-worktree FILE`, then {command}."
    )


def _uncommitted_entries(
    top: Path, folder: str, git: Git, files: Files, commits: tuple[str, ...]
) -> tuple[str, ...]:
    try:
        files.refuse_links(top / folder, below=top)
        here = files_in(files, top / folder, folder) or {}
    except (DocumentError, StorageError):
        return ()
    differing = [_differing(here, _entries(git, commit, folder)) for commit in commits]
    names = differing[0] if all(differing) else ()
    return tuple(f"{folder}/{name}" for name in names)


def _differing(here: Contents, committed: Contents) -> tuple[str, ...]:
    names = sorted({*here, *committed})
    return tuple(name for name in names if _plain(here.get(name)) != _plain(committed.get(name)))


def _entries(git: Git, commit: str, folder: str) -> Contents:
    try:
        return committed_entries(git, commit, folder) or {}
    except GateError:
        # the path contains nothing that could be a baseline entry
        return {}


def _committed(git: Git, commit: str, path: str) -> bytes | None:
    try:
        return git.read_file(commit, path)
    except RepositoryError:
        # a link or a submodule is never equal to the file here
        return None


def _file(path: Path, files: Files) -> bytes | None:
    try:
        return files.read_bytes(path, max_bytes=MAX_FILE_BYTES) if files.exists(path) else None
    except StorageError:
        return UNREADABLE


def _plain(content: bytes | None) -> bytes | None:
    # git may be configured to write other line endings into a checkout
    return content and content.replace(b"\r\n", b"\n")
