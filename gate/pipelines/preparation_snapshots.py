"""Exports a commit, or the work tree with uncommitted changes where the caller admits them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from gate.errors import RepositoryError, RunError
from gate.pipelines.doctor.commit_checks import refused, uncommitted
from gate.system.files.port import Files
from gate.system.git.port import Git
from gate.training.runs import Commit, Snapshot
from gate.verdict.request import GateRequest


class ExportEdges(Protocol):
    """The effects that an export needs."""

    @property
    def files(self) -> Files: ...  # noqa: D102 - as in `Adapters`

    @property
    def git(self) -> Git: ...  # noqa: D102


def export_snapshot(
    which: Commit, request: GateRequest, adapters: ExportEdges, work: Path
) -> Snapshot:
    """Head or base as a tree below `work`; raises `RepositoryError` for what cannot be exported."""
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
    return Snapshot(
        commit=commit, tree=target, workdir=workdir, digest=digest, changed_files=changed
    )


def _changed_files(request: GateRequest, git: Git) -> tuple[str, ...]:
    changed = git.changed_files()
    if changed and not request.allow_dirty:
        raise refused(uncommitted(changed, git.untracked()))
    return changed


def export_all(
    request: GateRequest, adapters: ExportEdges, work: Path, *, runs_base: bool
) -> tuple[dict[Commit, Snapshot], RepositoryError | None]:
    """All that may be trained, and why the base cannot be: git never looks at the clone later."""
    found = {Commit.HEAD: export_snapshot(Commit.HEAD, request, adapters, work)}
    no_base = None
    if request.base_commit and runs_base:
        try:
            found[Commit.BASE] = export_snapshot(Commit.BASE, request, adapters, work)
        except RepositoryError as fault:
            # most often the base is never run: its fault counts when it is
            no_base = fault
    check_snapshots(found, adapters.files)
    return found, no_base


def check_snapshots(snapshots: Mapping[Commit, Snapshot], files: Files) -> None:
    """Is the code on disk still what was exported? Every run is a copy of it."""
    for which, snapshot in snapshots.items():
        if files.tree_digest(snapshot.tree) != snapshot.digest:
            raise RunError(
                f"the exported {which.value} commit changed on disk while the gate ran",
                hint="The training can write where it must not: let the gate isolate it "
                "(isolation.minimum: uid), and look at what else writes to --out.",
            )
