"""What of the attempts this machine can try and can hold."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from attempt import Attempt

from gate.edges.account_lock import let_go
from gate.edges.isolation import choose_isolation
from gate.edges.processes import LocalProcesses
from gate.records.runs import WriteGuard
from gate.records.settings import IsolationMode, IsolationSettings

SYSTEM_PYTHON = Path("/usr/bin/python3")
SIBLING_IMAGE = "REPRO_GATE_BASE_IMAGE"


def gate_python() -> Path | None:
    """An interpreter that every account may start and that can run the gate; None without one."""
    own = Path(os.path.realpath(sys.executable))
    if all(folder.stat().st_mode & 0o001 for folder in (own, *own.parents)):
        return Path(sys.executable)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return SYSTEM_PYTHON if os.path.realpath(SYSTEM_PYTHON).endswith(version) else None


def why_not(mode: IsolationMode) -> str:
    """Why a mode cannot be tried on this machine; empty when it can."""
    if mode is IsolationMode.SIBLING and not os.environ.get(SIBLING_IMAGE):
        return f"{SIBLING_IMAGE} names no image; `make container` builds and names it"
    if mode is not IsolationMode.NONE and os.geteuid() != 0:
        return "needs root"
    if mode is not IsolationMode.NONE and gate_python() is None:
        return "needs an interpreter of this version that every account may start"
    return ""


@cache
def has_view() -> bool:
    """Whether runs under `uid` get a mount namespace on this machine."""
    python = gate_python()
    if os.geteuid() != 0 or python is None:
        return False
    found = choose_isolation(IsolationSettings(), LocalProcesses(), str(python), ())
    if found.credentials is not None:
        let_go(found.credentials.uid)
    return found.guard is WriteGuard.MOUNT_NAMESPACE


def promised(mode: IsolationMode, attempt: Attempt) -> bool:
    """Whether this machine can hold an attempt in a mode."""
    if mode is IsolationMode.UID and attempt.by_view and not has_view():
        return False
    return mode in attempt.modes
