"""Varies the one thing that the gate names, before the user's first line; other runs import none.

What a variation has to wait for is called right after the import of a module, before what the
harness does there in every run.
"""

from __future__ import annotations

from . import load, shaking_memory, variations
from .told import CannotVaryError, tell_not_varied
from .variation_readings import read_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Callbacks = dict[str, Callable[[], None]]

VARIATIONS = {
    "working-directory": variations.vary_paths("working-directory"),
    "output-path": variations.vary_paths("output-path"),
    "clock": variations.vary_clock,
    "time-zone": variations.vary_time_zone,
    "locale": variations.vary_locale,
    "host-name": variations.vary_host_name,
    "umask": variations.vary_umask,
    "directory-order": variations.vary_directory_order,
    "hash-seed": variations.vary_hash_seed,
    "worker-count": shaking_memory.vary_worker_count,
    "cpu-load": load.vary_cpu_load,
    "thread-delays": load.vary_thread_delays,
    "uninitialized-memory": shaking_memory.vary_uninitialized_memory,
    "free-gpu-memory": shaking_memory.vary_free_gpu_memory,
    "gpu-index": shaking_memory.vary_gpu_index,
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
