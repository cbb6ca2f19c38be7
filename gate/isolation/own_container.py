"""Which container the gate itself runs in, and what its folders are called on the engine's machine.

A folder is mounted into another container under the name that the engine knows, and a gate inside
a container knows only its own. Its mounts tell the one from the other.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gate.errors import RunError
from gate.isolation.engine import Engine
from gate.text.untrusted_text import safe_line

MOUNT_TABLE = Path("/proc/self/mountinfo")
# The engine keeps hostname, hosts and resolv.conf of a container in a folder named by its id, and
# mounts them there. The host's own table names the folders of every running container too, as
# mount points of their /dev/shm: those are not this process's (proc(5), mountinfo: fields 4 and 5).
_IN_MOUNT_TABLE = re.compile(
    r"^\S+ \S+ \S+ \S*/containers/([0-9a-f]{64})/\S+ /etc/(?:hostname|hosts|resolv\.conf) ",
    re.MULTILINE,
)
_HOST_NAME = re.compile(r"[0-9a-f]{12}\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """A folder as the gate sees it, and the same folder as the engine sees it."""

    here: PurePosixPath
    there: PurePosixPath


def own_ids(mount_table: str, host_name: str) -> tuple[str, ...]:
    """The names under which an engine may know the container of this process; best first."""
    found = dict.fromkeys(_IN_MOUNT_TABLE.findall(mount_table))
    if _HOST_NAME.match(host_name):
        found[host_name] = None
    return tuple(found)


def this_process() -> tuple[str, ...]:
    """`own_ids` of this process; empty outside any container, and where there is no /proc."""
    try:
        table = MOUNT_TABLE.read_text("utf-8", "replace")
    except OSError:
        table = ""
    return own_ids(table, socket.gethostname())


def own_mounts(engine: Engine, ids: Sequence[str]) -> tuple[Mount, ...] | None:
    """The mounts of the gate's container, or None when the engine has none: paths are then equal.

    Raises `RunError` when the engine cannot be asked.
    """
    for container in ids:
        mounts = engine.mounts_of(container)
        if mounts is not None:
            return tuple(
                Mount(here=PurePosixPath(here), there=PurePosixPath(there))
                for here, there in mounts
            )
    return None


def seen_by_engine(path: Path, mounts: Sequence[Mount] | None) -> str:
    """A path of the gate as the engine names it.

    Raises `RunError` for a path inside the gate's own container only, which no other can mount.
    """
    real = path.resolve()
    if mounts is None:
        return str(real)
    holding = [mount for mount in mounts if real.is_relative_to(mount.here)]
    if not holding:
        raise RunError(
            f"{safe_line(str(real))} is inside the gate's own container, so no other container "
            f"can mount it",
            hint="Put the output folder into the workspace, which the runner mounts.",
        )
    # mounts may lie inside each other: the innermost one holds the path
    nearest = max(holding, key=lambda mount: len(mount.here.parts))
    return str(nearest.there / real.relative_to(nearest.here))
