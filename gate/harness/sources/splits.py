"""Finds lines whose result depends on addresses, or on the order in which a folder is listed.

*Addresses.* `id`, `hash` and sets are used far too often, by torch too, to be hooked. So the files
of the user's own modules are searched once, at the end, for code that loads these names. Whether
such a line ran is unknown.

*Splits.* The same files are searched for splits drawn from a listing. Inside one function or a
module's body, names are followed from a listing (`os.listdir`, `glob`, `iterdir`, ...) to a draw
(`shuffle`, `permutation`, `random_split`, ...). A shuffle alone may be the order of an epoch, so it
counts only if the result is cut in two. Values passed between functions are not followed.
"""

from __future__ import annotations

import ast
import dis
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from ..user_code import CodeLine, is_users_file, shown_file
from .recorded import ADDRESS, SOURCES, SPLIT, SourceRecord

NAMES = frozenset(("id", "hash"))
SETS = frozenset(("set", "frozenset"))
# From Python 3.14 on (PEP 649) annotations are code objects that run only on request.
ANNOTATIONS = "__annotate__"
MAX_FILES = 100
MAX_SOURCE_BYTES = 1_000_000
# taken now, while torch is imported: Python removes the name once the script has run to its end
_SCRIPT = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or os.sep)  # noqa: PTH100 - as text


def tell_addresses() -> None:
    """Report each line of the user's modules that uses `id`, `hash` or a set."""
    for name, place, function in uses_in_code(NAMES):
        SOURCES.report(SourceRecord(ADDRESS, name, place, [f"{place} {function}"]))
    # sets last: they are many, few are iterated over, and the number of findings is limited
    for name, place, function in uses_in_code(SETS, sets=True):
        SOURCES.report(SourceRecord(ADDRESS, name, place, [f"{place} {function}"]))


def uses_in_code(
    names: frozenset[str], *, sets: bool = False
) -> Iterator[tuple[str, CodeLine, str]]:
    """Yield lines of the user's modules that load one of these names: name, line and function.

    With `sets`, lines that create a set by its literal or comprehension are included.
    """
    for file, source in users_files():
        for name, line, function in _uses(source, file, names, sets=sets):
            yield name, CodeLine(shown_file(file), line), function


def users_files() -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each file of the user's modules, except the longest files."""
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
            # the script's own import has shown these warnings already
            warnings.simplefilter("ignore")
            code = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return
    waiting: list[CodeType] = [code]
    # a module that assigns the name itself does not mean the built-in function
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
    # the compiler turns a set that never changes into a frozenset constant
    return step.opname == "BUILD_SET" or isinstance(step.argval, frozenset)


MAX_BYTES = 300_000
LISTS = frozenset(("listdir", "scandir", "iterdir", "glob", "iglob", "rglob"))
# with the module's name: `walk` alone may be another function, such as `ast.walk`
LISTS_OF_OS = frozenset(("os.walk", "os.fwalk"))
SHUFFLES = frozenset(("shuffle",))
PERMUTES = frozenset(("permutation", "permuted", "randperm"))
SPLITS = frozenset(("random_split", "train_test_split"))
SAMPLE = "sample"
CUTS = frozenset(("split", "array_split", "tensor_split", "chunk"))
GROWS = frozenset(("append", "extend", "add"))
# functions that load batches, whose rows and lengths are not names of files
NO_NAMES = ("Loader", "loader")
# a file is parsed only if it contains a word of each of the two
HINTS = (b"listdir", b"scandir", b"iterdir", b"glob", b"os.walk", b"os.fwalk")
DRAWS = (b"shuffle", b"permut", b"randperm", b"_split", b"sample")
SORTED = "sorted"


class Drawn(NamedTuple):
    """A shuffle or another draw: its line and the name of the call."""

    line: int
    call: str


class Names(NamedTuple):
    """What a value has to do with a listing.

    `listing` is the call that listed, inside `loops` loops that repeat. `ordered` is true if the
    names were sorted. `number` is true if the value is only their count. `drawn` is the shuffle
    that the value went through.
    """

    listing: str
    loops: int = 0
    ordered: bool = False
    number: bool = False
    drawn: Drawn | None = None

    def replaced(self, drawn: Drawn | None) -> Names:
        """Return the same names, or the numbers below their count, in the order of a draw."""
        return self._replace(number=False, drawn=drawn)


