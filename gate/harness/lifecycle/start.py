"""The harness's beginning: arm the hooks and return; everything else waits for an import.

The finder stays installed and only ever shadows `exec_module` of the loader that the ordinary
finders chose: `find_spec` probes, which libraries use to ask whether torch exists, do not disarm
it. Imported by every Python process of a training, so nothing heavy is imported here.

Imported by every Python process of a training, so nothing heavy is imported here.
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
    from collections.abc import Callable


class ImportHook:
    """A meta path finder that runs each `callbacks[name]` after the import of `name`, in order.

    A callback must not raise: it would look like a failed import of the user's library.
    """

    def __init__(self, *callbacks: Mapping[str, AfterImport]) -> None:
        names = dict.fromkeys(name for callback in reversed(callbacks) for name in callback)
        self._waiting = {
            name: [callback[name] for callback in callbacks if name in callback] for name in names
        }
        self._asking: set[tuple[str, int]] = set()

    def install(self) -> None:
        """Go first on the meta path; call back at once for what has been imported already."""
        for name in list(self._waiting):
            if name in sys.modules:
                self._fire(name)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders answer, and note when their loader runs the module."""
        question = (name, get_ident())
        # other finders may come back to this one with the same question; another thread may ask it
        # for itself at the same time, and has to be answered
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
            # the object's own attribute: from here on the loader's class answers again
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
        from ..varied_surroundings import vary_surroundings

        return vary_surroundings(name)
    except Exception as error:
        # a variation that was not made is reported as not tried
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
    """A module has been imported that programs of this kind draw by; others pay nothing."""
    try:
        from ..sources.reads import hook_reads

        hook_reads()
    except Exception as error:
        _complain(f"entropy that the script reads is not recorded: {error}")


def _hook_threads() -> None:
    """`threading` has been imported."""
    try:
        from ..sources.concurrency import hook_threads

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


def _hook_configuration(name: str, tree: str) -> None:
    """A module has been imported that scripts take their configuration from."""
    try:
        from ..sources.configuration import hook

        hook(sys.modules[name], tree)
    except Exception as error:
        _complain(f"the configuration of the script is not recorded: {error}")


def _hook_event_files() -> None:
    """A writer of TensorBoard files has been imported."""
    try:
        from .ending import hook_writers

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
        from .ending import tell_end, tell_without_torch

        tell_without_torch(settings.out)
        tell_end(settings.out, current_rank(), trained=False)
    except Exception as error:
        _complain(f"that torch was not imported is not recorded: {error}")
