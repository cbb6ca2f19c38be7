"""Runs of the base commit, taken from an earlier call on this machine where they would be the same.

The folder is the gate's own: no training shares its account, or nothing is taken from it or put
there. What lies in it is checked by its SHA-256 and parsed by the reading process all the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.comparison.compare import equal_results
from gate.errors import GateError
from gate.evidence.run_evidence import RunEvidence
from gate.isolation.modes import Isolation
from gate.pipelines.runs import Session
from gate.settings.load import settings_digest, training_digest
from gate.system.version import VERSION
from gate.text.digests import sha256_hex
from gate.text.documents import write_document
from gate.text.json_text import canonical_json
from gate.training.environment import PACKAGES
from gate.training.runs import PlannedRun
from gate.verdict.request import GateRequest
from gate.verdict.verdict import CachedRuns

MAX_KEPT: Final = 100
MAX_BYTES: Final = 64 * 1024 * 1024
HEX_DIGITS: Final = 64
# hidden ones are on their way, or were left by a call that was killed
KEPT_NAME: Final = re.compile(r"\.?[0-9]{14}-[0-9a-f]{22,64}(\.[^/]*)?\Z")
Runs = tuple[RunEvidence, ...]


def may_cache(request: GateRequest, isolation: Isolation, *, like_head: bool) -> bool:
    """Whether runs of the base commit may be taken from an earlier call, and kept for a later one.

    Only a base commit that the event of a pull request or a merge queue names is of a trusted ref.
    `like_head`: it has head's packages and data; else nothing known before its runs says which.
    """
    apart = bool(isolation.own_accounts) or isolation.in_container
    return request.pull_request and apart and like_head


def base_runs(session: Session, planned: tuple[PlannedRun, ...], head: RunEvidence) -> Runs:
    """The planned runs of the base commit; `head` ran in the environment that they would have.

    What goes wrong with the cache is told, and the runs are made.
    """
    request, folder = session.request, session.request.settings.runs.cache
    like_head = not session.own_environments and not session.brings_data
    allowed = may_cache(request, session.isolation, like_head=like_head)
    if folder is None or not allowed:
        return session.together(planned)
    cache = _Cache(session=session, folder=Path(folder), key=_key(session, head))
    kept = cache.taken(planned, head)
    if kept:
        day = kept[0].run.reused[:10]
        session.adapters.progress.step(f"base commit: runs of {day} reused")
        return kept
    runs = session.together(planned)
    # another change's result, of a stranger's code, ran in this call: what it could reach ends here
    if not request.from_fork:
        cache.keep(runs, head)
    return runs


def _key(session: Session, head: RunEvidence) -> str:
    """The digest of all that the runs depend on; packages are compared one by one."""
    request = session.request
    parts = {name: text for name, text in head.environment.parts.items() if name != PACKAGES}
    content = {
        "commit": request.base_commit,
        "workdir": request.repository_path(request.settings.train.workdir),
        "settings": settings_digest(request.settings),
        "training": training_digest(request.settings),
        "data": sorted((one.name, one.place, one.sha256) for one in session.data),
        "environment": parts,
        "isolation": session.isolation.described,
        "version": VERSION,
    }
    return sha256_hex(canonical_json(content))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cache:
    """One place of the folder: a file whose first line is the SHA-256 of all that follows."""

    session: Session
    folder: Path
    key: str

    def taken(self, planned: tuple[PlannedRun, ...], head: RunEvidence) -> Runs:
        """The runs that were kept under the key, where they are whole and fit; else none."""
        try:
            name = next((name for name in self._names() if name.endswith(self._suffix)), None)
            found = self._read(self.folder / name) if name else None
        except GateError as fault:
            self._tell(fault.message)
            return ()
        if found is None or found.key != self.key or not _fit(found.runs, planned, head):
            return ()
        return found.runs

    def keep(self, runs: Runs, head: RunEvidence) -> None:
        """Keep runs that are equal, and whose environment is the one that they are found by."""
        if not equal_results(*runs) or any(run.environment.moved(head.environment) for run in runs):
            return
        now = self.session.adapters.clock.now()
        dated = tuple(
            run.model_copy(update={"run": run.run.model_copy(update={"reused": now.isoformat()})})
            for run in runs
        )
        data = write_document(CachedRuns(key=self.key, runs=dated))
        if len(data) > MAX_BYTES:
            self._tell(f"the runs take more than {MAX_BYTES:,} bytes")
            return
        files = self.session.adapters.files
        try:
            names = self._names()
            # names begin with their day, so the oldest come first
            for name in names[: max(0, len(names) - MAX_KEPT + 1)]:
                files.remove_tree(self.folder / name)
            line = f"{sha256_hex(data)}\n".encode()
            files.write_bytes(self.folder / f"{now:%Y%m%d%H%M%S}{self._suffix}", line + data)
        except GateError as fault:
            self._tell(fault.message)

    @property
    def _suffix(self) -> str:
        return f"-{self.key}.json"

    def _names(self) -> tuple[str, ...]:
        files = self.session.adapters.files
        files.private_folder(self.folder, is_ours=_all_kept)
        return files.list_names(self.folder, max_names=2 * MAX_KEPT)

    def _read(self, path: Path) -> CachedRuns | None:
        most = MAX_BYTES + HEX_DIGITS + 1
        written = self.session.adapters.files.read_bytes(path, max_bytes=most)
        line, _, data = written.partition(b"\n")
        if line != sha256_hex(data).encode():
            self._tell("a file in it is not what was written")
            return None
        return self.session.cached_runs(data)

    def _tell(self, why: str) -> None:
        self.session.adapters.progress.step(f"runs.cache is not used: {why}")


def _all_kept(names: frozenset[str]) -> bool:
    """Whether a folder holds kept runs alone: the oldest names in it are removed."""
    return all(KEPT_NAME.match(name) for name in names)


def _fit(runs: Runs, planned: tuple[PlannedRun, ...], head: RunEvidence) -> bool:
    """Whether these are the planned runs, made where head ran."""
    wanted = [(run.label, run.mode, run.commit, run.environment) for run in planned]
    records = [run.run for run in runs]
    given = [(one.label, one.mode, one.commit, one.environment) for one in records]
    same = not any(run.environment.moved(head.environment) for run in runs)
    return wanted == given and same and all(one.reused for one in records)
