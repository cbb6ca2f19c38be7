"""Starts the harness: arms the hooks and returns; all other work waits for an import.

The finder stays installed. It only ever shadows `exec_module` of the loader that the ordinary
finders chose. So a `find_spec` probe, by which libraries ask whether torch exists, does not disarm
it.

Every Python process of a training imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import atexit
import sys
from _thread import get_ident

from ..settings import FIXED_COLLECTIVES, ONE_WORKER, HarnessSettings, current_rank, is_worker
from .children import Children

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _frozen_importlib import ModuleSpec
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    AfterImport = Callable[[], None]


class ImportHook:
    """A meta path finder that runs each `callbacks[name]` after the import of `name`, in order.

    A callback must not raise: that would look like a failed import of the user's library.
    """

    def __init__(self, *callbacks: Mapping[str, AfterImport]) -> None:
        names = dict.fromkeys(name for callback in reversed(callbacks) for name in callback)
        self._waiting = {
            name: [callback[name] for callback in callbacks if name in callback] for name in names
        }
        self._asking: set[tuple[str, int]] = set()

    def install(self) -> None:
        """Go first on the meta path; call back at once for modules that are already imported."""
        for name in list(self._waiting):
            if name in sys.modules:
                self._fire(name)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders answer, and call back when their loader has run the module."""
        question = (name, get_ident())
        # Another finder may ask this one again with the same question: then answer nothing. Another
        # thread may ask it at the same time for itself: that one gets an answer.
        if name not in self._waiting or question in self._asking:
            return None
        self._asking.add(question)
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._asking.discard(question)
        if spec is not None and spec.loader is not None:
            self._shadow(name, spec.loader)
        return spec

    def _ask_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def _shadow(self, name: str, loader: object) -> None:
        """Replace `exec_module` on this one loader object until it is called."""
        run_module: Callable[[ModuleType], None] = loader.exec_module  # type: ignore[attr-defined]

        def run_then_call_back(module: ModuleType) -> None:
            # deletes the attribute of the object, so that the loader's class answers again
            del loader.exec_module  # type: ignore[attr-defined]
            run_module(module)
            self._fire(name)

        loader.exec_module = run_then_call_back  # type: ignore[attr-defined]

    def _fire(self, name: str) -> None:
        for callback in self._waiting.pop(name, ()):
            callback()


MESSAGES = "torch.distributed.distributed_c10d"


_started = False


def start(environ: Mapping[str, str]) -> None:
    """Read the settings and arm the hooks; a second call does nothing.

    Generators are seeded when their module is first imported, before user code can draw from them.
    A process that never draws pays nothing. Raises `ValueError` for missing settings.
    """
    global _started
    if _started:
        return
    _started = True
    settings = HarnessSettings(environ)
    _watch_files(settings, environ)
    # Exit handlers run in reverse order: registered first, this one runs after all of the user's.
    atexit.register(_finish, settings)
    children = Children(environ)
    # `os` is imported before the harness: there is no import to wait for
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
        "ssl": _hook_reads,
        "multiprocessing.util": lambda: _hook_starters(children.hook_multiprocessing),
        "multiprocessing.popen_fork": lambda: _hook_starters(children.hook_forks),
        "random": lambda: _seed("random", "seed_python", settings),
        "numpy.random": lambda: _begin_numpy(settings),
        "torch": lambda: _begin(settings),
        "tensorboard.summary.writer.event_file_writer": _hook_event_files,
        "argparse": lambda: _hook_configuration("argparse", settings.tree),
        "omegaconf.omegaconf": lambda: _hook_configuration("omegaconf.omegaconf", settings.tree),
        "hydra.core.hydra_config": lambda: _hook_configuration(
            "hydra.core.hydra_config", settings.tree
        ),
        "transformers.training_args": lambda: _hook_configuration(
            "transformers.training_args", settings.tree
        ),
    }
    # variations and trials first: they change what the harness's own callbacks then wrap
    ImportHook(*_shaken(settings.shake), _trial(settings), callbacks).install()


def _watch_files(settings: HarnessSettings, environ: Mapping[str, str]) -> None:
    """Report files and variables that the script reads; hooked before it can open anything."""
    try:
        from ..sources.outside import install
        from ..sources.variables import hook_variables

        install(settings.tree, environ)
        hook_variables()
    except Exception as error:
        _complain(f"files that the script reads are not recorded: {error}")


def _shaken(name: str) -> tuple[dict[str, Callable[[], None]], ...]:
    """Apply the variation of this run, if any; return the callbacks that wait for an import."""
    if not name:
        return ()
    try:
        from ..varied_surroundings import vary_surroundings

        return vary_surroundings(name)
    except Exception as error:
        # a variation that fails is reported as not tried, since nothing says that it is active
        _complain(f"{name} was not varied: {error}")
        return ()


