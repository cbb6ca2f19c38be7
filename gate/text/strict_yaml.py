"""Reads YAML settings strictly: plain types only, no duplicate keys, and the line of every key."""

from __future__ import annotations

import re
from typing import Any

import yaml

from gate.errors import SettingsError
from gate.text.phrases import key_path

KeyPath = tuple[str | int, ...]
MAX_BYTES = 256 * 1024
MAX_ALIASES = 20
MAX_DEPTH = 40
MAX_NODES = 20_000
MAX_NUMBER = 40
SHOWN = 80
MERGE = "tag:yaml.org,2002:merge"
QUOTE_IT = "Put the value in quotes."
NUMBERS = frozenset(("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"))
# YAML 1.1 demands `1.0e-3`; everybody writes `1e-3`
FLOAT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+\Z")
# an octal number, or one in base 60, which YAML 1.2 reads differently
AMBIGUOUS = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)\Z")
# exceptions that PyYAML raises for bad input: its scanner and constructors were not made for
# untrusted text
RAISED = (
    yaml.YAMLError,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also reads `1e-3` as a number."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789"))


def parse_yaml(
    data: bytes, source: str, *, foreign: bool = False
) -> tuple[object, dict[KeyPath, int]]:
    """Read one YAML document of plain values; the second result maps key paths to line numbers.

    Raises `SettingsError` for a document that is too large or too deep, not UTF-8, or not YAML. It
    also refuses a tag, a duplicate key, a key that is no text, and a number of more than 40
    characters. A number that versions of YAML read differently, such as 010, is refused too, unless
    the file is `foreign`: another program wrote it.
    """
    if len(data) > MAX_BYTES:
        raise SettingsError(
            f"{source}: {len(data):,} bytes, the limit is {MAX_BYTES:,}",
            hint="Shorten it; the limit protects the machine that reads it.",
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{source}: not UTF-8 at byte {error.start}", hint="Save the file as UTF-8."
        ) from error
    try:
        _check_events(text, source)
        # compose nodes, not values: a node knows its line, and two equal keys remain two
        node = yaml.compose(text, Loader=_Loader)
    except RAISED as error:
        raise SettingsError(
            f"{source}: not valid YAML: {_one_line(error, text)}", hint=_remedy(error)
        ) from error
    if node is None:
        return {}, {}
    walker = _Walker(source, foreign=foreign)
    value = walker.value(node, ())
    return value, walker.lines


def _check_events(text: str, source: str) -> None:
    """Refuse depth and tags before anything is built: building recurses, and obeys tags."""
    depth = nodes = 0
    # events come one by one and nothing is kept, so this is the cheapest place to stop a bomb
    for event in yaml.parse(text, Loader=_Loader):
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        line = f"{source}: line {event.start_mark.line + 1 if event.start_mark else 0}"
        if depth > MAX_DEPTH:
            raise SettingsError(
                f"{line}: nested deeper than {MAX_DEPTH} levels",
                hint="Look for a bracket or brace that is never closed.",
            )
        if nodes > MAX_NODES:
            raise SettingsError(
                f"{line}: more than {MAX_NODES:,} values",
                hint="Shorten it; the limit protects the machine that reads it.",
            )
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise SettingsError(
                f"{line}: a tag ({_shown(tag)}) is not allowed",
                hint="Write the plain value, without an exclamation mark before it.",
            )


def _shown(text: str) -> str:
    """Return text of the file for a message: cut, and nothing that a terminal or runner obeys."""
    return ascii(text[:SHOWN])[1:-1]


def _one_line(error: Exception, text: str) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = _problem(error)
    if isinstance(error, yaml.reader.ReaderError):
        return f"line {text.count(chr(10), 0, error.position) + 1}: {problem}"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


# PyYAML's own words for these say what its parser does, and not what is wrong with the file
TAB = "cannot start any token"
SECOND_DOCUMENT = "but found another document"


