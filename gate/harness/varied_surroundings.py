"""Varies the one thing that the gate names, before the user's first line.

Only what goes through Python is varied. Programs in other languages and the C code of libraries get
the machine's own answers.

A variation may have to wait for the import of a module. Then it is called right after that import,
before what the harness does there in every run. Every process of such a run imports this module
before torch is there, so it imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
import time

from .sources.reads import put
from .sources.recorded import READING, SOURCES, VARIED, SourceRecord
from .user_code import CodeLine, calling_frame, named_as, users_frame
from .variation_readings import read_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Callbacks = dict[str, Callable[[], None]]
    from collections.abc import Callable, Iterator


class CannotVaryError(Exception):
    """The variation is not possible on this machine or in this training; the text says why."""


def tell_varied(name: str, what: str) -> None:
    """Report that the variation is active: from here on the training finds `what`."""
    SOURCES.report(SourceRecord(VARIED, name, CodeLine(), [], after=what))


def tell_not_varied(name: str, why: str) -> None:
    """Report why the variation is not active in this process."""
    SOURCES.report(SourceRecord(VARIED, name, CodeLine(), [], before=why))


# set in the first process of a training, so that processes that it starts add no load of their own
LOADED = "REPRO_GATE_LOADED"
MOST_PROCESSES = 64
BUSY_ROUNDS = 200_000
HIGHEST_DESCRIPTOR = 1024
# delays of successive threads: of four, the first begins last
DELAYS_SECONDS = (0.06, 0.0, 0.04, 0.02)
# a pool may start thousands of threads
DELAYED_THREADS = 200


def vary_cpu_load() -> Callbacks:
    """Keep each CPU that this process may use busy until its training has ended."""
    if LOADED not in os.environ:
        os.environ[LOADED] = "1"
        count = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
        reading, _writing = os.pipe()
        for _ in range(count):
            _start_busy(reading)
        # The writing end stays open in this process and its forks. The kernel closes it with the
        # last of them, however that ends, and the busy processes see it.
        os.close(reading)
        tell_varied("cpu-load", f"{count} busy processes")
    return {}


def _start_busy(reading: int) -> None:
    """Start a process that is not a child of the script's, which may wait for all its children."""
    try:
        middle = os.fork()
    except OSError as error:
        raise CannotVaryError(f"no process could be started: {error.strerror}") from error
    if middle == 0:
        try:
            if os.fork() == 0:
                _be_busy(reading)
        finally:
            os._exit(0)
    os.waitpid(middle, 0)


def _be_busy(reading: int) -> None:
    import select

    # Descriptor 0 now signals the training's end. Close all others, the training's output among
    # them.
    os.dup2(reading, 0)
    os.closerange(1, HIGHEST_DESCRIPTOR)
    while not select.select([0], [], [], 0)[0]:
        for _ in range(BUSY_ROUNDS):
            pass


def vary_thread_delays() -> Callbacks:
    """Let threads begin late, the first of four last."""
    return {"threading": _delay_threads}


def _delay_threads() -> None:
    kind: Any = sys.modules["threading"].Thread
    plain, sleep = kind.start, time.sleep
    started = 0

    def start(self: Any) -> Any:
        nonlocal started
        run, delay = self.run, DELAYS_SECONDS[started % len(DELAYS_SECONDS)]
        started += 1

        def run_late() -> None:
            # restored first, for code that looks at the thread's `run`
            del self.run
            sleep(delay)
            run()

        if started <= DELAYED_THREADS:
            tell_varied("thread-delays", f"up to {max(DELAYS_SECONDS)} s")
            self.run = run_late
        return plain(self)

    named_as(start, plain)
    kind.start = start


NOBODY: frozenset[str] = frozenset()
OF_DATA = frozenset(("torch",))
# differs from usual content of memory and from the gate's own fill (NaN, or the largest integer)
FILL = 85
OF_TORCH = ("empty", "empty_like", "empty_strided")
OF_TENSORS = ("new_empty", "new_empty_strided")
OF_NUMPY = ("empty", "empty_like")
# position of `num_workers` among the arguments of torch's DataLoader after `self`
WORKERS_PLACE = 5
WORKERS_OF_NONE = 2
HELD_PART = 0.5

_held: list[Any] = []


def vary_uninitialized_memory() -> Callbacks:
    """Fill what `empty` returns; the gate varies C allocations by an environment variable."""
    tell_varied("uninitialized-memory", f"filled with {FILL}")
    return {"torch": _fill_torch, "numpy": _fill_numpy}


def _fill_torch() -> None:
    torch: Any = sys.modules["torch"]
    for owner, names in ((torch, OF_TORCH), (torch.Tensor, OF_TENSORS)):
        for name in names:
            _fill(owner, name, lambda tensor: tensor.detach().fill_(FILL))


