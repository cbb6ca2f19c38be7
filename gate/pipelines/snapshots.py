"""The output folder of a call, and the commits that are exported into it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from gate.baseline.entry import PROPOSED_BASELINE
from gate.checkpoint.parts import compiled
from gate.diagnosis.inert_changes import without_inert
from gate.errors import RepositoryError, RunError, SettingsError, StorageError
from gate.package.seal_files import PACKAGE, seal_paths
from gate.pipelines.adapters import Adapters
from gate.pipelines.doctor.commit_checks import policy_of, uncommitted, uncommitted_fault
from gate.system.files.folder_lock import LOCK
from gate.system.files.port import Files
from gate.system.git.changes import Change
from gate.system.git.repository import Git
from gate.text.untrusted_text import safe_line
from gate.training.runs import Commit, Snapshot
from gate.verdict.request import GateRequest

BADGE: Final = "badge.json"
MAX_AT_ROOT: Final = 100_000

IGNORE_NAME: Final = ".gitignore"
IGNORE_ALL: Final = b"*\n"
# git's own file is no proof of ownership, because other tools write the same content
MARK_NAME: Final = ".repro-gate-out"
MARK: Final = b"The gate made this folder; its next call replaces what is in it.\n"
# marks a folder that an older version of the gate made
OLDER_MARK: Final = Path("evidence", "manifest.json")
MAX_MARK_BYTES: Final = 64 * 1024
SEPARATE: Final = "Name a separate folder, for example demo-out."
# a call that stopped early leaves only these in a folder that was new or empty
BEGUN: Final = frozenset((LOCK, IGNORE_NAME, MARK_NAME))


def claim_out(out: Path, files: Files) -> None:
    """Make the output folder, hide it from git, and mark it as the gate's.

    Raises `SettingsError` for a folder that the gate did not make, and `StorageError` if a link of
    the checkout leads there.
    """
    refuse_unmarked(out, files)
    if not files.exists(out):
        files.fresh_folder(out)
    # without the ignore file the output would be an uncommitted change of the next call
    for path, content in ((out / IGNORE_NAME, IGNORE_ALL), (out / MARK_NAME, MARK)):
        # write only if needed: a call claims its folder several times, and each write is synced to
        # disk
        if not _holds(path, content, files):
            files.write_bytes(path, content)


@contextmanager
def held_out(out: Path, files: Files) -> Iterator[None]:
    """Hold the output folder for this process alone; a folder in other use gets no lock file."""
    refuse_unmarked(out, files)
    with files.held_folder(out):
        # claimed at once, so that git never sees the lock of a call that ends early
        claim_out(out, files)
        yield


def refuse_unmarked(out: Path, files: Files) -> None:
    """Raise `SettingsError` for a folder with content that the gate did not make."""
    files.refuse_brought_link(out)
    _refuse_repository(out, files)
    # resolve now: a link outside of every checkout is the user's own and counts as its target
    folder = out.resolve()
    if _is_own(out, files) or not files.is_folder(folder):
        return
    # this call or, once the folder is marked, the next one would replace the content
    names = files.list_names(folder, max_names=MAX_AT_ROOT)
    taken = [name for name in names if name not in BEGUN]
    if files.exists(out / IGNORE_NAME) and not _holds(out / IGNORE_NAME, IGNORE_ALL, files):
        taken.append(IGNORE_NAME)
    if taken:
        raise SettingsError(
            f"--out {out} contains {safe_line(taken[0])}, and the gate did not make this folder",
            hint="Name a new folder, for example demo-out: a call replaces what is in it.",
        )


def _refuse_repository(out: Path, files: Files) -> None:
    if files.exists(out / ".git"):
        raise SettingsError(f"--out {out} is a repository", hint=SEPARATE)
    if ".git" in out.resolve().parts:
        raise SettingsError(f"--out {out} is in the .git folder of a repository", hint=SEPARATE)


def prepare_out(out: Path, files: Files) -> None:
    """Claim the output folder, and remove the evidence of an earlier call."""
    claim_out(out, files)
    files.fresh_folder(out / "evidence")


def _is_own(out: Path, files: Files) -> bool:
    if not _holds(out / IGNORE_NAME, IGNORE_ALL, files):
        return False
    return _holds(out / MARK_NAME, MARK, files) or files.exists(out / OLDER_MARK)


def _holds(path: Path, content: bytes, files: Files) -> bool:
    try:
        return files.read_bytes(path, max_bytes=MAX_MARK_BYTES) == content
    except StorageError:
        return False


def export_snapshot(
    which: Commit, request: GateRequest, adapters: Adapters, work: Path
) -> Snapshot:
    """Export head or base as a tree below `work`; raise `RepositoryError` if that is impossible."""
    git = adapters.git
    target = work / f"{which.value}-snapshot"
    workdir = request.repository_path(request.settings.train.workdir)
    changed: tuple[str, ...] = ()
    if which is Commit.BASE and request.base_commit:
        commit = request.base_commit
    elif request.commit:
        commit = request.commit
    else:
        commit = git.resolve("HEAD")
        changed = _changed_files(request, git)
    adapters.files.fresh_folder(target)
    digest = git.export_work_tree(target) if changed else git.export_commit(commit, target)
    part = work / f"{which.value}-files" if request.settings.train.files else None
    return Snapshot(
        commit=commit,
        tree=target,
        workdir=workdir,
        digest=digest,
        changed_files=changed,
        part=part,
        part_digest=copy_part(request, target, part, adapters.files) if part else "",
    )


def is_of_training(request: GateRequest, path: str) -> bool:
    """Decide whether a file of the repository matches `train.files`; the baseline never does."""
    settings = request.settings
    baseline = request.repository_path(settings.baseline.path)
    if path == baseline or path.startswith(f"{baseline}/"):
        return False
    return any(pattern.fullmatch(path) for pattern in _patterns(settings.train.files))


# cached, because this is asked for every file of a commit
@lru_cache(maxsize=8)
def _patterns(files: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(f"{compiled(pattern)}(/.*)?", re.DOTALL) for pattern in files)


def copy_part(request: GateRequest, tree: Path, part: Path, files: Files) -> str:
    """Copy a commit's files of the training to `part`; return the digest of that tree.

    The baseline is never among them, because its content depends on the result. Raises
    `RepositoryError` if the training's start folder has no file left.
    """
    settings = request.settings
    files.copy_tree(tree, part)
    files.keep_only(part, partial(is_of_training, request))
    workdir = request.repository_path(settings.train.workdir)
    if not files.is_folder(part / workdir) or not files.list_names(part, max_names=MAX_AT_ROOT):
        raise RepositoryError(
            f"train.files leaves no file of the folder that the training starts in ({workdir})",
            hint="Its patterns are paths from the repository's root, for example "
            "`files: [train.py, src, configs/*.yaml]`.",
        )
    return files.tree_digest(part)


def _changed_files(request: GateRequest, git: Git) -> tuple[str, ...]:
    changed = git.changed_files()
    if changed and not request.allow_dirty:
        policy = policy_of(request.settings, request.project, request.config_name)
        seen = uncommitted(changed, git.untracked(), policy)
        raise uncommitted_fault(seen, may_allow=request.allow_dirty is not None)
    return tuple(sorted({*changed, *request.uncommitted_policy}))


def export_all(
    request: GateRequest, adapters: Adapters, work: Path, *, runs_base: bool
) -> tuple[dict[Commit, Snapshot], RepositoryError | None]:
    """Export all commits that may be trained; also return why the base cannot be.

    Everything is exported now, because the gate does not let git look at the clone later.
    """
    snapshots = {Commit.HEAD: export_snapshot(Commit.HEAD, request, adapters, work)}
    no_base = None
    if request.base_commit and runs_base:
        try:
            snapshots[Commit.BASE] = export_snapshot(Commit.BASE, request, adapters, work)
        except RepositoryError as fault:
            # keep the fault for later, because the base usually never runs
            no_base = fault
    check_snapshots(snapshots, adapters.files)
    return snapshots, no_base


def check_snapshots(snapshots: Mapping[Commit, Snapshot], files: Files) -> None:
    """Raise `RunError` if the exported code changed on disk; every run is a copy of it."""
    for which, snapshot in snapshots.items():
        same = files.tree_digest(snapshot.tree) == snapshot.digest
        if same and snapshot.part is not None:
            same = files.tree_digest(snapshot.part) == snapshot.part_digest
        if not same:
            raise RunError(
                f"the exported {which.value} commit changed on disk while the gate ran",
                hint="The training can write where it must not: let the gate isolate it "
                "(isolation.minimum: uid), and look at what else writes to --out.",
            )


def stale_outputs(out: Path) -> tuple[Path, ...]:
    """Return the files of an earlier call that would otherwise look like this call's."""
    names = ("verdict.json", "comment.md", "summary.md", "report.html", BADGE, PROPOSED_BASELINE)
    package = out / PACKAGE
    return (*(out / name for name in names), package, *seal_paths(package))


def clear_out(out: Path, files: Files) -> None:
    """Claim the folder and remove an older verdict and seal, which would look like this call's."""
    claim_out(out, files)
    for path in stale_outputs(out):
        files.remove_tree(path)


def lines_of_the_change(request: GateRequest, git: Git) -> Change | None:
    """Return the changed lines between base and head that a program can notice.

    None without a base, or if git fails.

    Call it before any training.
    """
    if request.base_commit is None:
        return None
    try:
        head = request.commit or git.resolve("HEAD")
        change = git.changed_lines(request.base_commit, head)
    except RepositoryError:
        return None

    def read(file: str) -> bytes | None:
        try:
            return git.read_file(head, file)
        except RepositoryError:
            return None

    return without_inert(change, read)
