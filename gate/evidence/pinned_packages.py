"""Read the packages of a requirements file that may be installed; only the confined process does.

An installer obeys a requirements file. Options, paths, addresses and other files in it decide where
code comes from, and whether it is built, which runs it. The file itself is therefore never given to
an installer. Lines that pin one version by hashes are read and rewritten (`PinnedPackage.line`).
Every other line is refused by its number.

https://pip.pypa.io/en/stable/reference/requirements-file-format/
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from gate.errors import DocumentError
from gate.evidence.lock_files import (
    ARCHIVE_ENDS,
    DISTRIBUTION,
    EXACT_VERSION,
    MARKER_OPERATORS,
    MARKER_TEXT,
    MARKER_VARIABLES,
    MAX_FILES,
    MAX_MARKER,
    MAX_REQUIREMENTS_BYTES,
    STRONG_HASH,
    PinnedPackage,
)
from gate.text.untrusted_text import short_text
from gate.training.environment import MAX_PACKAGE_TEXT, MAX_PACKAGES

MAX_REFUSALS: Final = 20
# limit for a name with its extras
MAX_NAMED: Final = 1000
MAX_DEPTH: Final = 20
HASH: Final = "--hash"
WISHED_LINE: Final = "write it as `name==version --hash=sha256:...`"
MAKE_LOCK: Final = (
    "`uv pip compile --generate-hashes` and `pip-compile --generate-hashes` write one"
)
NO_PROJECT: Final = (
    "leave it out: the training imports the commit's own code from its checkout "
    "(`uv export --no-emit-project`, or `--no-emit-workspace`)"
)
INDEX: Final = (
    "set PIP_INDEX_URL, PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS in the step's `env` instead "
    "(`pip-compile --no-emit-index-url --no-emit-find-links`, `poetry export --without-urls`)"
)
OPTION_HINTS: Final = {
    **dict.fromkeys(
        ("-r", "--requirement", "-c", "--constraint"),
        f"list every package in this file; {MAKE_LOCK}",
    ),
    **dict.fromkeys(("-e", "--editable"), NO_PROJECT),
    **dict.fromkeys(
        (
            *("-i", "--index-url", "--pypi-url", "--extra-index-url", "--no-index"),
            *("-f", "--find-links", "--trusted-host"),
        ),
        INDEX,
    ),
}
OTHER_OPTION: Final = "remove the option: the gate installs wheels only, each by its hash"
LOCKS_OF_PROJECTS: Final = {
    "uv.lock": "uv export --no-emit-project --output-file requirements.lock",
    "poetry.lock": "poetry export --output requirements.lock",
    "pylock.toml": "uv pip compile --generate-hashes pyproject.toml -o requirements.lock",
    "Pipfile.lock": "pipenv requirements --hash > requirements.lock",
}
# these patterns are only used on texts whose length was checked
_NAMED: Final = re.compile(rf"(?P<name>{DISTRIBUTION}) ?(?:\[[A-Za-z0-9._, -]*+\])?")
_VERSION: Final = re.compile(EXACT_VERSION)
_HASH: Final = re.compile(STRONG_HASH)
_VARIABLES: Final = "|".join(MARKER_VARIABLES)
_OPERATORS: Final = "|".join(re.escape(operator) for operator in MARKER_OPERATORS)
_WORD: Final = re.compile(
    rf"""(?P<bracket>[()])|(?P<join>(?:and|or)\b)|(?P<operator>not +in\b|{_OPERATORS})"""
    rf"""|(?P<variable>(?:{_VARIABLES})\b)|'(?P<single>{MARKER_TEXT})'|"(?P<double>{MARKER_TEXT})\""""
)


class _Refused(NamedTuple):
    """What is wrong with a line, and what a person can do about it."""

    fault: str
    hint: str


