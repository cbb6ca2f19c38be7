"""Lines of the user's code that ask for `id()` or `hash()`: addresses differ from run to run.

Both are called far too often, by torch too, to be hooked. So the files of the user's own modules
are looked through once, at the end, for code that loads these names; whether a line ran is not
known.
"""

from __future__ import annotations

import dis
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

from ..user_code import CodeLine, is_users_file, shown_file
from .found import ADDRESS, SOURCES, Source

NAMES = frozenset(("id", "hash"))
SETS = frozenset(("set", "frozenset"))
# from Python 3.14 on (PEP 649) annotations are code of their own, which runs only when asked for
ANNOTATIONS = "__annotate__"
MAX_FILES = 100
MAX_SOURCE_BYTES = 1_000_000
# now, when torch is imported: once a script has run to its end, Python takes the name away
_SCRIPT = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or os.sep)  # noqa: PTH100 - as text


def tell_addresses() -> None:
    """Report every such line."""
    for name, place, function in uses_in_code(NAMES):
        SOURCES.report(Source(ADDRESS, name, place, [f"{place} {function}"]))
    # behind those: sets are many, and few are gone through
    for name, place, function in uses_in_code(SETS, sets=True):
        SOURCES.report(Source(ADDRESS, name, place, [f"{place} {function}"]))


def uses_in_code(
    names: frozenset[str], *, sets: bool = False
) -> Iterator[tuple[str, CodeLine, str]]:
    """Lines of the user's modules that load one of these names: name, line and function.

    With `sets` also those that make a set without naming it.
    """
    for file, source in users_files():
        for name, line, function in _uses(source, file, names, sets=sets):
            yield name, CodeLine(shown_file(file), line), function


def users_files() -> Iterator[tuple[str, bytes]]:
    """The files of the user's modules with what is in them; not the longest ones."""
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    every = map(os.path.abspath, [_SCRIPT, *(str(file) for file in loaded if file)])
    for file in list(dict.fromkeys(filter(is_users_file, every)))[:MAX_FILES]:
        if os.path.isfile(file) and os.path.getsize(file) <= MAX_SOURCE_BYTES:  # noqa: PTH113, PTH202 - names of modules are text
            yield file, Path(file).read_bytes()


def _uses(
    source: bytes, file: str, names: frozenset[str], *, sets: bool
) -> Iterator[tuple[str, int, str]]:
    try:
        with warnings.catch_warnings():
            # the script has been told of them already
            warnings.simplefilter("ignore")
            code = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return
    waiting: list[CodeType] = [code]
    # a file that has a name of its own for something else means that
    own = {str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_NAME"}
    while waiting:
        this = waiting.pop()
        if this.co_name == ANNOTATIONS:
            continue
        waiting += [part for part in this.co_consts if isinstance(part, CodeType)]
        for step in dis.get_instructions(this):
            if step.positions is None:
                continue
            line = step.positions.lineno or 0
            if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and step.argval in names - own:
                yield str(step.argval), line, this.co_name
            elif sets and _makes_set(step):
                yield "set", line, this.co_name


def _makes_set(step: dis.Instruction) -> bool:
    # a set that never changes is made when the code is compiled
    return step.opname == "BUILD_SET" or isinstance(step.argval, frozenset)
