"""Files that name packages or images: which of these are named without a version or a digest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from gate.audit.items import WishList
from gate.errors import DocumentError, SettingsError
from gate.text.strict_syntax import parse_toml
from gate.text.strict_yaml import parse_yaml

MAX_WISHES: Final = 5000
MAX_NAME: Final = 100
# PEP 508: a name, extras, then what is asked of the version; conda writes one `=`
_WISH: Final = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*+)\s*+(?:\[[^\]]*+\])?+\s*+(?P<rest>.*)$"
)
_ONE_VERSION: Final = re.compile(r"^={1,3}\s*+[^\s*,;]++\s*+(?:;.*|--hash.*|\\)?$")
_ADDRESS: Final = re.compile(r"^@\s*\S+(?:@[0-9a-f]{40}|sha256[=:])")
_FROM: Final = re.compile(
    r"^\s*+FROM\s++(?:--\S++\s++)*+(?P<image>\S++)(?:\s++AS\s++(?P<stage>\S++))?+", re.IGNORECASE
)


def wish_list(path: str, data: bytes) -> WishList | None:
    """The packages that a file asks for; None for a file that asks for none, or that is unreadable.

    Understands requirements files, `pyproject.toml` (project.dependencies) and conda's
    `environment.yml`.
    """
    name = PurePosixPath(path).name
    try:
        if name == "pyproject.toml":
            wishes = _of_project(parse_toml(data.decode("utf-8")))
        elif name.endswith((".yml", ".yaml")):
            wishes = _of_conda(parse_yaml(data, path)[0])
        else:
            wishes = _of_requirements(data.decode("utf-8").splitlines())
    except (ValueError, RecursionError, MemoryError, SettingsError, DocumentError):
        return None
    named = sorted({_name(wish): wish for wish in wishes if _name(wish)}.items())[:MAX_WISHES]
    if not named:
        return None
    unpinned = tuple(name for name, wish in named if not _is_pinned(wish))
    return WishList(path=path, packages=len(named), unpinned=unpinned)


def unpinned_images(data: bytes) -> tuple[str, ...]:
    """Base images of a Dockerfile that are named without a digest; stages of its own do not count.

    `ARG` is not filled in: an image that one names is not known here.
    """
    stages: set[str] = {"scratch"}
    found: list[str] = []
    for line in data.decode("utf-8", "replace").splitlines():
        match = _FROM.match(line)
        if match is None:
            continue
        image = match["image"]
        if image.lower() not in stages and "@sha256:" not in image and "$" not in image:
            found.append(image[:MAX_NAME])
        if match["stage"]:
            stages.add(match["stage"].lower())
    return tuple(dict.fromkeys(found))


def _name(wish: str) -> str:
    match = _WISH.match(wish)
    return match["name"][:MAX_NAME] if match is not None else ""


def _is_pinned(wish: str) -> bool:
    match = _WISH.match(wish)
    rest = match["rest"].strip() if match is not None else ""
    return bool(_ONE_VERSION.match(rest) or _ADDRESS.match(rest))


def _of_requirements(lines: Iterable[str]) -> list[str]:
    plain = (re.sub(r"(?:^|\s)#.*$", "", line).strip() for line in lines)
    return [line for line in plain if line and not line.startswith("-")]


def _of_project(document: Mapping[str, Any]) -> list[str]:
    project = document.get("project")
    wishes = project.get("dependencies", []) if isinstance(project, dict) else []
    return [wish.strip() for wish in wishes if isinstance(wish, str)] if _is_list(wishes) else []


def _of_conda(document: object) -> list[str]:
    wishes = document.get("dependencies") if isinstance(document, dict) else None
    if not isinstance(wishes, list):
        return []
    found = [wish.strip() for wish in wishes if isinstance(wish, str)]
    for nested in (wish.get("pip") for wish in wishes if isinstance(wish, dict)):
        found += [wish.strip() for wish in nested or () if isinstance(wish, str)]
    return found


def _is_list(value: object) -> bool:
    return isinstance(value, list)
