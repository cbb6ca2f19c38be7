"""The guest's beginning: arm the hooks and return; everything else waits for an import.

Imported by every Python process of a training, so nothing heavy is imported here.
"""

from __future__ import annotations

import atexit
import sys

from .import_hook import ImportHook
from .settings import GuestSettings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_started = False


def start(environ: Mapping[str, str]) -> None:
    """Read the settings, arm the hooks; a second call does nothing.

    Streams are seeded when their module is first imported, before user code can draw from it: a
    process that never draws pays nothing. Raises `ValueError` for missing settings.
    """
    global _started
    if _started:
        return
    _started = True
    settings = GuestSettings(environ)
    # Registered before any user code, so it runs after all of the user's own exit handlers.
    atexit.register(_finish)
    ImportHook(
        {
            "random": lambda: _seed("random", "seed_python", settings),
            "numpy.random": lambda: _seed("numpy.random", "seed_numpy", settings),
            "torch": lambda: _begin(settings),
        }
    ).install()


def _seed(name: str, knob: str, settings: GuestSettings) -> None:
    """Seed the module's global stream, then listen to whoever seeds it again."""
    try:
        module = sys.modules[name]
        if settings.seeds(knob) and (settings.seeds("seed_workers") or not is_worker()):
            module.seed(settings.seed)
        from .seed_watch import watch_module

        watch_module(module)
    except Exception as error:
        sys.stderr.write(f"repro-gate: {name} was not seeded: {error}\n")


def is_worker() -> bool:
    """Whether multiprocessing has started this interpreter anew for a worker.

    Its start-up line is all that is known before the worker's code runs; a worker that is forked
    has its parent's streams.
    """
    return "--multiprocessing-fork" in sys.orig_argv


def _begin(settings: GuestSettings) -> None:
    """Torch has been imported: the guest proper may be loaded now."""
    try:
        from .session import begin

        begin(settings)
    except Exception as error:
        sys.stderr.write(f"repro-gate: the guest did not start with torch: {error}\n")


def _finish() -> None:
    """At exit; a process that never imported torch has no session to end."""
    session = sys.modules.get(f"{__package__}.session")
    if session is not None:
        session.finish_at_exit()
