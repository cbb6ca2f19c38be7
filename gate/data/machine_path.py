"""Data that lies on the machine already: looked at, and taken as it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from gate.errors import DataError, StorageError
from gate.system.files.reading import refuse_foreign_links
from gate.text.untrusted_text import safe_line

MISSING_HINT = (
    "Correct `path` in repro-gate.yml, or put the data there. In a container a folder of the "
    "runner is there only if the job mounts it: `container:` with `options: --volume "
    "{path}:{path}:ro`, and org/repro-gate/container as its step; the action org/repro-gate sees "
    "the workspace alone."
)


def machine_path(name: str, path: Path, closed: Iterable[Path] = ()) -> Path:
    """The file or folder that an entry names, without a link in its path.

    It must be none of `closed`, inside of none, and contain none.

    Raises `DataError` where nothing is there, where it is a link or neither file nor folder, and
    where this account may not read it. What lies in a folder is not looked at.
    """
    shown = safe_line(str(path))
    try:
        facts = os.lstat(path)
        if stat.S_ISLNK(facts.st_mode):
            raise _is_link(name, path)
        refuse_foreign_links(path)
        if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
            raise DataError(
                f"data: {name}: {shown} is neither a file nor a folder",
                hint="Declare a regular file, or a folder of them.",
            )
        _try_to_read(path, facts)
        return _open_place(name, path.resolve(strict=True), closed)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"data: {name}: there is no {shown}", hint=MISSING_HINT.format(path=shown)
        ) from error
    except StorageError as error:
        raise DataError(f"data: {name}: {error.message}", hint="Declare the real path.") from error
    except (OSError, RuntimeError) as error:
        raise _unreadable(name, shown, error) from error


def _open_place(name: str, real: Path, closed: Iterable[Path]) -> Path:
    """The path, unless it is closed to trainings.

    Shown to one, a path below a closed folder is as open as its own permissions.
    """
    for place in closed:
        secret = Path(os.path.realpath(place))
        if real.is_relative_to(secret) or (secret.is_relative_to(real) and secret.exists()):
            inside = "is inside" if real.is_relative_to(secret) else "contains"
            where = "is" if real == secret else inside
            raise DataError(
                f"data: {name}: {safe_line(str(real))} {where} {safe_line(str(secret))}, which is "
                "closed to the training",
                hint="It may hold tokens, logins or the event. Move the data to a folder of its "
                "own, and correct `path` in repro-gate.yml.",
            )
    return real


def _try_to_read(path: Path, facts: os.stat_result) -> None:
    if stat.S_ISDIR(facts.st_mode):
        with os.scandir(path):
            return
    os.close(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))


def _is_link(name: str, path: Path) -> DataError:
    real = os.path.realpath(path)
    there = Path(real).exists()
    return DataError(
        f"data: {name}: {safe_line(str(path))} is a link",
        hint=f"Write the real path: `path: {safe_line(real)}`."
        if there
        else f"It leads to {safe_line(real)}, where nothing is, or in a circle: correct `path`.",
    )


def _unreadable(name: str, shown: str, error: OSError | RuntimeError) -> DataError:
    if isinstance(error, PermissionError):
        return DataError(
            f"data: {name}: the gate's account may not read {shown}",
            hint=f"Let it: for a group, `chgrp -R GROUP {shown}` and `chmod -R g+rX {shown}`; the "
            "folders above must let it pass (x).",
        )
    reason = error.strerror if isinstance(error, OSError) else "a loop of links"
    return DataError(
        f"data: {name}: {shown} cannot be read: {reason}",
        hint="Check the path, and the disk that it is on.",
    )
