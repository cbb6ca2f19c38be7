"""Each regular expression takes time in proportion to its text, whatever the text is."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from growth import grows_too_fast
from module_imports import GATE, dotted

# inside the training, whose own time it takes
# the tree of a pattern is the standard library's own, and has no types
kinds: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")
TRAINING = "harness"
CHARACTERS = 8_000
METHODS = ("match", "fullmatch", "search", "findall", "finditer", "sub", "split")
ENDS = ("\0", "!", "a", "\n")
MAX_UNITS = 14
# used by a library, under another name
USED_AS = {"gate.text.strict_yaml.FLOAT": frozenset({"match"})}
Named = tuple[str, "re.Pattern[Any]", frozenset[str]]


@cache
def _sources() -> dict[str, str]:
    return {
        dotted(path): path.read_text("utf-8")
        for path in sorted(GATE.rglob("*.py"))
        if path.relative_to(GATE).parts[0] != TRAINING and path.name != "__main__.py"
    }


@cache
def _uses() -> dict[str, set[str]]:
    """The methods with which a constant of each name is used anywhere."""
    found: dict[str, set[str]] = {}
    for text in _sources().values():
        for name, method in re.findall(rf"\b(\w+)\.({'|'.join(METHODS)})\b", text):
            found.setdefault(name, set()).add(method)
    return found


def _named(name: str, pattern: re.Pattern[Any]) -> Named:
    used = frozenset(_uses().get(name.rpartition(".")[2], ()))
    return name, pattern, USED_AS.get(name) or used or frozenset({"search"})


def _inline(module: str, text: str) -> Iterator[Named]:
    """Patterns that are given to `re.sub` and its like where they are used."""
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in METHODS
            and isinstance(node.args[0], ast.Constant)
        ):
            written: Any = node.args[0].value
            yield f"{module}:{written!r}", re.compile(written), frozenset({node.func.attr})


@cache
def _patterns() -> tuple[Named, ...]:
    found: dict[int, Named] = {}
    for module, text in _sources().items():
        if "re." not in text:
            continue
        for name, value in vars(importlib.import_module(module)).items():
            if isinstance(value, re.Pattern):
                found.setdefault(id(value), _named(f"{module}.{name}", value))
        for one in _inline(module, text):
            found.setdefault(id(one), one)
    return tuple(found.values())


def _one_of(operator: Any, argument: Any) -> str:  # noqa: ANN401 - the tree of re has no types
    """A character that a node takes."""
    if operator is kinds.LITERAL:
        return chr(argument)
    if operator is kinds.RANGE:
        return chr(argument[0])
    if operator is kinds.CATEGORY:
        name = str(argument)
        return {"DIGIT": "1", "SPACE": " ", "WORD": "a"}.get(name.rpartition("_")[2], "x")
    if operator is kinds.IN:
        inside = [one for one in argument if one[0] is not kinds.NEGATE]
        negated = len(inside) != len(argument)
        return "x" if negated else _one_of(*inside[0])
    return "x"


def _shortest(tree: Any) -> str:  # noqa: ANN401 - as above
    """A short text that a piece of a pattern takes, nearly."""
    text = ""
    for operator, argument in tree:
        if operator in {kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT}:
            text += _shortest(argument[2]) * min(argument[0], 64)
        elif operator is kinds.SUBPATTERN:
            text += _shortest(argument[3])
        elif operator is kinds.ATOMIC_GROUP:
            text += _shortest(argument)
        elif operator is kinds.BRANCH:
            text += _shortest(argument[1][0])
        elif operator not in {kinds.AT, kinds.ASSERT, kinds.ASSERT_NOT, kinds.GROUPREF}:
            text += _one_of(operator, argument)
    return text


def _repeats(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401 - as above
    """What stands before each repetition, and what it repeats."""
    for place, (operator, argument) in enumerate(tree):
        prefix = before + _shortest(tree[:place])
        if operator in {kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT}:
            if argument[1] > MAX_UNITS:
                yield prefix, _shortest(argument[2]) or "x"
            yield from _repeats(argument[2], prefix)
        elif operator is kinds.SUBPATTERN:
            yield from _repeats(argument[3], prefix)
        elif operator is kinds.BRANCH:
            for branch in argument[1]:
                yield from _repeats(branch, prefix)


def _characters(tree: Any) -> Iterator[str]:  # noqa: ANN401 - as above
    for operator, argument in tree:
        if operator in {kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT}:
            yield from _characters(argument[2])
        elif operator is kinds.SUBPATTERN:
            yield from _characters(argument[3])
        elif operator is kinds.BRANCH:
            for branch in argument[1]:
                yield from _characters(branch)
        elif operator in {kinds.LITERAL, kinds.IN, kinds.NOT_LITERAL, kinds.ANY}:
            yield _one_of(operator, argument)


def _pumps(pattern: re.Pattern[Any]) -> set[tuple[str, str]]:
    """Beginnings, and what is put behind them again and again."""
    tree = parser.parse(pattern.pattern, pattern.flags)
    repeats = list(_repeats(tree))
    if not repeats:
        # of a bounded length wherever it begins
        return set()
    singles = list(dict.fromkeys((" ", "x", "1", *_characters(tree))))[:MAX_UNITS]
    begins = {"", *(prefix for prefix, _ in repeats)}
    whole = _shortest(tree)
    units = {*singles, whole, *(unit for _, unit in repeats)} - {""}
    return {(begin, unit) for begin in begins for unit in units}


def _run(pattern: re.Pattern[Any], method: str, text: str) -> object:
    given: Any = text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
    if method == "sub":
        return pattern.sub("" if isinstance(given, str) else b"", given)
    if method == "finditer":
        return sum(1 for _ in pattern.finditer(given))
    return getattr(pattern, method)(given)


def _read(
    pattern: re.Pattern[Any], method: str, pump: tuple[str, str], end: str, size: int
) -> object:
    begin, unit = pump
    return _run(pattern, method, begin + unit * (size // len(unit)) + end)


def test_each_pattern_takes_time_in_proportion_to_its_text() -> None:
    wrong = []
    for name, pattern, methods in _patterns():
        for pump in sorted(_pumps(pattern)):
            for method in sorted(methods):
                for end in ENDS:
                    ratio = grows_too_fast(partial(_read, pattern, method, pump, end), CHARACTERS)
                    if ratio:
                        wrong.append(f"{name}.{method}: {pump!r} {end!r}: {ratio:.1f}")
                        break
    assert not wrong, "\n".join(wrong)
