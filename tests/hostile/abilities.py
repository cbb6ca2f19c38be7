"""What of the attempts this machine can try and can hold."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from attempt import Attempt

from gate.isolation.account_choice import choose_isolation
from gate.isolation.accounts import release_uid
from gate.isolation.modes import (
    Credentials,
    Isolation,
    IsolationMode,
    IsolationSettings,
    Separation,
    WriteGuard,
)
from gate.isolation.processes import LocalProcesses
from gate.isolation.sandboxed_start import first_blocked_folder

SYSTEM_PYTHON = Path("/usr/bin/python3")
# an account that owns nothing and is in no group
STRANGER = Credentials(uid=60900, gid=60900)
CONTAINER_IMAGE = "REPRO_GATE_BASE_IMAGE"


def gate_python() -> Path | None:
    """An interpreter that every account may start and that can run the gate; None without one."""
    # the link's own way counts as well as what it leads to
    if first_blocked_folder(Path(sys.executable), STRANGER) is None:
        return Path(sys.executable)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return SYSTEM_PYTHON if os.path.realpath(SYSTEM_PYTHON).endswith(version) else None


def why_not(mode: IsolationMode) -> str:
    """Why a mode cannot be tried on this machine; empty when it can."""
    if mode is IsolationMode.CONTAINER and not os.environ.get(CONTAINER_IMAGE):
        return f"{CONTAINER_IMAGE} names no image; `make container` builds and names it"
    if mode is not IsolationMode.NONE and os.geteuid() != 0:
        return "needs root"
    closed = first_blocked_folder(Path(__file__), STRANGER)
    if mode is not IsolationMode.NONE and closed is not None:
        return f"needs a clone that every account may read: {closed} is closed to others"
    if mode is not IsolationMode.NONE and gate_python() is None:
        return "needs an interpreter of this version that every account may start"
    return ""


@cache
def isolation_here() -> Isolation | None:
    """What runs under `uid` get on this machine."""
    python = gate_python()
    if os.geteuid() != 0 or python is None:
        return None
    found = choose_isolation(IsolationSettings(), LocalProcesses(), str(python), ())
    if found.credentials is not None:
        release_uid(found.credentials.uid)
    return found


def promised(mode: IsolationMode, attempt: Attempt) -> bool:
    """Whether this machine can hold an attempt in a mode."""
    found = isolation_here() if attempt.by_view or attempt.cold else None
    if mode is IsolationMode.UID and attempt.by_view:
        return found is not None and found.guard is WriteGuard.MOUNT_NAMESPACE
    if mode is IsolationMode.UID and attempt.cold:
        return found is not None and Separation.CACHE in found.own
    return mode in attempt.modes
