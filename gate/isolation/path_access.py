"""Which folder denies an account access to a file; asked only after access was denied."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from gate.isolation.modes import Credentials
from gate.isolation.process_request import ProcessRequest

# a path through links that go in a circle has no end
MAX_STEPS = 1000


def blocking_folder(request: ProcessRequest, account: Credentials) -> Path | None:
    """The first folder that the account may not enter on the way to the program or its workdir."""
    name = request.argv[0]
    program = request.workdir / name if "/" in name else shutil.which(name, path=_path_of(request))
    places = (request.workdir, *((Path(program),) if program else ()))
    return next(filter(None, (first_blocked_folder(place, account) for place in places)), None)


def _path_of(request: ProcessRequest) -> str:
    return request.env.get("PATH", os.defpath)


def first_blocked_folder(path: Path, account: Credentials) -> Path | None:
    """The first folder on the way that the account may not enter; links are followed one by one.

    None when all are open to it, or the way ends before. The folder that a path itself names is
    looked at too.
    """
    place, steps = Path("/"), list(path.absolute().parts[1:])
    for _ in range(MAX_STEPS):
        if not _may_enter(place.stat(), account):
            return place
        if not steps:
            return None
        there = place / steps.pop(0)
        try:
            mode = os.lstat(there).st_mode
            target = there.readlink() if stat.S_ISLNK(mode) else None
        except OSError:
            return None
        if target is not None:
            steps[:0] = [part for part in target.parts if part != "/"]
            place = Path("/") if target.is_absolute() else place
        elif stat.S_ISDIR(mode):
            place = Path(os.path.normpath(there))
        else:
            return None
    return None


def _may_enter(facts: os.stat_result, account: Credentials) -> bool:
    # the first class that fits decides, also to the owner's disadvantage (path_resolution(7))
    if facts.st_uid == account.uid:
        return bool(facts.st_mode & stat.S_IXUSR)
    if facts.st_gid in {account.gid, *account.groups}:
        return bool(facts.st_mode & stat.S_IXGRP)
    return bool(facts.st_mode & stat.S_IXOTH)
