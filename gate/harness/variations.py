"""What a script asks Python for, with another answer: the time, the host, a directory, the umask.

Only what goes through Python is varied. Programs in other languages and the C code of libraries
get the machine's own answers.
"""

from __future__ import annotations

import os
import sys
import time

from .sources.reads import put
from .told import CannotVaryError, tell_varied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Callbacks = dict[str, Callable[[], None]]

# another year, month, weekday, hour, minute and second, and no multiple of anything round
SHIFT_SECONDS = 400 * 86_400 + 7 * 3_600 + 1_009
NANOSECONDS = 10**9
HOST = "another-host"
CLOSED, OPEN = 0o077, 0o022
# with another order of letters or another decimal sign than C
LOCALES = (
    *("de_DE.UTF-8", "fr_FR.UTF-8", "es_ES.UTF-8", "it_IT.UTF-8", "pt_BR.UTF-8", "ru_RU.UTF-8"),
    *("tr_TR.UTF-8", "sv_SE.UTF-8", "ja_JP.UTF-8", "zh_CN.UTF-8", "en_GB.UTF-8", "en_US.UTF-8"),
)


def vary_clock() -> Callbacks:
    """Move the time of day; how long something takes stays as it is."""
    plain_time, plain_ns = time.time, time.time_ns

    def moved(plain: Callable[..., Any], place: int) -> Callable[..., Any]:
        """A function that takes the present moment where it is given no time at this place."""

        def function(*args: Any) -> Any:
            given = len(args) > place and args[place] is not None
            if given:
                return plain(*args)
            now = plain_time() + SHIFT_SECONDS
            return plain(*args[:place], now if place == 0 else time.localtime(now))

        return function

    put(time, "strftime", moved(time.strftime, 1))
    for name in ("localtime", "gmtime", "ctime"):
        put(time, name, moved(getattr(time, name), 0))
    asctime = time.asctime
    put(time, "asctime", lambda *args: asctime(*(args or (time.localtime(),))))
    put(time, "time", lambda: plain_time() + SHIFT_SECONDS)
    put(time, "time_ns", lambda: plain_ns() + SHIFT_SECONDS * NANOSECONDS)
    tell_varied("clock", f"{SHIFT_SECONDS} seconds later")
    return {"datetime": _move_dates}


def _move_dates() -> None:
    """The date of today asks `time.time`, but the present moment is the kernel's own."""
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
    """Let the machine have another name."""
    plain = os.uname

    def uname() -> Any:
        told = plain()
        return os.uname_result((told.sysname, HOST, told.release, told.version, told.machine))

    put(os, "uname", uname)
    tell_varied("host-name", HOST)
    return {"socket": _name_in_socket}


def _name_in_socket() -> None:
    put(sys.modules["socket"], "gethostname", lambda: HOST)


def vary_umask() -> Callbacks:
    """Close new files to others; where they are closed already, open them."""
    before = os.umask(CLOSED)
    if before == CLOSED:
        os.umask(OPEN)
    tell_varied("umask", f"{OPEN if before == CLOSED else CLOSED:04o}")
    return {}


class _Backwards:
    """The entries of a directory in the other order; as `os.scandir` gives them."""

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
        """Nothing is left open."""


def vary_directory_order() -> Callbacks:
    """List every directory backwards."""
    listdir, scandir = os.listdir, os.scandir
    put(os, "listdir", lambda *args, **named: listdir(*args, **named)[::-1])
    put(os, "scandir", lambda *args, **named: _Backwards(scandir(*args, **named)))
    tell_varied("directory-order", "backwards")
    return {}


def vary_locale() -> Callbacks:
    """Name a locale in the environment that is installed here and is not the C one."""
    import locale

    before = locale.setlocale(locale.LC_ALL)
    for name in LOCALES:
        try:
            locale.setlocale(locale.LC_ALL, name)
        except locale.Error:
            continue
        # only named: a script that asks for no locale has the one that Python starts with
        locale.setlocale(locale.LC_ALL, before)
        os.environ["LANG"] = os.environ["LC_ALL"] = name
        tell_varied("locale", name)
        return {}
    raise CannotVaryError(
        "no second locale is installed where the training runs, such as en_US.UTF-8"
    )


def vary_time_zone() -> Callbacks:
    """The gate has named another in the environment, which Python read when it started."""
    if not time.timezone:
        raise CannotVaryError("the training's command sets TZ itself")
    tell_varied("time-zone", f"UTC{-time.timezone / 3600:+g} h")
    return {}


def vary_hash_seed() -> Callbacks:
    """The gate has set another in the environment, which Python read when it started."""
    seed = os.environ.get("PYTHONHASHSEED", "random")
    if seed in {os.environ.get("REPRO_GATE_SEED"), "random"}:
        raise CannotVaryError("the training's command sets PYTHONHASHSEED itself")
    tell_varied("hash-seed", seed)
    return {}


def vary_paths(name: str) -> Callable[[], Callbacks]:
    """The gate has put the folders elsewhere."""

    def vary() -> Callbacks:
        tell_varied(name, "another path")
        return {}

    return vary
