"""YAML for settings: safe types only, no duplicate key, and the line of every key."""

from __future__ import annotations

from typing import Any

import yaml

from gate.errors import SettingsError

KeyPath = tuple[str | int, ...]
MAX_BYTES = 256 * 1024
MAX_ALIASES = 20


def parse_yaml(data: bytes, source: str) -> tuple[object, dict[KeyPath, int]]:
    """Read one YAML document of plain values; the second part maps key paths to line numbers.

    Raises `SettingsError` for what is too large, not UTF-8, not YAML, uses a key twice, a key that
    is no text, or a tag.
    """
    if len(data) > MAX_BYTES:
        raise SettingsError(f"{source}: {len(data):,} bytes, the limit is {MAX_BYTES:,}")
    try:
        text = data.decode("utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{source}: not UTF-8 at byte {error.start}") from error
    except yaml.YAMLError as error:
        raise SettingsError(
            f"{source}: not valid YAML: {_one_line(error)}",
            hint="Check the indentation and the quotes on that line.",
        ) from error
    if node is None:
        return {}, {}
    walker = _Walker(source)
    value = walker.value(node, ())
    return value, walker.lines


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else str(problem)


class _Walker:
    """Turns nodes into values, remembering the line of each key."""

    def __init__(self, source: str) -> None:
        self.source = source
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
        return self._scalar(node)

    def _count_alias(self, node: yaml.Node) -> None:
        """A node met again is an alias; a few are fine, a billion laughs are not."""
        self._visits[id(node)] = self._visits.get(id(node), 0) + 1
        if self._visits[id(node)] > MAX_ALIASES:
            raise self._fault(node, f"more than {MAX_ALIASES} aliases of one value")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise self._fault(key_node, "a key must be text (put it in quotes)")
            if key in found:
                raise self._fault(key_node, f"key {key!r} is given twice")
            found[key] = self.value(value_node, (*path, key))
            self.lines[(*path, key)] = key_node.start_mark.line + 1
        return found

    def _scalar(self, node: yaml.Node) -> object:
        try:
            value: Any = self._constructor.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise self._fault(node, f"unsupported value: {str(error).splitlines()[0]}") from error
        if value is not None and not isinstance(value, str | int | float | bool):
            raise self._fault(node, f"unsupported value of type {type(value).__name__}: quote it")
        return value

    def _fault(self, node: yaml.Node, problem: str) -> SettingsError:
        return SettingsError(f"{self.source}: line {node.start_mark.line + 1}: {problem}")