def read_pinned(shown: str, data: bytes) -> tuple[PinnedPackage, ...]:
    """Return the packages that the file pins, in its order; `shown` is its name in messages.

    Raises `DocumentError` that names each line which pins no package.
    """
    name = PurePosixPath(shown).name
    if name in LOCKS_OF_PROJECTS:
        raise DocumentError(
            f"{shown} is not a requirements file",
            hint=f"Export one, commit it, and name it instead: {LOCKS_OF_PROJECTS[name]}",
        )
    if len(data) > MAX_REQUIREMENTS_BYTES:
        raise DocumentError(f"{shown} is above 4 MiB", hint="Name a lock file of the training.")
    try:
        # a byte order mark belongs to the encoding and is no fault of the file
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"{shown} is not UTF-8 at byte {error.start}", hint=f"Regenerate it; {MAKE_LOCK}."
        ) from error
    packages: list[PinnedPackage] = []
    refused: list[tuple[int, _Refused]] = []
    for number, line in _logical_lines(text):
        read = _package(line)
        if isinstance(read, PinnedPackage):
            packages.append(read)
        else:
            refused.append((number, read))
        # every refused line is reported at once, up to a limit, because the pull request chooses
        # their number
        if len(refused) > MAX_REFUSALS or len(packages) > MAX_PACKAGES:
            break
    if len(packages) > MAX_PACKAGES:
        raise DocumentError(
            f"{shown} names more than {MAX_PACKAGES:,} packages",
            hint=f"Regenerate it; {MAKE_LOCK}.",
        )
    if refused:
        raise _fault(shown, refused)
    return tuple(packages)


