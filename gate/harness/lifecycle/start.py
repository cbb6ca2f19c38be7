"""The harness's beginning: arm the hooks and return; everything else waits for an import.

Imported by every Python process of a training, so nothing heavy is imported here.
"""

from __future__ import annotations

import atexit
import sys

from ..settings import ONE_WORKER, HarnessSettings
from ..this_process import current_rank, is_worker
from .children import Children
from .import_hook import ImportHook

MESSAGES = "torch.distributed.distributed_c10d"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_started = False


def start(environ: Mapping[str, str]) -> None:
    """Read the settings, arm the hooks; a second call does nothing.

    Generators are seeded when their module is first imported, before user code can draw from it: a
    process that never draws pays nothing. Raises `ValueError` for missing settings.
    """
    global _started
    if _started:
        return
    _started = True
    settings = HarnessSettings(environ)
    _watch_files(settings, environ)
    # Registered before any user code, so it runs after all of the user's own exit handlers.
    atexit.register(_finish, settings)
    children = Children(environ)
    children.hook_os()
    callbacks = {
        "subprocess": lambda: _hook_starters(children.hook_subprocess),
        "threading": _hook_threads,
        "asyncio.tasks": lambda: _hook_completions("asyncio.tasks"),
        "concurrent.futures": lambda: _hook_completions("concurrent.futures"),
        "multiprocessing.pool": lambda: _hook_completions("multiprocessing.pool"),
        "multiprocessing.queues": lambda: _hook_completions("multiprocessing.queues"),
        "queue": lambda: _hook_completions("queue"),
        MESSAGES: lambda: _hook_completions(MESSAGES),
        "uuid": _hook_reads,
        "secrets": _hook_reads,
        "multiprocessing.util": lambda: _hook_starters(children.hook_multiprocessing),
        "random": lambda: _seed("random", "seed_python", settings),
        "numpy.random": lambda: _begin_numpy(settings),
        "torch": lambda: _begin(settings),
        "tensorboard.summary.writer.event_file_writer": _hook_event_files,
    }
    # what is varied or tried comes before what the harness does there in every run
    ImportHook(*_shaken(settings.shake), _trial(settings), callbacks).install()


def _watch_files(settings: HarnessSettings, environ: Mapping[str, str]) -> None:
    """Before the script can open anything."""
    try:
        from ..sources.outside import install
        from ..sources.variables import hook_variables

        install(settings.tree, environ)
        hook_variables()
    except Exception as error:
        _complain(f"files that the script reads are not recorded: {error}")


def _shaken(name: str) -> tuple[dict[str, Callable[[], None]], ...]:
    """Vary one thing in this process, if any; what waits for an import."""
    if not name:
        return ()
    try:
        from ..install import shake

        return shake(name)
    except Exception as error:
        # a variation that was not made is told as not tried
        _complain(f"{name} was not varied: {error}")
        return ()


def _seed(name: str, knob: str, settings: HarnessSettings) -> None:
    """Seed the module's global generator, then hook what seeds it again."""
    try:
        module = sys.modules[name]
        if settings.seeds(knob) and (settings.seeds("seed_workers") or not is_worker()):
            module.seed(settings.seed)
        from ..determinism.seed_hooks import hook_module

        hook_module(module)
    except Exception as error:
        _complain(f"{name} was not seeded: {error}")


def _begin(settings: HarnessSettings) -> None:
    """Torch has been imported: the harness proper may be loaded now."""
    try:
        from .process import begin

        begin(settings)
    except Exception as error:
        _complain(f"the harness did not start with torch: {error}")


def _hook_starters(hook: Callable[[], None]) -> None:
    """A module that starts processes has been imported."""
    try:
        hook()
    except Exception as error:
        _complain(f"processes that the script starts are not recorded: {error}")


def _begin_numpy(settings: HarnessSettings) -> None:
    _hook_reads()
    _seed("numpy.random", "seed_numpy", settings)


def _trial(settings: HarnessSettings) -> dict[str, Callable[[], None]]:
    """What follows the import of a module in a run that tries one setting; else nothing."""
    if settings.fill is not None:
        return {"numpy": lambda: _try_fill(settings.fill or 0)}
    if settings.trial != ONE_WORKER:
        return {}
    pools = ("concurrent.futures.thread", "concurrent.futures.process", "multiprocessing.pool")
    return {name: lambda name=name: _try_one_worker(name) for name in pools}  # type: ignore[misc]


def _try_fill(byte: int) -> None:
    try:
        from ..memory import fill_numpy

        fill_numpy(byte)
    except Exception as error:
        _complain(f"NumPy's memory is not filled: {error}")


def _try_one_worker(module: str) -> None:
    try:
        from ..trials import one_worker

        one_worker(module)
    except Exception as error:
        _complain(f"pools keep their workers: {error}")


def _hook_reads() -> None:
    """A module has been imported that programs of this kind draw by; others pay nothing."""
    try:
        from ..sources.reads import hook_reads

        hook_reads()
    except Exception as error:
        _complain(f"entropy that the script reads is not recorded: {error}")


def _hook_threads() -> None:
    """`threading` has been imported."""
    try:
        from ..sources.threads import hook_threads

        hook_threads(sys.modules["threading"])
    except Exception as error:
        _complain(f"threads that the script starts are not recorded: {error}")


def _hook_completions(name: str) -> None:
    """A module has been imported that hands on results in the order in which they are done."""
    try:
        from ..sources.concurrency import hook_completions

        hook_completions(sys.modules[name])
    except Exception as error:
        _complain(f"the order in which results are done is not recorded: {error}")


def _hook_event_files() -> None:
    """A writer of TensorBoard files has been imported."""
    try:
        from .event_files import hook_writers

        hook_writers()
    except Exception as error:
        _complain(f"TensorBoard files may be incomplete: {error}")


def _complain(text: str) -> None:
    """One line on stderr, which the script may have closed."""
    try:  # noqa: SIM105 - contextlib is no module that every process has loaded already
        sys.stderr.write(f"repro-gate: {text}\n")
    except Exception:
        pass


def _finish(settings: HarnessSettings) -> None:
    """At exit; a process that never imported torch has no session to end, and says just that."""
    process = sys.modules.get(f"{__package__}.process")
    if process is not None:
        process.finish_at_exit()
        return
    try:
        from .ending import tell_end
        from .untrained import tell_without_torch

        tell_without_torch(settings.out)
        tell_end(settings.out, current_rank(), trained=False)
    except Exception as error:
        _complain(f"that torch was not imported is not recorded: {error}")