def _fill_numpy() -> None:
    for name in OF_NUMPY:
        _fill(sys.modules["numpy"], name, lambda array: array.fill(FILL))


def _fill(owner: Any, name: str, fill: Callable[[Any], object]) -> None:
    plain = getattr(owner, name)
    shown = f"{owner.__name__}.{name}"

    def filled(*args: Any, **named: Any) -> Any:
        made = plain(*args, **named)
        try:
            fill(made)
            _tell(shown, NOBODY)
        except Exception:
            # a type that cannot hold this number
            return made
        return made

    filled.__name__, filled.__doc__ = name, plain.__doc__
    # the name for pickling: torch's own function names a hidden class
    of_class = isinstance(owner, type)
    filled.__module__ = owner.__module__ if of_class else owner.__name__
    filled.__qualname__ = f"{owner.__qualname__}.{name}" if of_class else name
    setattr(owner, name, filled)


def vary_worker_count() -> Callbacks:
    """Give each torch DataLoader one worker more, or two where it has none."""
    return {"torch": _add_workers}


def _add_workers() -> None:
    from torch.utils.data import DataLoader

    plain: Any = DataLoader.__init__

    def make(self: Any, *args: Any, **named: Any) -> None:
        by_place = len(args) > WORKERS_PLACE
        before = args[WORKERS_PLACE] if by_place else named.get("num_workers", 0)
        after = before + 1 if before else WORKERS_OF_NONE
        if by_place:
            args = (*args[:WORKERS_PLACE], after, *args[WORKERS_PLACE + 1 :])
        else:
            named["num_workers"] = after
        _tell("torch.utils.data.DataLoader", OF_DATA)
        tell_varied("worker-count", f"{after} instead of {before}")
        plain(self, *args, **named)

    put(DataLoader, "__init__", make)


def vary_free_gpu_memory() -> Callbacks:
    """Allocate half of the free GPU memory as soon as CUDA is initialised."""
    return {"torch": _hold_when_started}


def _hold_when_started() -> None:
    torch: Any = sys.modules["torch"]
    plain = torch.cuda._lazy_init  # noqa: SLF001 - torch calls it before it first uses a GPU
    pid = os.getpid()

    def _lazy_init() -> None:
        plain()
        if not _held and os.getpid() == pid:
            # a placeholder first: the following calls come back to this function
            _held.append("")
            free, _ = torch.cuda.mem_get_info()
            size = int(free * HELD_PART)
            _held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            tell_varied("free-gpu-memory", f"{size} bytes less")

    torch.cuda._lazy_init = _lazy_init  # noqa: SLF001 - as above


