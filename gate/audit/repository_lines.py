"""Judge what scripts and package lists show about data, configuration and seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from gate.audit.items import (
    AuditedPart,
    AuditItem,
    LineKind,
    RepositoryFacts,
    ScriptLine,
    WishList,
    failed_item,
    first,
    next_command,
    passed_item,
    unknown,
)
from gate.data.declared import data_names, entries_for, entry_at
from gate.errors import DocumentError, SettingsError
from gate.text.strict_syntax import parse_toml
from gate.text.strict_yaml import parse_yaml

MAX_WISHES: Final = 5000
MAX_NAME: Final = 100
# PEP 508: name, extras, then the version's constraint; conda writes a single `=`
_WISH: Final = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*+)\s*+(?:\[[^\]]*+\])?+\s*+(?P<rest>.*)$"
)
# Possessive quantifiers keep matching linear, because these texts are untrusted.
_ONE_VERSION: Final = re.compile(r"^={1,3}\s*+[^\s*,;]++\s*+(?:;.*|--hash.*|\\)?$")
_ADDRESS: Final = re.compile(r"^@\s*\S+(?:@[0-9a-f]{40}|sha256[=:])")
_FROM: Final = re.compile(
    r"^\s*+FROM\s++(?:--\S++\s++)*+(?P<image>\S++)(?:\s++AS\s++(?P<stage>\S++))?+", re.IGNORECASE
)


def wish_list(path: str, data: bytes) -> WishList | None:
    """Return the packages that a file asks for, or None if it asks for none or is unreadable.

    Reads requirements files, `pyproject.toml` (project.dependencies) and conda's `environment.yml`.
    """
    name = PurePosixPath(path).name
    try:
        if name == "pyproject.toml":
            wishes = _of_project(parse_toml(data.decode("utf-8")))
        elif name.endswith((".yml", ".yaml")):
            wishes = _of_conda(parse_yaml(data, path, foreign=True)[0])
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
    """Return a Dockerfile's base images without a digest, except its own stages.

    `ARG` is not substituted, so an image named by one is not reported.
    """
    stages: set[str] = {"scratch"}
    images: list[str] = []
    for line in data.decode("utf-8", "replace").splitlines():
        match = _FROM.match(line)
        if match is None:
            continue
        image = match["image"]
        if image.lower() not in stages and "@sha256:" not in image and "$" not in image:
            images.append(image[:MAX_NAME])
        if match["stage"]:
            stages.add(match["stage"].lower())
    return tuple(dict.fromkeys(images))


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
    packages = [wish.strip() for wish in wishes if isinstance(wish, str)]
    for nested in (wish.get("pip") for wish in wishes if isinstance(wish, dict)):
        packages += [wish.strip() for wish in nested or () if isinstance(wish, str)]
    return packages


def _is_list(value: object) -> bool:
    return isinstance(value, list)


ALL: Final = "all"
SHOWN_PATH: Final = 60
CHANGED_DATA: Final = "A data change would look like a code change."


def lines_data(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    """Check declared data, downloads, and reads from outside the repository."""
    part = AuditedPart.DATA
    items: list[AuditItem] = []
    declared = facts.settings.data if facts.settings is not None else ()
    if declared:
        names = first([source.name for source in declared])
        items.append(passed_item(part, "declared-data", f"{len(declared)} declared: {names}"))
    downloads = _of(facts, LineKind.DOWNLOADS)
    if downloads and not declared:
        items.append(
            failed_item(
                part,
                "downloads",
                f"downloads without a digest: {_places(downloads)}",
                risk=CHANGED_DATA,
                remedy=_pinned(downloads[0]),
            )
        )
    outside = [line for line in _of(facts, LineKind.READS) if _lies_outside(line, facts)]
    if outside and not declared:
        items.append(
            failed_item(
                part,
                "undeclared-data",
                f"reads from outside the commit: {_places(outside)}",
                risk=CHANGED_DATA,
                remedy=_declared(outside[0], facts),
            )
        )
    return tuple(items) or (_unseen_data(facts),)


def _unseen_data(facts: RepositoryFacts) -> AuditItem:
    lines = _of(facts, LineKind.READS)
    read = [line for line in lines if _is_in_commit(line, facts)]
    computed = [line for line in lines if line not in read]
    answer = "the scripts were not seen to read data"
    if computed:
        answer = f"only running it shows where this reads from: {_places(computed)}"
    elif read:
        answer = f"all files that it was seen to read are in the repository: {_places(read)}"
    return unknown(
        AuditedPart.DATA,
        "declared-data",
        f"no data is declared, and {answer}",
        risk=CHANGED_DATA,
        remedy="Run the gate. It names each file that the training reads from outside the commit, "
        "with the line of `data` to paste into repro-gate.yml.",
        command=next_command(facts),
    )


def _pinned(line: ScriptLine) -> str:
    """Return how to make this line get the same bytes each time."""
    if line.subject.startswith(("https://", "http://")):
        entry = f"data: [{{url: {line.subject[:SHOWN_PATH]}, sha256: …}}]"
        return (
            f"Declare it in repro-gate.yml: `{entry}`. `sha256sum` of the downloaded file prints "
            "its digest. Add `at:` with the path where the script looks for it."
        )
    return (
        "Name one version in the call, such as `revision=` with a commit of the hub. Or download "
        "once, and declare the folder in repro-gate.yml: `data: [{path: /srv/data}]`."
    )


def _declared(line: ScriptLine, facts: RepositoryFacts) -> str:
    """Return the settings line that declares what a script reads, where the script looks for it."""
    first_step = "" if facts.settings is not None else "Run `repro-gate init`. "
    subject = line.subject
    if "://" in subject:
        return f"{first_step}{_pinned(line)}"
    path = PurePosixPath(subject)
    if path.is_absolute() or ".." in path.parts:
        names = data_names((subject,))
        entry, use = entries_for(names), f", and read $REPRO_GATE_DATA/{names[subject]}"
    else:
        entry, use = entry_at(f"{facts.place}/{subject}", subject), ""
    return f"{first_step}Declare it in repro-gate.yml: `{entry}`{use}."


def _lies_outside(line: ScriptLine, facts: RepositoryFacts) -> bool:
    """Return whether a path in a script is outside the repository or not one of its files.

    A computed path is unknown and gives False. So does a bare file name, because the run itself may
    write that file.
    """
    path = PurePosixPath(line.subject)
    if not line.subject or "://" in line.subject:
        return "://" in line.subject
    if path.is_absolute() or ".." in path.parts:
        return True
    if len(path.parts) < 2:  # noqa: PLR2004 - a folder and a name
        return False
    return not _is_in_commit(line, facts)


def _is_in_commit(line: ScriptLine, facts: RepositoryFacts) -> bool:
    """Return whether a path in a script names a file of the repository."""
    path = PurePosixPath(line.subject)
    if not line.subject or path.is_absolute() or ".." in path.parts:
        return False
    above = PurePosixPath(line.file).parents
    return any(_is_there((place / path).as_posix(), facts) for place in above)


def _is_there(path: str, facts: RepositoryFacts) -> bool:
    return path in facts.names


def lines_configuration(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    """Check for flags with which a script works against determinism."""
    flags = _of(facts, LineKind.FLAG)
    if not flags:
        return ()
    return (
        failed_item(
            AuditedPart.CONFIGURATION,
            "nondeterministic-flags",
            f"turned against determinism: {_places(flags)}",
            risk="An algorithm is chosen by timing, or adds in a different order in each run.",
            remedy="Remove these lines; the gate sets all of them from outside.",
        ),
    )


def lines_seeds(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    """Check the seeds that the gate or the scripts set, and generators without a seed."""
    part = AuditedPart.SEEDS
    items: list[AuditItem] = []
    unseeded = _of(facts, LineKind.UNSEEDED)
    if unseeded:
        items.append(
            failed_item(
                part,
                "unseeded-generator",
                f"a different seed in each run: {_places(unseeded)}",
                risk="Each run draws different numbers, so it is a different experiment.",
                remedy="Give each a constant seed, such as 0.",
            )
        )
    return (*items, *_set_seeds(facts))


def _set_seeds(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    part, code = AuditedPart.SEEDS, "seeds"
    if facts.settings is not None:
        seed = facts.settings.train.seed
        answer = f"train.seed {seed} is set for Python, NumPy and torch before the script starts"
        return (passed_item(part, code, answer),)
    seeds = _of(facts, LineKind.SEEDS)
    drawn = {line.subject for line in _of(facts, LineKind.DRAWS)}
    seeded = {line.subject for line in seeds}
    missing = sorted(drawn - seeded) if ALL not in seeded else []
    command = next_command(facts)
    risk = "Initial weights, data order and dropout differ between runs."
    remedy = "Let the gate seed every generator before the script starts."
    if missing:
        answer = f"used and never seeded: {first(missing)}"
        return (failed_item(part, code, answer, risk=risk, remedy=remedy, command=command),)
    if seeds:
        answer = (
            f"set at {_places(seeds)}; static analysis cannot tell whether this runs before "
            "the first draw"
        )
        return (unknown(part, code, answer, risk=risk, remedy=remedy, command=command),)
    if facts.scripts:
        return (
            failed_item(
                part,
                code,
                "no script sets a seed",
                risk=risk,
                remedy=remedy,
                command=next_command(facts),
            ),
        )
    answer = "there is no Python file to read"
    return (unknown(part, code, answer, risk=risk, remedy=remedy, command=command),)


def _of(facts: RepositoryFacts, kind: LineKind) -> tuple[ScriptLine, ...]:
    return tuple(sorted(line for line in facts.lines if line.kind is kind))


def _places(lines: tuple[ScriptLine, ...] | list[ScriptLine]) -> str:
    return first([f"{line.place} {_said(line)}" for line in lines])


def _said(line: ScriptLine) -> str:
    """Return the call or flag, with the path that it is given."""
    paths = line.kind in {LineKind.READS, LineKind.DOWNLOADS} and line.subject
    return f"{line.what}({line.subject[:SHOWN_PATH]})" if paths else line.what
