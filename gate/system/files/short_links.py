"""A short name for a folder deep below: names of Unix sockets hold 107 bytes (unix(7)).

The name is a link in a folder of everybody's, so three things keep it ours: only an account that
owns it, or root, may remove it there (the sticky bit); a link of another account is never used; and
the kernel lets another account follow it only where the owner of that folder made it
(fs.protected_symlinks in proc_sys_fs(5)).
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from gate.system.files import writing

PLACE = Path("/tmp")  # noqa: S108 - guarded as above
DIGITS = 8


def name_for(target: Path) -> Path:
    """The same for the same folder: a path that moved would be another input of the training."""
    digest = hashlib.sha256(os.fsencode(target)).hexdigest()[:DIGITS]
    return PLACE / f"rg-{digest}"


def make(target: Path, *, for_others: bool) -> Path | None:
    """Have the link, made anew where it leads elsewhere; None where it cannot be had safely."""
    link = name_for(target)
    if len(os.fsencode(link)) >= len(os.fsencode(target)):
        return None
    try:
        place = PLACE.lstat()
        if not stat.S_ISDIR(place.st_mode) or not place.st_mode & stat.S_ISVTX:
            return None
        if place.st_uid not in ({os.geteuid()} if for_others else {0, os.geteuid()}):
            return None
        if not _leads(link, target):
            _drop(link)
            writing.symbolic_link(link, str(target))
    except OSError:
        # the long path serves as well, but for sockets
        return None
    return link


def drop(target: Path) -> None:
    """Remove the link to a folder, if it is ours."""
    try:
        _drop(name_for(target))
    except OSError:
        return


def _leads(link: Path, target: Path) -> bool:
    if not link.is_symlink() or link.lstat().st_uid != os.geteuid():
        return False
    return link.readlink() == target


def _drop(link: Path) -> None:
    """Never what another account has made, and never anything but a link."""
    if link.is_symlink() and link.lstat().st_uid == os.geteuid():
        writing.remove(link)
