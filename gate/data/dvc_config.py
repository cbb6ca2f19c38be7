"""The configuration that DVC is started with: the remotes of a trusted one, and nothing else of it.

https://dvc.org/doc/user-guide/project-structure/configuration
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from configparser import Error, RawConfigParser
from pathlib import Path
from typing import Final

from gate.errors import DataError
from gate.text.untrusted_text import short_text

MAX_CONFIG_BYTES: Final = 64 * 1024
REMOTE_HINT: Final = "Write it with `dvc remote add -d NAME URL`, and commit .dvc/config."
# files that say who asks; some of their formats can name a program to run
FILE_KEYS: Final = frozenset(
    {"credentialpath", "configpath", "keyfile", "cert_path", "key_path"}
    | {"gdrive_user_credentials_file", "gdrive_service_account_json_file_path"}
)
# a program to run; questions to a person; layouts without content by its digest
LEFT_OUT: Final = frozenset(
    {"bearer_token_command", "ask_password", "ask_passphrase", "worktree", "version_aware"}
)
_REMOTE: Final = re.compile(r"""'?remote "(?P<name>[^"']{1,200})"'?\Z""")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def own_config(trusted: Iterable[tuple[bytes, bool]], top: Path, objects: Path) -> tuple[str, str]:
    """The text of a `.dvc/config` for one fetch, and the name of its default remote.

    `trusted` are configurations, each stronger than the one before it; with True, files that they
    name by a relative path may lie in the clone at `top`. What a remote that is a folder names
    relatively is taken from the clone's `.dvc`, as DVC does. `objects` becomes the cache. Raises
    `DataError` for what is no configuration, or has no default remote.
    """
    remotes: dict[str, dict[str, str]] = {}
    default = ""
    for text, own_files in trusted:
        parsed = _parsed(text)
        if parsed.has_section("core"):
            default = _plain(parsed["core"].get("remote", default)).lower()
        for name, values in _remotes(parsed):
            remotes.setdefault(name, {}).update(_taken(name, values, top, own_files=own_files))
    if default not in remotes:
        raise DataError(
            f"data: .dvc/config names the default remote {short_text(default)}, and has no such one"
            if default
            else "data: .dvc/config names no default remote: where the data lies is not known",
            hint=f"{REMOTE_HINT} In a pull request, the base commit's file counts.",
        )
    lines = [
        *("[core]", f"remote = {default}", "analytics = false", "check_update = false"),
        *("autostage = false", "no_scm = true"),
        *("[cache]", f"dir = {_quoted(str(objects))}", "type = copy"),
    ]
    for name, values in remotes.items():
        lines += [
            f"""['remote "{name}"']""",
            *(f"{key} = {value}" for key, value in values.items()),
        ]
    return "\n".join([*lines, ""]), default


def _parsed(data: bytes) -> RawConfigParser:
    if len(data) > MAX_CONFIG_BYTES:
        raise DataError(
            f"data: .dvc/config has {len(data):,} bytes; the limit is {MAX_CONFIG_BYTES:,}",
            hint=REMOTE_HINT,
        )
    parser = RawConfigParser(
        delimiters=("=",), comment_prefixes=("#",), default_section="", strict=True
    )
    try:
        parser.read_string(data.decode("utf-8"))
    except (Error, UnicodeDecodeError) as error:
        raise DataError(
            f"data: .dvc/config cannot be read: {short_text(str(error).splitlines()[0])}",
            hint=REMOTE_HINT,
        ) from error
    return parser


def _remotes(parsed: RawConfigParser) -> Iterator[tuple[str, dict[str, str]]]:
    for section in parsed.sections():
        found = _REMOTE.match(section)
        if found is not None:
            yield found["name"].lower(), dict(parsed[section])


def _taken(name: str, values: dict[str, str], top: Path, *, own_files: bool) -> dict[str, str]:
    """The values of a remote that say where it is and who asks."""
    taken: dict[str, str] = {}
    for key, value in values.items():
        if not value.isprintable() or not re.fullmatch(r"[a-z0-9_]{1,100}", key):
            raise DataError(
                f"data: .dvc/config: {short_text(key)} of the remote {short_text(name)} has a "
                "value of more than one line",
                hint=REMOTE_HINT,
            )
        plain = _plain(value)
        if key in LEFT_OUT:
            if key in {"worktree", "version_aware"} and plain.lower() == "true":
                raise _no_digests(name, key)
        elif key == "url":
            taken[key] = _quoted(_place(plain, top))
        elif key in FILE_KEYS:
            taken[key] = _quoted(_configured_file(name, key, plain, top, own_files=own_files))
        else:
            taken[key] = value
    return taken


def _place(url: str, top: Path) -> str:
    """An address as it is, a folder by its absolute path."""
    if _ADDRESS.match(url) or Path(url).is_absolute():
        return url
    return os.path.normpath(top / ".dvc" / url)


def _configured_file(name: str, key: str, value: str, top: Path, *, own_files: bool) -> str:
    path = Path(os.path.normpath(top / ".dvc" / Path(value).expanduser()))
    if path.is_relative_to(top) and not own_files:
        raise DataError(
            f"data: .dvc/config: {key} of the remote {short_text(name)} lies in the clone: a pull "
            "request could write it",
            hint="Keep logins outside of the repository: in environment variables, or in the "
            "configuration of the gate's account (`dvc remote modify --global`).",
        )
    return str(path)


def _plain(value: str) -> str:
    """Without a comment behind it, and without the quotes around it."""
    text = value.strip()
    if text[:1] in {"'", '"'} and text.find(text[0], 1) > 0:
        return text[1 : text.find(text[0], 1)]
    return re.split(r"\s#", text, maxsplit=1)[0].strip()


def _quoted(value: str) -> str:
    return f"'{value}'" if "'" not in value else f'"{value}"'


def _no_digests(name: str, key: str) -> DataError:
    return DataError(
        f"data: the remote {short_text(name)} has {key} = true: it keeps files by their names and "
        "not by their digests",
        hint="Push to a remote without it: `dvc remote add -d NAME URL`, `dvc push`.",
    )