class ListedSplit(NamedTuple):
    """A split: its draw, and the listed names that it divides."""

    drawn: Drawn
    names: Names


def tell_splits() -> None:
    """Report each split of the user's modules."""
    for file, source in users_files():
        for split in splits_in(source):
            place = CodeLine(shown_file(file), split.drawn.line)
            ordered = SORTED if split.names.ordered else ""
            listing = split.names.listing
            SOURCES.report(
                SourceRecord(SPLIT, split.drawn.call, place, [], before=listing, after=ordered)
            )


def splits_in(source: bytes) -> tuple[ListedSplit, ...]:
    """Return the splits in one file, by line; none if it is too long or not Python."""
    likely = any(word in source for word in HINTS) and any(word in source for word in DRAWS)
    if not likely or len(source) > MAX_BYTES:
        return ()
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    splits: dict[int, ListedSplit] = {}
    for body in _bodies(module):
        scope = _Scope()
        scope.run(body)
        for split in scope.listed:
            splits.setdefault(split.drawn.line, split)
    return tuple(splits[line] for line in sorted(splits))


def _bodies(module: ast.Module) -> Iterator[list[ast.stmt]]:
    yield module.body
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.body


class _Scope:
    """Follows names through one body: runs its statements in order and tracks the listed names."""

    def __init__(self) -> None:
        self.listed: list[ListedSplit] = []
        self._held: dict[str, Names] = {}
        # the listings of enclosing loops over file names; other loops count as `_repeats`
        self._loops: list[Names] = []
        self._repeats = 0

    def run(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            self._assign(targets, node.value)
            return
        if isinstance(node, ast.AugAssign):
            self._grow(_dotted(node.target), self._of(node.value))
            return
        if isinstance(node, ast.For | ast.AsyncFor):
            self._loop(node, self._of(node.iter))
        elif isinstance(node, ast.While):
            self._loop(node, None)
        else:
            self._parts(node)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, names: Names | None) -> None:
        over_names = names is not None
        self._repeats += not over_names
        if names is not None:
            self._loops.append(names)
        self.run(node.body)
        if names is not None:
            self._loops.pop()
        self._repeats -= not over_names
        self.run(node.orelse)

    def _parts(self, node: ast.stmt) -> None:
        """Handle any other statement: its expressions, then the statements in it."""
        for value in ast.iter_child_nodes(node):
            if isinstance(value, ast.expr):
                self._of(value)
            elif isinstance(value, ast.stmt):
                self._statement(value)
            elif isinstance(value, ast.withitem):
                names = self._of(value.context_expr)
                self._hold(value.optional_vars, names)
            elif isinstance(value, ast.ExceptHandler | ast.match_case):
                self.run(value.body)

    def _assign(self, targets: Iterable[ast.expr], value: ast.expr | None) -> None:
        for target in targets:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                # both have equal length, or the statement fails at run time
                for target_name, part in zip(target.elts, value.elts, strict=False):
                    self._hold(target_name, self._of(part))
            else:
                self._hold(target, self._of(value))

    def _hold(self, target: ast.expr | None, names: Names | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for elt in target.elts:
                # `[path] = glob(...)` takes one file, not a listing
                self._hold(elt, names if len(target.elts) > 1 else None)
        elif target is not None and (name := _dotted(target)):
            self._held.pop(name, None)
            if names is not None:
                self._held[name] = names

    def _grow(self, name: str, names: Names | None) -> None:
        """Note that a list grows; inside a loop over a listing it gets one item for each file."""
        names = names or (self._loops[-1] if self._loops else None)
        if name and names is not None and not names.number:
            self._held.setdefault(name, names)

    def _of(self, node: ast.expr | None) -> Names | None:
        """Return what the value of an expression has to do with a listing."""
        if isinstance(node, ast.Name | ast.Attribute):
            return self._held.get(_dotted(node))
        if isinstance(node, ast.Call):
            return self._of_call(node)
        if isinstance(node, ast.Subscript):
            return self._of_part(node)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            return _first(self._of(part.iter) for part in node.generators)
        return None if node is None else self._of_parts(node)

    def _of_parts(self, node: ast.expr) -> Names | None:
        inside = (
            self._of(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)
        )
        names = _first(inside)
        if isinstance(node, ast.NamedExpr):
            self._hold(node.target, names)
        # a number computed from the count says nothing about names any more
        computed = names is not None and names.number and not isinstance(node, ast.NamedExpr)
        return None if computed or isinstance(node, ast.Compare | ast.Lambda) else names

    def _of_part(self, node: ast.Subscript) -> Names | None:
        names = self._of(node.value)
        if names is None or not isinstance(node.slice, ast.Slice):
            # an item is one file's name, unless the index was drawn from the listing's length
            return None if names is None else self._of(node.slice)
        # a slice with both bounds is a batch, or the middle of three parts
        one_bound = (node.slice.lower is None) is not (node.slice.upper is None)
        if names.drawn is not None and one_bound and node.slice.step is None:
            self.listed.append(ListedSplit(names.drawn, names))
        return names

    def _of_call(self, node: ast.Call) -> Names | None:
        call = _dotted(node.func) or _attribute(node.func)
        last = call.rpartition(".")[2]
        base = self._of(node.func.value) if isinstance(node.func, ast.Attribute) else None
        passed = [self._of(value) for value in _values(node)]
        if last in LISTS or call in LISTS_OF_OS:
            return Names(call, loops=self._repeats)
        names = _first((*passed, base))
        if names is None or last.endswith(NO_NAMES):
            return self._grown(node, last, None)
        if last in SHUFFLES | PERMUTES | SPLITS or last == SAMPLE:
            return self._draw(node, Drawn(node.lineno, call), last, names)
        if last in CUTS and names.drawn is not None:
            self.listed.append(ListedSplit(names.drawn, names))
        return self._grown(node, last, _passed_on(last, names))

    def _grown(self, node: ast.Call, last: str, names: Names | None) -> Names | None:
        if last in GROWS and isinstance(node.func, ast.Attribute):
            self._grow(_dotted(node.func.value), names)
            return None
        return names

    def _draw(self, node: ast.Call, drawn: Drawn, last: str, names: Names) -> Names | None:
        # a draw that repeats is the order of an epoch, or a batch
        loop_drawn = None if self._repeats > names.loops else drawn
        if last in SHUFFLES:
            if node.args and not names.number:
                self._hold(node.args[0], names.replaced(loop_drawn))
            return None
        whole = last == SAMPLE and any(_length(value) for value in _values(node)[1:])
        if last in PERMUTES or whole:
            return names.replaced(loop_drawn)
        if loop_drawn is not None and not names.number:
            self.listed.append(ListedSplit(loop_drawn, names))
        return names


def _passed_on(function: str, names: Names | None) -> Names | None:
    """Return what the result of a call has to do with the listing of its argument."""
    if names is None or function == "len":
        return None if names is None else names._replace(number=True)
    if names.number and function not in {"range", "arange"}:
        return None
    ordered = names.ordered or function == SORTED
    # sorting again undoes a shuffle
    drawn = None if function == SORTED else names.drawn
    return names._replace(number=False, ordered=ordered, drawn=drawn)


def _first(several: Iterable[Names | None]) -> Names | None:
    """Return the first that is not None, after evaluating all: any of them may bind a name."""
    return next((part for part in list(several) if part is not None), None)


def _values(node: ast.Call) -> list[ast.expr]:
    every = [*node.args, *(keyword.value for keyword in node.keywords)]
    return [element.value if isinstance(element, ast.Starred) else element for element in every]


def _length(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _dotted(node.func) == "len"


def _dotted(node: ast.expr) -> str:
    """Return `self.files` and the like as text; empty for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _attribute(node: ast.expr) -> str:
    """Return the last name of a call on an unnamed value, such as `glob` in `Path(root).glob`."""
    return node.attr if isinstance(node, ast.Attribute) else ""
