"""The base class of every record that is written to a file, and field types that records share."""

from __future__ import annotations

import math
import re
import shlex
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema


def _iso_time(value: str) -> str:
    """Return the time; refuse one without an offset, because two such times cannot be compared."""
    message = "must be an ISO 8601 time with an offset, for example 2026-01-31T12:00:00+00:00"
    try:
        time = datetime.fromisoformat(value)
        # Python accepts any character between day and hour, even a line feed
        usable = time.tzinfo is not None and value.isprintable()
        # the first and last hours of the calendar cannot be converted to UTC
        if usable:
            time.astimezone(UTC)
    except (ValueError, OverflowError):
        usable = False
    if not usable:
        raise ValueError(message)
    return value


MAX_TIME = 40
Timestamp = Annotated[str, Field(max_length=MAX_TIME), AfterValidator(_iso_time)]


def is_time(text: str) -> bool:
    """Return whether a text is a valid `Timestamp`."""
    try:
        return len(_iso_time(text)) <= MAX_TIME
    except ValueError:
        return False


def newest_first(time: str) -> float:
    """Return the key that sorts times newest first; an empty time comes before all others."""
    return -datetime.fromisoformat(time).timestamp() if time else -math.inf


class Document(BaseModel):
    """A frozen record with no unknown keys and no silent conversions."""

    # defer_build: a call uses few of these classes, and building all takes a tenth of a second.
    # strict: no text becomes a number. forbid: a key that this program ignores could be one that
    # another program obeys.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


# `\Z` and not `$`, which also matches before a final line feed
SERVICE_ADDRESS = re.compile(
    r"(https://[A-Za-z0-9.-]+|http://(localhost|127\.0\.0\.1))(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?\Z"
)
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


SUCH_AS: Final = "for example `python train.py`"
COMMAND_HINT: Final = "Close every quote; bash -c '...' does what takes a shell."
SHELL_OPERATORS: Final = frozenset(("&&", "||", "|", ";", "&", "<", ">", ">>", "2>&1"))
# `>log.txt` is one word
REDIRECTION: Final = re.compile(r"(?:[0-9]|&)?(?:>>?|<)(?=\S)", re.ASCII)
# in quotes or after a backslash, an operator is an ordinary character
QUOTED: Final = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)


def command_words(text: str) -> tuple[str, ...]:
    """Return a command's words as a shell splits them; `ValueError` for what needs a shell."""
    words = tuple(shlex.split(text))
    for word in QUOTED.sub("_", text).split():
        operator = ";" if word.endswith(";") else word
        if operator in SHELL_OPERATORS or REDIRECTION.match(word):
            message = (
                f"{operator} belongs to a shell, and the command starts without one: write "
                "bash -c '...', or name a script that does all of it"
            )
            raise ValueError(message)
    return words


def _split_words(value: object) -> object:
    """Accept `--lr 0.1 --seed 1` as well as a list of words; no shell is ever involved."""
    if not isinstance(value, str | list | tuple):
        message = f"must be one text or a list of words, {SUCH_AS}"
        raise ValueError(message)  # noqa: TRY004 - pydantic tells no other
    # the text is split and never passed to a shell, so no variable or substitution in it takes
    # effect
    words = command_words(value) if isinstance(value, str) else tuple(value)
    if not words or words[0] == "":
        message = f"is empty: give a command, {SUCH_AS}"
        raise ValueError(message)
    if any(isinstance(word, str) and "\0" in word for word in words):
        message = "contains a zero byte, which no program can be given"
        raise ValueError(message)
    return words


def _program_first(words: tuple[str, ...]) -> tuple[str, ...]:
    name, assigns, _ = words[0].partition("=")
    if assigns and VARIABLE_NAME.match(name):
        message = (
            f"{name}=… sets a variable, which only a shell does: put it under train.env, or begin "
            "with the word env"
        )
        raise ValueError(message)
    return words


def path_inside_project(value: str) -> str:
    """Return the path; refuse one that leaves the project, which the gate itself would read."""
    # a backslash is a separator on other systems, where the same repository may be checked out
    parts = value.replace("\\", "/").split("/")
    if value.startswith("/") or ".." in parts or "\0" in value or not value:
        message = "must be a relative path inside the project, without '..'"
        raise ValueError(message)
    return value


def folder_inside_project(value: str) -> str:
    """Return a folder's path without a final slash; refuse the project's own folder."""
    folder = PurePosixPath(path_inside_project(value)).as_posix()
    if folder == ".":
        message = "must name a folder of its own, such as .repro-gate/baseline"
        raise ValueError(message)
    return folder


COMMAND_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
    ]
}
Words = Annotated[
    tuple[str, ...],
    Field(min_length=1),
    BeforeValidator(_split_words),
    WithJsonSchema(COMMAND_SCHEMA, mode="validation"),
]
# words that start with a program
Argv = Annotated[Words, AfterValidator(_program_first)]
# no semicolons, because the harness gets the names separated by them
OperatorName = Annotated[str, Field(pattern=r"^[A-Za-z_][^;\x00-\x1f]{0,119}$")]


def _says_something(value: str) -> str:
    """Return the text; refuse blanks alone, which name no file and give no reason."""
    if not value.strip():
        message = "is blank"
        raise ValueError(message)
    return value


SaysSomething: Final = AfterValidator(_says_something)
RelativePath = Annotated[str, Field(max_length=500), SaysSomething]


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values; refuse a repeated one, because it was probably meant to be another."""
    twice = next((value for place, value in enumerate(values) if value in values[:place]), None)
    if twice is not None:
        message = f"names {twice[:80]!a} twice: remove one of the two"
        raise ValueError(message)
    return values


Distinct: Final = AfterValidator(_distinct)


def _whole_number(value: object) -> object:
    """Return the value; refuse `true` and `1.0`, which Python treats as equal to 1."""
    if isinstance(value, bool | float):
        message = f"must be a whole number, not {str(value).lower()}"
        raise ValueError(message)  # noqa: TRY004 - pydantic tells no other
    return value


WholeNumber: Final = BeforeValidator(_whole_number)
# a longer training is no smoke training, and a clock can still measure this
MOST_SECONDS: Final = 7 * 24 * 3600.0


def _service_address(value: str) -> str:
    """Return the address; refuse one to which a token would be sent unencrypted."""
    if not SERVICE_ADDRESS.match(value):
        message = "must be an address that begins with https://, without a query"
        raise ValueError(message)
    return value.rstrip("/")


ServiceAddress = Annotated[str, Field(max_length=200), AfterValidator(_service_address)]


def _machine_path(value: str) -> str:
    parts = value.split("/")
    if not value.startswith("/") or ".." in parts or "\0" in value or not any(parts):
        message = "must be an absolute path of the machine, below the root, without '..'"
        raise ValueError(message)
    return PurePosixPath(value).as_posix()


MachinePath = Annotated[str, Field(max_length=1000), AfterValidator(_machine_path)]