def vary_gpu_index() -> Callbacks:
    """Report the order of the GPUs: the gate has set it in the environment, and CUDA reads it."""
    tell_varied("gpu-index", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return {}


def _tell(call: str, through: frozenset[str]) -> None:
    user = users_frame(calling_frame(2), through)
    if user is not None and not SOURCES.full(READING):
        SOURCES.found_at(READING, call, user)


# changes year, month, weekday, hour, minute and second, and is no multiple of anything round
SHIFT_SECONDS = 400 * 86_400 + 7 * 3_600 + 1_009
NANOSECONDS = 10**9
HOST = "another-host"
CLOSED, OPEN = 0o077, 0o022
# locales with another order of letters or another decimal sign than C
LOCALES = (
    *("de_DE.UTF-8", "fr_FR.UTF-8", "es_ES.UTF-8", "it_IT.UTF-8", "pt_BR.UTF-8", "ru_RU.UTF-8"),
    *("tr_TR.UTF-8", "sv_SE.UTF-8", "ja_JP.UTF-8", "zh_CN.UTF-8", "en_GB.UTF-8", "en_US.UTF-8"),
)


def vary_clock() -> Callbacks:
    """Shift the time of day; durations are unchanged."""
    plain_time, plain_ns = time.time, time.time_ns

    def moved(plain: Callable[..., Any], place: int) -> Callable[..., Any]:
        """Return a function that uses the shifted time if it gets no time at this position."""

        def function(*args: Any) -> Any:
            given = len(args) > place and args[place] is not None
            if given:
                return plain(*args)
            now = plain_time() + SHIFT_SECONDS
            return plain(*args[:place], now if place == 0 else time.localtime(now))

        return function

    put(time, "strftime", moved(time.strftime, 1))
    # these C functions ask the kernel: replacing `time.time` does not affect them
    for name in ("localtime", "gmtime", "ctime"):
        put(time, name, moved(getattr(time, name), 0))
    asctime = time.asctime
    put(time, "asctime", lambda *args: asctime(*(args or (time.localtime(),))))
    put(time, "time", lambda: plain_time() + SHIFT_SECONDS)
    put(time, "time_ns", lambda: plain_ns() + SHIFT_SECONDS * NANOSECONDS)
    tell_varied("clock", f"{SHIFT_SECONDS} seconds later")
    return {"datetime": _move_dates}


def _move_dates() -> None:
    """Shift `datetime.now` and `utcnow`, which ask the kernel; `date.today` asks `time.time`."""
    from datetime import datetime, timedelta

    from .c_classes import replace_method

    for name in ("now", "utcnow"):
        replace_method(datetime, name, classmethod(_later(vars(datetime)[name], timedelta)))


def _later(plain: Any, timedelta: Any) -> Any:
    def moment(kind: Any, *args: Any, **named: Any) -> Any:
        return plain.__get__(None, kind)(*args, **named) + timedelta(seconds=SHIFT_SECONDS)

    moment.__doc__ = plain.__doc__
    return moment


def vary_host_name() -> Callbacks:
    """Give the machine another name."""
    plain = os.uname

    def uname() -> Any:
        names = plain()
        return os.uname_result((names.sysname, HOST, names.release, names.version, names.machine))

    put(os, "uname", uname)
    tell_varied("host-name", HOST)
    return {"socket": _name_in_socket}


def _name_in_socket() -> None:
    put(sys.modules["socket"], "gethostname", lambda: HOST)


def vary_umask() -> Callbacks:
    """Let new files be closed to others; open to others if they are closed already."""
    before = os.umask(CLOSED)
    if before == CLOSED:
        os.umask(OPEN)
    tell_varied("umask", f"{OPEN if before == CLOSED else CLOSED:04o}")
    return {}


class _Backwards:
    """The entries of a directory in reverse order, with the interface of `os.scandir`'s result."""

    def __init__(self, entries: Any) -> None:
        with entries:
            self._entries = iter(list(entries)[::-1])

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Iterator[Any]:
        return iter(self)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: the directory is closed already."""


def vary_directory_order() -> Callbacks:
    """List every directory in reverse order."""
    listdir, scandir = os.listdir, os.scandir
    put(os, "listdir", lambda *args, **named: listdir(*args, **named)[::-1])
    put(os, "scandir", lambda *args, **named: _Backwards(scandir(*args, **named)))
    tell_varied("directory-order", "backwards")
    return {}


def vary_locale() -> Callbacks:
    """Name an installed locale other than C in the environment."""
    import locale

    before = locale.setlocale(locale.LC_ALL)
    for name in LOCALES:
        try:
            locale.setlocale(locale.LC_ALL, name)
        except locale.Error:
            continue
        # only named: a script that does not ask for a locale keeps the one that Python starts with
        locale.setlocale(locale.LC_ALL, before)
        os.environ["LANG"] = os.environ["LC_ALL"] = name
        tell_varied("locale", name)
        return {}
    raise CannotVaryError(
        "no second locale is installed where the training runs, such as en_US.UTF-8"
    )


def vary_time_zone() -> Callbacks:
    """Report the time zone that the gate has put into the environment for Python's start."""
    if not time.timezone:
        raise CannotVaryError("the training's command sets TZ itself")
    tell_varied("time-zone", f"UTC{-time.timezone / 3600:+g} h")
    return {}


def vary_hash_seed() -> Callbacks:
    """Report the hash seed that the gate has put into the environment for Python's start."""
    seed = os.environ.get("PYTHONHASHSEED", "random")
    if seed in {os.environ.get("REPRO_GATE_SEED"), "random"}:
        raise CannotVaryError("the training's command sets PYTHONHASHSEED itself")
    tell_varied("hash-seed", seed)
    return {}


def vary_paths(name: str) -> Callable[[], Callbacks]:
    """Return a function that reports a changed path: the gate has moved the folders."""

    def vary() -> Callbacks:
        tell_varied(name, "another path")
        return {}

    return vary


VARIATIONS = {
    "working-directory": vary_paths("working-directory"),
    "output-path": vary_paths("output-path"),
    "clock": vary_clock,
    "time-zone": vary_time_zone,
    "locale": vary_locale,
    "host-name": vary_host_name,
    "umask": vary_umask,
    "directory-order": vary_directory_order,
    "hash-seed": vary_hash_seed,
    "worker-count": vary_worker_count,
    "cpu-load": vary_cpu_load,
    "thread-delays": vary_thread_delays,
    "uninitialized-memory": vary_uninitialized_memory,
    "free-gpu-memory": vary_free_gpu_memory,
    "gpu-index": vary_gpu_index,
}


def vary_surroundings(name: str) -> tuple[Callbacks, ...]:
    """Apply a variation; return the callbacks that wait for an import, in order.

    Raises `KeyError` for an unknown name.
    """
    try:
        varied = VARIATIONS[name]()
    except CannotVaryError as why:
        tell_not_varied(name, str(why))
        return ()
    # the hooks that report reads come last, so that they wrap the varied functions
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