def _seed(name: str, knob: str, settings: HarnessSettings) -> None:
    """Seed the module's global generator, then hook the functions that seed it again."""
    try:
        module = sys.modules[name]
        # without the knob `seed_workers`, workers are left as they are
        if settings.seeds(knob) and (settings.seeds("seed_workers") or not is_worker()):
            module.seed(settings.seed)
        from ..determinism.seed_hooks import hook_module

        hook_module(module)
    except Exception as error:
        _complain(f"{name} was not seeded: {error}")


def _begin(settings: HarnessSettings) -> None:
    """Load the rest of the harness; called when torch has been imported."""
    try:
        from .process import begin

        begin(settings)
    except Exception as error:
        _complain(f"the harness did not start with torch: {error}")


def _hook_starters(hook: Callable[[], None]) -> None:
    """Hook a module that starts processes, just after its import."""
    try:
        hook()
    except Exception as error:
        _complain(f"processes that the script starts are not recorded: {error}")


def _begin_numpy(settings: HarnessSettings) -> None:
    _hook_reads()
    _seed("numpy.random", "seed_numpy", settings)


def _trial(settings: HarnessSettings) -> dict[str, Callable[[], None]]:
    """Return the callbacks of a run that tries one setting; empty for any other run."""
    if settings.fill is not None:
        return {"numpy": lambda: _try_fill(settings.fill or 0)}
    if settings.trial == FIXED_COLLECTIVES:
        return {
            MESSAGES: lambda: _try_collectives("fix_collectives"),
            "torch.nn.parallel.distributed": lambda: _try_collectives("fix_replicas"),
        }
    if settings.trial != ONE_WORKER:
        return {}
    pools = ("concurrent.futures.thread", "concurrent.futures.process", "multiprocessing.pool")
    return {name: lambda name=name: _try_one_worker(name) for name in pools}  # type: ignore[misc]


def _try_fill(byte: int) -> None:
    try:
        from ..trials import fill_numpy

        fill_numpy(byte)
    except Exception as error:
        _complain(f"NumPy's memory is not filled: {error}")


def _try_one_worker(module: str) -> None:
    try:
        from ..trials import one_worker

        one_worker(module)
    except Exception as error:
        _complain(f"pools keep their workers: {error}")


def _try_collectives(name: str) -> None:
    try:
        from .. import fixed_collectives

        getattr(fixed_collectives, name)()
    except Exception as error:
        _complain(f"collectives keep their order: {error}")


def _hook_reads() -> None:
    """Hook reads of entropy, clocks and folders; programs without such modules pay nothing."""
    try:
        from ..sources.reads import hook_reads

        hook_reads()
    except Exception as error:
        _complain(f"entropy that the script reads is not recorded: {error}")


def _hook_threads() -> None:
    """Hook `threading`, just after its import."""
    try:
        from ..sources.concurrency import hook_threads

        hook_threads(sys.modules["threading"])
    except Exception as error:
        _complain(f"threads that the script starts are not recorded: {error}")


def _hook_completions(name: str) -> None:
    """Hook a module that returns results in the order in which they finish."""
    try:
        from ..sources.concurrency import hook_completions

        hook_completions(sys.modules[name])
    except Exception as error:
        _complain(f"the order in which results are done is not recorded: {error}")


def _hook_configuration(name: str, tree: str) -> None:
    """Hook a module from which scripts take their configuration."""
    try:
        from ..sources.configuration import hook

        hook(sys.modules[name], tree)
    except Exception as error:
        _complain(f"the configuration of the script is not recorded: {error}")


def _hook_event_files() -> None:
    """Hook TensorBoard's writer of event files."""
    try:
        from .ending import hook_writers

        hook_writers()
    except Exception as error:
        _complain(f"TensorBoard files may be incomplete: {error}")


def _complain(text: str) -> None:
    """Write one line to stderr, unless the script has closed it."""
    try:  # noqa: SIM105 - contextlib is no module that every process has loaded already
        sys.stderr.write(f"repro-gate: {text}\n")
    except Exception:
        pass


def _finish(settings: HarnessSettings) -> None:
    """End the session at exit; without torch there is none, and the process records just that."""
    process = sys.modules.get(f"{__package__}.process")
    if process is not None:
        process.finish_at_exit()
        return
    try:
        from .ending import tell_end, tell_without_torch

        tell_without_torch(settings.out)
        tell_end(settings.out, current_rank(), trained=False)
    except Exception as error:
        _complain(f"that torch was not imported is not recorded: {error}")
