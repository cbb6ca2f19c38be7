"""Read a step's output and files with the rules of GitHub's runner.

The rules follow the runner's source. There are two command parsers: one for `::name::` at the start
of a line, and one for `##[name]` anywhere in it. There are a list of known commands,
`stop-commands`, and limits on annotations and on the summary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

KNOWN = {
    *("add-mask", "add-matcher", "add-path", "debug", "echo", "endgroup", "error", "group"),
    *("notice", "remove-matcher", "save-state", "set-env", "set-output", "stop-commands"),
    *("internal-set-repo-path", "warning"),
}
# Characters that a culture-aware comparison of .NET, the runner's platform, ignores.
SKIPPED = re.compile("[\u00ad\u034f\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff]")
LEVELS = ("error", "warning", "notice")
ANNOTATIONS_PER_LEVEL = 10
MESSAGE_CHARACTERS = 4096
SUMMARY_BYTES = 1024 * 1024
DATA_ESCAPES = (("%0D", "\r"), ("%0A", "\n"), ("%25", "%"))
PROPERTY_ESCAPES = (("%3A", ":"), ("%2C", ","), *DATA_ESCAPES)
OLD_ESCAPES = (("%3B", ";"), ("%5D", "]"), *DATA_ESCAPES)


class RunnerError(Exception):
    """The runner would fail the step."""


@dataclass(frozen=True)
class Command:
    """A workflow command that the runner obeys."""

    name: str
    data: str
    properties: dict[str, str] = field(default_factory=dict)


def read_command(line: str, known: set[str]) -> Command | None:
    """Return the command in a line of output, by either parser; names are not case-sensitive."""
    return _double_colon(line, known) or _bracket(line, known)


def _double_colon(line: str, known: set[str]) -> Command | None:
    text = line.lstrip()
    head, separator, data = text[2:].partition("::")
    if not text.startswith("::") or not separator:
        return None
    return _command(head, data, known, ",", (PROPERTY_ESCAPES, DATA_ESCAPES))


def _bracket(line: str, known: set[str]) -> Command | None:
    _, start, rest = line.partition("##[")
    head, end, data = rest.partition("]")
    if not start or not end:
        return None
    return _command(head, data, known, ";", (OLD_ESCAPES, OLD_ESCAPES))


def _command(
    head: str,
    data: str,
    known: set[str],
    separator: str,
    escapes: tuple[tuple[tuple[str, str], ...], ...],
) -> Command | None:
    name, _, rest = head.partition(" ")
    if name.lower() not in {entry.lower() for entry in known}:
        return None
    pairs = [pair.split("=", 1) for pair in rest.strip().split(separator) if "=" in pair]
    properties = {pair[0].strip(): _plain(pair[1], escapes[0]) for pair in pairs}
    return Command(name.lower(), _plain(data, escapes[1]), properties)


def _plain(text: str, escapes: tuple[tuple[str, str], ...]) -> str:
    for escaped, character in escapes:
        text = text.replace(escaped, character)
    return text


def obeyed(log: str) -> list[Command]:
    """Return every command of a log that takes effect.

    Commands between `stop-commands` and its token do not.
    """
    found, token = [], ""
    for line in re.split(r"\r\n|\r|\n", log):
        command = read_command(SKIPPED.sub("", line), KNOWN | ({token} if token else set()))
        if command is None:
            continue
        if token:
            token = "" if command.name == token.lower() else token
        elif command.name == "stop-commands":
            token = command.data
        else:
            found.append(command)
    return found


def commands(log: str) -> list[str]:
    """Return the names of the commands that take effect, in order."""
    return [command.name for command in obeyed(log)]


def shown_annotations(log: str) -> list[Command]:
    """Return the annotations that GitHub shows: ten per level, cut at 4,096 characters."""
    kept: list[Command] = []
    for level in LEVELS:
        of_level = [command for command in obeyed(log) if command.name == level]
        kept.extend(
            Command(level, command.data[:MESSAGE_CHARACTERS], command.properties)
            for command in of_level[:ANNOTATIONS_PER_LEVEL]
        )
    return kept


def read_values(text: str) -> dict[str, str]:
    """Parse the `name=value` lines and `name<<delimiter` blocks of one of the runner's files.

    Raises `RunnerError` for any other line, and for a block that is not closed.
    """
    values, lines = {}, text.split("\n")
    number = 0
    while number < len(lines):
        line = lines[number].removesuffix("\r")
        number += 1
        equals, heredoc = line.find("="), line.find("<<")
        if not line:
            continue
        if equals >= 0 and (heredoc < 0 or equals < heredoc):
            name, _, value = line.partition("=")
        elif heredoc >= 0:
            name, _, delimiter = line.partition("<<")
            end = _end_of(delimiter, lines, number)
            value = "\n".join(lines[number:end])
            number = end + 1
        else:
            raise RunnerError(f"invalid format {line!r}")
        if not name:
            raise RunnerError(f"no name in {line!r}")
        values[name] = value
    return values


def _end_of(delimiter: str, lines: list[str], start: int) -> int:
    """Return the number of the line with the closing delimiter; raises `RunnerError` without one.

    The line must end with a newline, so the last piece of the text cannot be the delimiter.
    """
    if not delimiter:
        raise RunnerError("empty delimiter")
    for number in range(start, len(lines) - 1):
        if lines[number].removesuffix("\r") == delimiter:
            return number
    raise RunnerError(f"matching delimiter not found {delimiter!r}")


def shown_summary(data: bytes) -> str:
    """Return the job summary; raises `RunnerError` if it is too large, as the runner drops it."""
    if len(data) > SUMMARY_BYTES:
        raise RunnerError("the step summary is larger than 1024k")
    return data.decode("utf-8")