def _problem(error: Exception) -> str:
    if not isinstance(error, yaml.YAMLError):
        return "an invalid escape sequence, or a value that cannot be read"
    if isinstance(error, yaml.reader.ReaderError):
        return f"the character U+{int(error.character):04X} is not allowed"
    raised = str(getattr(error, "problem", None) or error)
    if raised == SECOND_DOCUMENT:
        return "a second document begins here"
    if TAB in raised and "\\t" in raised:
        return "a tab, where YAML allows only spaces"
    lines = raised.splitlines()
    return _shown(lines[0]) if lines else type(error).__name__


def _remedy(error: Exception) -> str:
    if getattr(error, "problem", None) == SECOND_DOCUMENT:
        return "Keep one document, without a line of three dashes after it."
    if isinstance(error, yaml.reader.ReaderError):
        return "Remove that character."
    return "Check the indentation and the quotes on that line."


class _Walker:
    """Turns nodes into values, and remembers the line of each key."""

    def __init__(self, source: str, *, foreign: bool) -> None:
        self.source = source
        self._foreign = foreign
        self.lines: dict[KeyPath, int] = {}
        self._constructor = yaml.constructor.SafeConstructor()
        self._visits: dict[int, int] = {}

    def value(self, node: yaml.Node, path: KeyPath) -> object:
        self.lines[path] = node.start_mark.line + 1
        self._count_alias(node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _count_alias(self, node: yaml.Node) -> None:
        """Count the visits of a node; refuse one with too many aliases.

        A node that is met again is an alias. A few are fine, a "billion laughs" bomb is not.
        """
        self._visits[id(node)] = self._visits.get(id(node), 0) + 1
        # aliases of aliases grow exponentially with their depth: nine lines can be a
        # billion values (CWE-776)
        if self._visits[id(node)] > MAX_ALIASES:
            raise self._fault(
                node,
                f"more than {MAX_ALIASES} aliases of one value",
                hint="Write the value out where it is used.",
            )

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        mapping: dict[str, object] = {}
        for key_node, value_node in node.value:
            if key_node.tag == MERGE:
                raise self._fault(
                    key_node,
                    "merge keys (<<) are not supported",
                    hint="Copy the keys of the other mapping to this place.",
                )
            key = self._scalar(key_node, path) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise self._fault(key_node, "a key must be text", hint="Put the key in quotes.")
            if key in mapping:
                raise self._fault(
                    key_node,
                    f"key {_shown(key)!r} is given twice",
                    hint="Remove one of the two, or join what is below them.",
                )
            mapping[key] = self.value(value_node, (*path, key))
            self.lines[(*path, key)] = key_node.start_mark.line + 1
        return mapping

    def _scalar(self, node: yaml.Node, path: KeyPath) -> object:
        # converting decimal digits to an integer takes time that grows with the square of
        # their number (CVE-2020-10735)
        if node.tag in NUMBERS and len(node.value) > MAX_NUMBER:
            raise self._fault(node, f"a number of more than {MAX_NUMBER} characters", hint=QUOTE_IT)
        try:
            # YAML 1.1 reads some plain text as dates; what is no plain value is refused below
            value: Any = self._constructor.construct_object(node)
        except RAISED as error:
            raise self._fault(
                node, f"unsupported value: {_problem(error)}", hint=QUOTE_IT
            ) from error
        if node.tag in NUMBERS and not self._foreign and AMBIGUOUS.match(node.value):
            named = f"{key_path(path)}: " if path else ""
            raise self._fault(
                node,
                f"{named}{node.value} is {value} in YAML 1.1 and something else in YAML 1.2",
                hint="Write the number without a leading zero or a colon; quote it if it is text.",
            )
        if value is not None and not isinstance(value, str | int | float | bool):
            raise self._fault(
                node, f"unsupported value of type {type(value).__name__}", hint=QUOTE_IT
            )
        if isinstance(value, str):
            return self._joined(node, value)
        return value

    def _joined(self, node: yaml.Node, text: str) -> str:
        """Return text with each pair of surrogate escapes joined into a character, as in JSON."""
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            raise self._fault(
                node,
                "an unpaired surrogate",
                hint="Write both halves of the escape, or the character itself.",
            ) from error

    def _fault(self, node: yaml.Node, problem: str, *, hint: str) -> SettingsError:
        line = node.start_mark.line + 1
        return SettingsError(f"{self.source}: line {line}: {problem}", hint=hint)