def _fault(shown: str, refused: list[tuple[int, _Refused]]) -> DocumentError:
    number, (fault, hint) = refused[0]
    more = f", and {len(refused) - 1} more lines are refused" if len(refused) > 1 else ""
    return DocumentError(
        f"{shown}, line {number}: {fault}{more}",
        hint=f"In {shown}, {hint}.",
        details=tuple(
            f"line {number}: {line.fault}; {line.hint}" for number, line in refused[1:MAX_REFUSALS]
        ),
    )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, each with the number of its first line.

    A backslash at the end of a line continues it. Empty lines are left out, and words are separated
    by one blank.
    """
    begun: list[str] = []
    first = 1
    for number, raw in enumerate(text.splitlines(), start=1):
        first = first if begun else number
        line, continued = _without_comment(raw).rstrip(), False
        if line.endswith("\\"):
            line, continued = line[:-1], True
        begun += line.split()
        if not continued:
            if begun:
                yield first, " ".join(begun)
            begun = []
    if begun:
        yield first, " ".join(begun)


def _without_comment(line: str) -> str:
    """Return a line without its comment.

    A comment begins the line or follows a blank; a `#` inside an address is part of the address.
    """
    if line.lstrip().startswith("#"):
        return ""
    match = re.search(r"\s#", line)
    return line if match is None else line[: match.start()]


def _package(line: str) -> PinnedPackage | _Refused:
    words = line.split(" ")
    options = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    hashes: list[str] = []
    waiting = iter(words[options:])
    # the only option that is accepted is a hash: any other one changes where code comes from or how
    # it is installed
    for word in waiting:
        name, equals, value = word.partition("=")
        if name != HASH:
            shown = name if name.startswith("--") else name[:2]
            return _Refused(f"option {short_text(shown)}", OPTION_HINTS.get(shown, OTHER_OPTION))
        text = value if equals else next(waiting, "")
        algorithm, _, digits = text.partition(":")
        hashes.append(f"{algorithm}:{digits.lower()}")
        if not _HASH.fullmatch(hashes[-1]):
            return _Refused(
                f"{short_text(text)} is not the SHA-256, SHA-384 or SHA-512 of a file",
                f"regenerate the line; {MAKE_LOCK}",
            )
    return _pinned(" ".join(words[:options]), tuple(dict.fromkeys(hashes)))


def _pinned(text: str, hashes: tuple[str, ...]) -> PinnedPackage | _Refused:
    requirement, _, condition = (part.strip() for part in text.partition(";"))
    left, _, right = (part.strip() for part in requirement.partition("=="))
    # `===` compares versions as texts. The hashes identify the file in any case, so it is read as
    # `==`.
    version = right.removeprefix("=").strip()
    short = len(left) <= MAX_NAMED and len(version) <= MAX_PACKAGE_TEXT
    named = _NAMED.fullmatch(left) if short else None
    if named is None or len(named["name"]) > MAX_PACKAGE_TEXT or not _VERSION.fullmatch(version):
        return _no_pin(requirement)
    name = named["name"]
    if version.lower().endswith(ARCHIVE_ENDS):
        return _Refused(f"{short_text(requirement)} looks like a file", WISHED_LINE)
    if not hashes:
        return _Refused(f"{short_text(requirement)} has no hash", f"add its hashes; {MAKE_LOCK}")
    if len(hashes) > MAX_FILES:
        return _Refused(
            f"{short_text(requirement)} has more than {MAX_FILES:,} hashes",
            "keep those of the wheels that this machine can use",
        )
    marker = _marker(condition) if len(condition) <= MAX_MARKER else _odd(condition)
    if isinstance(marker, _Refused):
        return marker
    return PinnedPackage(name=name, version=version, marker=marker, hashes=hashes)


def _no_pin(requirement: str) -> _Refused:
    """Return why a line is not a pin; the most dangerous reason comes first."""
    shown = short_text(requirement)
    if "://" in requirement or "@" in requirement:
        # show nothing after this point: an address may contain a password
        begin = re.split(r"@|://", requirement, maxsplit=1)[0]
        return _Refused(
            f"{short_text(begin.strip())} has an address in the place of a version",
            f"{WISHED_LINE}; put the wheel on an index, and name that in PIP_EXTRA_INDEX_URL",
        )
    archive = requirement.lower().endswith(ARCHIVE_ENDS)
    if archive or requirement.startswith((".", "~")) or "/" in requirement or "\\" in requirement:
        return _Refused(f"{shown} is a path", NO_PROJECT)
    return _Refused(f"{shown} pins no single version", f"{WISHED_LINE}; {MAKE_LOCK}")


def _marker(text: str) -> str | _Refused:
    """Return the marker in the gate's own spelling, or an empty text if there is none.

    The installer evaluates it.

    https://packaging.python.org/en/latest/specifications/dependency-specifiers/#environment-markers
    """
    # written again word by word, so that nothing reaches the installer that was not understood here
    written: list[str] = []
    # `expected` is the kind of word that may come next. A comparison is an operand, an operator and
    # an operand; `sides` counts its operands.
    expected, depth, place = "operand", 0, 0
    sides = 0
    while place < len(text):
        word = _WORD.match(text, place)
        if word is None:
            return _odd(text)
        kind, place = word.lastgroup or "", _behind_blanks(text, word.end())
        spelt = " ".join(word[0].split())
        if kind in {"single", "double", "variable"} and expected == "operand":
            sides += 1
            expected = "operator" if sides == 1 else "join"
            spelt = spelt if kind == "variable" else f'"{word[kind]}"'
        elif kind == "operator" and expected == "operator":
            expected = "operand"
        elif kind == "join" and expected == "join":
            expected, sides = "operand", 0
        elif spelt == "(" and expected == "operand" and not sides and depth < MAX_DEPTH:
            depth += 1
        elif spelt == ")" and expected == "join" and depth:
            depth -= 1
        else:
            return _odd(text)
        written.append(spelt)
    marker = " ".join(written)
    if written and (depth or expected != "join" or len(marker) > MAX_MARKER):
        return _odd(text)
    return marker


def _behind_blanks(text: str, place: int) -> int:
    while place < len(text) and text[place] == " ":
        place += 1
    return place


def _odd(text: str) -> _Refused:
    return _Refused(
        f"{short_text(text)} is not a condition that the gate understands",
        'write it as `; python_version < "3.13"`, joined by `and`, `or` and parentheses',
    )
