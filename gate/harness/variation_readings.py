"""Reports the user's lines that read what a run varies: functions, variables, names in code."""

from __future__ import annotations

import os
import sys

from .sources.reads import CLOCKS, hook_dates, hook_reads, replace_function
from .sources.recorded import IN_CODE, READING, SOURCES, SourceRecord
from .user_code import calling_frame, users_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NOBODY: frozenset[str] = frozenset()
OF_PATHS = frozenset(("os", "posixpath", "genericpath", "pathlib", "tempfile", "getpass", "shutil"))
OF_VARIABLES = OF_PATHS | {"collections", "_collections_abc"}
DATES = ("fromtimestamp", "astimezone", "timestamp", "now")
OF_LOCALE = (
    *("setlocale", "getlocale", "localeconv", "strxfrm", "strcoll", "str", "atof", "currency"),
    *("format_string", "getpreferredencoding", "getencoding", "getdefaultlocale", "nl_langinfo"),
)
LOCALE_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_NUMERIC", "LC_TIME", "LANGUAGE")
ZONED = ("localtime", "mktime", "strftime", "ctime", "asctime")
# by variation: module, its functions, and the modules that call them on the user's behalf
FUNCTIONS: dict[str, tuple[tuple[str, tuple[str, ...], frozenset[str]], ...]] = {
    "working-directory": (("os", ("getcwd", "getcwdb"), OF_PATHS),),
    "output-path": (("tempfile", ("gettempdir", "gettempdirb"), OF_PATHS),),
    "clock": (("time", ("localtime", "gmtime", "ctime", "strftime"), NOBODY),),
    "time-zone": (("time", ZONED, NOBODY),),
    "locale": (("locale", OF_LOCALE, frozenset(("locale",))), ("time", ("strftime",), NOBODY)),
    "host-name": (
        ("os", ("uname",), frozenset(("platform",))),
        ("socket", ("gethostname", "getfqdn"), frozenset(("socket",))),
        ("platform", ("node", "uname", "platform"), frozenset(("platform",))),
    ),
    "umask": (("os", ("umask", "stat", "lstat", "access"), frozenset(("pathlib",))),),
    "cpu-load": (("os", ("getloadavg",), NOBODY), ("time", CLOCKS, NOBODY)),
    "gpu-index": (("torch.cuda", ("current_device", "get_device_properties"), NOBODY),),
    "free-gpu-memory": (("torch.cuda", ("mem_get_info", "get_device_properties"), NOBODY),),
}
VARIABLES: dict[str, tuple[str, ...]] = {
    "output-path": ("HOME", "TMPDIR", "XDG_CACHE_HOME"),
    "working-directory": ("PWD",),
    "time-zone": ("TZ",),
    "locale": LOCALE_VARIABLES,
    "host-name": ("HOSTNAME",),
    "hash-seed": ("PYTHONHASHSEED",),
    "gpu-index": ("CUDA_VISIBLE_DEVICES",),
}
HASH_SEED = "hash-seed"
NAMES_IN_CODE = {
    HASH_SEED: frozenset(("hash", "set", "frozenset")),
    "working-directory": frozenset(("__file__",)),
}
# Every run hooks these once torch is there. Here they must be hooked earlier, to see what comes
# before.
SEEN_BY_OTHERS = frozenset(("clock", "cpu-load", "directory-order"))


def read_by(name: str) -> dict[str, Callable[[], None]]:
    """Hook what reads this variation; return the hooks that wait for the import of a module."""
    if name in VARIABLES:
        _hook_variables(frozenset(VARIABLES[name]))
    if name in SEEN_BY_OTHERS:
        hook_reads()
    later: dict[str, Callable[[], None]] = {}
    for module, functions, through in FUNCTIONS.get(name, ()):
        later[module] = _hook(module, functions, through)
    if name in DATED:
        later["datetime"] = DATED[name]
    # these were imported before the harness, so no import will come to wait for
    for module in ("os", "time"):
        at_once = later.pop(module, None)
        if at_once is not None:
            at_once()
    return later


def _hook(module: str, functions: tuple[str, ...], through: frozenset[str]) -> Callable[[], None]:
    def hook() -> None:
        for function in functions:
            replace_function(sys.modules[module], function, READING, through)

    return hook


def _hook_dates() -> None:
    from datetime import datetime

    from .c_classes import replace_method

    for name in DATES:
        plain = vars(datetime)[name]
        of_class = name in {"now", "fromtimestamp"}
        dated = _dated(plain, name)
        replace_method(datetime, name, classmethod(dated) if of_class else dated)


def _dated(plain: Any, name: str) -> Any:
    def dated(self: Any, *args: Any, **named: Any) -> Any:
        user = users_frame(calling_frame(1), NOBODY)
        if user is not None and not SOURCES.full(READING):
            SOURCES.found_at(READING, f"datetime.{name}", user)
        bound = plain.__get__(None, self) if isinstance(self, type) else plain.__get__(self)
        return bound(*args, **named)

    dated.__name__ = dated.__qualname__ = name
    dated.__doc__ = plain.__doc__
    return dated


def _hook_variables(names: frozenset[str]) -> None:
    kind: Any = type(os.environ)
    # `os.getenv` and `os.environ.get` end here too
    plain = kind.__getitem__

    def look_up(self: Any, key: Any) -> Any:
        if key in names:
            user = users_frame(calling_frame(1), OF_VARIABLES)
            if user is not None and not SOURCES.full(READING):
                SOURCES.found_at(READING, f'os.environ["{key}"]', user)
        return plain(self, key)

    kind.__getitem__ = look_up


DATED = {"clock": hook_dates, "time-zone": _hook_dates}


def tell_code(name: str) -> None:
    """Report lines whose code uses a name that no hook can see; whether they ran is unknown."""
    from .sources.splits import uses_in_code

    names = NAMES_IN_CODE.get(name)
    if names is None:
        return
    for used, place, function in uses_in_code(names, sets=name == HASH_SEED):
        SOURCES.report(SourceRecord(READING, used, place, [f"{place} {function}"], before=IN_CODE))
