"""Varies the one thing that the gate names, before the user's first line; other runs import none.

What a variation has to wait for is called right after the import of a module, before what the
harness does there in every run.
"""

from __future__ import annotations

from . import load, memory, surroundings
from .readings import read_by
from .told import CannotVaryError, tell_not_varied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Callbacks = dict[str, Callable[[], None]]

VARIATIONS = {
    "working-directory": surroundings.vary_paths("working-directory"),
    "output-path": surroundings.vary_paths("output-path"),
    "clock": surroundings.vary_clock,
    "time-zone": surroundings.vary_time_zone,
    "locale": surroundings.vary_locale,
    "host-name": surroundings.vary_host_name,
    "umask": surroundings.vary_umask,
    "directory-order": surroundings.vary_directory_order,
    "hash-seed": surroundings.vary_hash_seed,
    "worker-count": memory.vary_worker_count,
    "cpu-load": load.vary_cpu_load,
    "thread-delays": load.vary_thread_delays,
    "uninitialized-memory": memory.vary_uninitialized_memory,
    "free-gpu-memory": memory.vary_free_gpu_memory,
    "gpu-index": memory.vary_gpu_index,
}


def shake(name: str) -> tuple[Callbacks, ...]:
    """Vary it; what waits for the import of a module, in order.

    Raises `KeyError` for a name that is none.
    """
    try:
        varied = VARIATIONS[name]()
    except CannotVaryError as why:
        tell_not_varied(name, str(why))
        return ()
    # what reads comes last: it sees what is varied
    return _guarded(name, varied), _guarded(name, read_by(name))


def _guarded(name: str, callbacks: Callbacks) -> Callbacks:
    def guarded(module: str) -> Callable[[], None]:
        def call() -> None:
            try:
                callbacks[module]()
            except Exception as error:
                tell_not_varied(name, f"{module}: {error}")

        return call

    return {module: guarded(module) for module in callbacks}
