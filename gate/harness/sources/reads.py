"""Hooks functions that answer differently in each run: entropy, clocks, process ids, directories.

A hooked function is replaced by an object that passes for it. The object has its name, signature
and pickle. As the attribute of a class it stays unbound, like built-in functions and unlike
Python's (`timer = time.perf_counter` in a class is common). Each line is looked at once. After that
a call costs two look-ups. After `MAX_LOOKS` looks a function looks no more.

Processes without torch import this module too, so it imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
import time

from ..user_code import called_in, named_as, users_frame
from .recorded import CLOCK, ENTROPY, ORDER, PROCESS, SOURCES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

MAX_LOOKS = 5_000
# for each line, which may list one folder after another
MAX_LISTINGS = 8
# of a larger directory only the first names, as listed, enter the digests
MAX_NAMES = 10_000
CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
# modules that call these functions for the user: the user's line is above them on the stack
OF_ENTROPY = frozenset(("uuid", "secrets", "random"))
OF_DIRECTORIES = frozenset(("os", "glob", "pathlib"))
NOBODY: frozenset[str] = frozenset()
# C functions name their private module; users know them by the public one
PUBLIC_MODULES = {"posix": "os", "nt": "os", "_socket": "socket", "_locale": "locale"}
# functions of `secrets` that are methods of a hidden `SystemRandom`, by the method's name
OF_SECRETS = {"getrandbits": "randbits", "choice": "choice"}
_get_frame = sys._getframe  # noqa: SLF001 - inspect offers only slower copies
# kept unhooked, so that the harness's own listing is not reported
_plain_scandir = os.scandir


class CallerCheck:
    """A function of the standard library that looks at its caller before it runs."""

    __name__: str
    __qualname__: str

    def __init__(self, plain: Any, kind: str, through: frozenset[str]) -> None:
        self._plain = plain
        self._kind = kind
        self._through = through
        self._looks = 0
        self._listed: dict[tuple[str, int], int] = {}
        # Known lines by `id` of their code. The code is kept too, since Python would otherwise
        # reuse its `id`. A dictionary keyed by code would be slow: hashing code is.
        self._lines: dict[int, tuple[CodeType, set[int]]] = {}
        self.__wrapped__ = plain

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the plain function; report the caller's line when it is new."""
        try:
            frame = _get_frame(1)
        except ValueError:
            # the function is a thread's target, so there is no caller
            return self._plain(*args, **named)
        # a call on a known line ends here: one dictionary and one set look-up
        known = self._lines.get(id(frame.f_code))
        if known is None or (known[1] and frame.f_lasti not in known[1]):
            self._look(frame, args, named)
        return self._plain(*args, **named)

    def __reduce__(self) -> str:
        """Pickle by name, as functions do."""
        return str(self.__qualname__)

    def __repr__(self) -> str:
        """Show the plain function."""
        return repr(self._plain)

    def _look(self, frame: FrameType, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._looks += 1
        if self._looks > MAX_LOOKS:
            return
        try:
            user = users_frame(frame, self._through)
            if user is frame and self._kind == ORDER and self._listings(frame) < MAX_LISTINGS:
                # not remembered as known: the same line may list another folder next time
                pass
            elif user is frame:
                code = frame.f_code
                self._lines.setdefault(id(code), (code, set()))[1].add(frame.f_lasti)
            elif not self._through:
                # A library's code never becomes the user's, so an empty set stands for all of its
                # lines. With `through`, the user may be further up, and differs from call to call.
                self._lines[id(frame.f_code)] = (frame.f_code, set())
            if user is not None and not SOURCES.full(self._kind):
                self._tell(user, frame, args, named)
        except Exception:
            # an error of the harness must never reach the script
            return

    def _listings(self, frame: FrameType) -> int:
        """Count a listing by this line; return the count."""
        place = (frame.f_code.co_filename, frame.f_lasti)
        count = self._listed[place] = self._listed.get(place, 0) + 1
        return count

    def _tell(
        self, user: FrameType, frame: FrameType, args: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        call = f"{self.__module__}.{self.__name__}" if user is frame else called_in(frame, user)
        if self._kind != ORDER:
            SOURCES.found_at(self._kind, _shown(call, user), user)
            return
        path = args[0] if args else named.get("path", ".")
        if not _sorts(user) and not isinstance(path, int):
            before, after = _order_of(path)
            SOURCES.found_at(ORDER, _shown(call, user), user, before=before, after=after)


def _shown(call: str, user: FrameType) -> str:
    """Return the name by which the user knows the function, for methods of a hidden object too."""
    import linecache

    module, _, name = call.rpartition(".")
    module = PUBLIC_MODULES.get(module, module)
    if module != "random":
        return f"{module}.{name}"
    own = "SystemRandom" in {*user.f_code.co_names, *user.f_code.co_freevars}
    function = OF_SECRETS.get(name)
    line = linecache.getline(user.f_code.co_filename, user.f_lineno)
    if function and (f"secrets.{function}" in line or (not own and function in user.f_globals)):
        return f"secrets.{function}"
    return f"random.SystemRandom.{name}" if own else "os.urandom"


def _sorts(user: FrameType) -> bool:
    """Whether this line sorts what it lists, or a later line of the same function does."""
    import linecache

    file, number = user.f_code.co_filename, user.f_lineno
    line = linecache.getline(file, number)
    if "sorted(" in line:
        return True
    name = line.partition("=")[0].strip()
    if not name.isidentifier():
        return False
    last = max((at for _, _, at in user.f_code.co_lines() if at), default=number)
    later = (linecache.getline(file, at) for at in range(number + 1, last + 1))
    return any(
        f"{name}.sort(" in source_line or f"sorted({name}" in source_line for source_line in later
    )


def _order_of(path: Any) -> tuple[str, str]:
    """Return two digests of a directory's names: sorted, and in the order of the listing."""
    import hashlib

    names = []
    with _plain_scandir(path) as entries:
        for entry in entries:
            names.append(os.fsencode(entry.name))
            if len(names) >= MAX_NAMES:
                break
    both = (b"\0".join(sorted(names)), b"\0".join(names))
    first, second = (hashlib.sha256(joined).hexdigest()[:32] for joined in both)
    return first, second


def hook_reads() -> None:
    """Hook functions of `os`, `time`, `uuid` and `ssl`; each once, however often this is called."""
    for name in ("urandom", "getrandom"):
        replace_function(os, name, ENTROPY, OF_ENTROPY)
    replace_function(os, "getpid", PROCESS, NOBODY)
    for name in ("listdir", "scandir"):
        replace_function(os, name, ORDER, OF_DIRECTORIES)
    for name in CLOCKS:
        replace_function(time, name, CLOCK, NOBODY)
    random, uuid, ssl = (sys.modules.get(name) for name in ("random", "uuid", "ssl"))
    if random is not None and not isinstance(vars(random)["_urandom"], CallerCheck):
        # `random.SystemRandom` reads entropy through this name
        vars(random)["_urandom"] = os.urandom
    if uuid is not None:
        # `uuid1` combines clock and machine without a call of `os.urandom`
        replace_function(uuid, "uuid1", ENTROPY, NOBODY)
    if ssl is not None:
        replace_function(ssl, "RAND_bytes", ENTROPY, NOBODY)


def hook_dates() -> None:
    """Hook `datetime.now` and `utcnow`; torch has imported what this needs."""
    from datetime import datetime

    from ..c_classes import replace_method

    for name in ("now", "utcnow"):
        replace_method(datetime, name, classmethod(_moment(vars(datetime)[name], name)))


def _moment(plain: Any, name: str) -> Any:
    def moment(kind: Any, *args: Any, **named: Any) -> Any:
        try:
            user = users_frame(_get_frame(1), NOBODY)
            if user is not None and not SOURCES.full(CLOCK):
                SOURCES.found_at(CLOCK, f"datetime.{name}", user)
        except Exception:
            pass
        return plain.__get__(None, kind)(*args, **named)

    moment.__name__ = moment.__qualname__ = name
    moment.__doc__ = plain.__doc__
    return moment


def replace_function(owner: Any, name: str, kind: str, through: frozenset[str]) -> None:
    """Replace a function by a `CallerCheck`, unless it is missing or replaced already."""
    plain: Callable[..., Any] | None = getattr(owner, name, None)
    if plain is None or isinstance(plain, CallerCheck):
        return
    put(owner, name, CallerCheck(plain, kind, through))


def put(owner: Any, name: str, function: Any) -> None:
    """Replace a function of `owner` by one that passes for it.

    Functions of `os` belong to another module (`posix`), by which pickle and the import system know
    them, so that name is replaced too.
    """
    plain = getattr(owner, name)
    named_as(function, plain)
    setattr(owner, name, function)
    for known in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
        # `shutil` looks here before it uses a function in its safe way
        if plain in known:
            known.add(function)
    home = sys.modules.get(str(getattr(plain, "__module__", "")))
    if home is not None and getattr(home, name, None) is plain:
        setattr(home, name, function)
