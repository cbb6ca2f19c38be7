"""Exports a commit, or the work tree with uncommitted changes where the caller admits them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gate.checkup.commit import refused, uncommitted
from gate.ports import Files, Git
from gate.records.request import GateRequest
from gate.records.runs import Commit, Snapshot


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
