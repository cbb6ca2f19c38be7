"""The functions of the Python API, and what they return."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro_gate.engine import started

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a gate call came to.

    `outcome` is a word of the table of outcomes, such as `reproduced` or `code-drift`. `text` is
    the summary that a pull request's comment begins with. `recorded` names the files of the
    baseline that this call wrote. `document` is the whole of verdict.json.
    """

    outcome: str
    passes: bool
    cause: str
    commit: str
    checkpoint_digest: str
    text: str
    recorded: tuple[str, ...] = ()
    document: Mapping[str, Any] = field(repr=False)

    def series(self, name: str) -> dict[int, float | None]:
        """A metric of the first strict run, step by step; `KeyError` with the names there are."""
        known = {one["name"]: one for one in self.document["series"]}
        if name not in known:
            raise KeyError(f"no metric {name!r}; there are: {', '.join(known) or 'none'}")
        return dict(zip(known[name]["steps"], known[name]["values"], strict=True))


class NotReproducibleError(AssertionError):
    """A training differs from its repeat or its baseline; `verdict` has every fact."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Digest:
    """A saved state's digest: over all of it, and of each part (model, optimizer, ...).

    `document` is what `repro-gate digest --json` prints.
    """

    root: str
    parts: Mapping[str, str]
    format: str
    document: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How two saved states compare; `differences` has a row for each leaf that differs.

    `document` is what `repro-gate diff --json` prints.
    """

    equal: bool
    differences: tuple[Mapping[str, Any], ...]
    document: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedPackage:
    """A package whose seals hold; `document` is what `repro-gate verify --json` prints."""

    outcome: str
    commit: str
    document: Mapping[str, Any] = field(repr=False)


# What the pytest plug-in sets and reads: its option, and the files that were recorded since it
# last asked.
UPDATE = [False]
_RECORDED: list[str] = []


def taken_records() -> list[str]:
    """The files of baselines that calls of this process have recorded since the last question."""
    names = _RECORDED.copy()
    _RECORDED.clear()
    return names


def assert_reproducible(  # noqa: PLR0913 - each is an argument of the marker
    command: str | Sequence[str] | None = None,
    *,
    max_steps: int | None = None,
    config: PathLike = "",
    gate_id: str = "",
    settings: Mapping[str, Any] | None = None,
    folder: PathLike = ".",
    out: PathLike = "",
    update: bool | None = None,
    reason: str = "",
) -> Verdict:
    """Train twice in strict mode, compare with the baseline, and return the verdict if it passes.

    `command` and `max_steps` go on top of the repro-gate.yml in `folder` or at the root of its
    repository, as do `settings`, with that file's keys. Without arguments the file decides all.
    A call that trains what the file trains shares its baseline; any other has one of its own,
    below `.repro-gate/`, named after `gate_id` or the command. `out` is the output folder.

    `update` records the result as the baseline, for `reason`; None means what pytest was asked
    with `--repro-gate-update`.

    Raises `NotReproducibleError`, an `AssertionError`, where two runs differ, the result is not the
    baseline's, or there is no baseline; `ReproGateError` where nothing could be judged.
    """
    __tracebackhide__ = True
    wanted = UPDATE[0] if update is None else update
    call = {
        "start": str(Path(folder).absolute()),
        "command": command if command is None or isinstance(command, str) else list(command),
        "max_steps": max_steps,
        "config": os.fspath(config),
        "gate_id": gate_id,
        "settings": _plain(settings),
        "out": os.fspath(out),
        "update": wanted,
        "reason": reason or ("pytest --repro-gate-update" if UPDATE[0] else ""),
    }
    verdict = _verdict(started(["python-call"], call))
    _RECORDED.extend(verdict.recorded)
    if not verdict.passes and not verdict.recorded:
        raise NotReproducibleError(verdict)
    return verdict


def _plain(settings: object) -> object:
    """Settings as JSON has them; what is no mapping is refused where all arguments are checked."""
    if settings is None:
        return {}
    return dict(settings) if isinstance(settings, Mapping) else settings


def load_verdict(path: PathLike) -> Verdict:
    """The verdict in a file `verdict.json`, or in the output folder of a gate call.

    Raises `ReproGateError` for a file that is none.
    """
    return _verdict(started(["python-call", "--verdict", os.fspath(path)]))


def digest(path: PathLike, *, exclude: Mapping[str, str] | None = None) -> Digest:
    """The digest of a checkpoint in any known format, or of a package.tar; nothing in it is run.

    `exclude` has a reason for each pattern of leaves to leave out. Raises `ReproGateError` for a
    file that cannot be read.
    """
    document = started(["digest", "--json", *_excluded(exclude), "--", os.fspath(path)])
    return Digest(
        root=document["root"],
        parts=document["parts"],
        format=document["format"],
        document=document,
    )


def diff(a: PathLike, b: PathLike, *, exclude: Mapping[str, str] | None = None) -> Difference:
    """Compare two checkpoints leaf by leaf; they may be in different formats.

    Raises `ReproGateError` for a file that cannot be read.
    """
    document = started(["diff", "--json", *_excluded(exclude), "--", os.fspath(a), os.fspath(b)])
    return Difference(
        equal=document["equal"], differences=tuple(document["differences"]), document=document
    )


def verify(
    package: PathLike,
    *,
    commit: str,
    trusted_keys: PathLike = "",
    certificate_identity: str = "",
    certificate_oidc_issuer: str = "",
    repository: str = "",
) -> VerifiedPackage:
    """Verify a sealed package offline: its seals, every byte, the verdict and the commit.

    Name a trust file, or the identity and issuer of a seal without a key. Raises `ReproGateError`
    with exit code 1 where anything does not hold.
    """
    options = {
        "--commit": commit,
        "--trusted-keys": os.fspath(trusted_keys),
        "--certificate-identity": certificate_identity,
        "--certificate-oidc-issuer": certificate_oidc_issuer,
        "--repository": repository,
    }
    words = [f"{name}={value}" for name, value in options.items() if value or name == "--commit"]
    document = started(["verify", "--json", *words, "--", os.fspath(package)])
    return VerifiedPackage(
        outcome=document["outcome"], commit=document["commit"], document=document
    )


def _excluded(rules: Mapping[str, str] | None) -> list[str]:
    return [f"--exclude={pattern}={reason}" for pattern, reason in (rules or {}).items()]


def _verdict(answer: Mapping[str, Any]) -> Verdict:
    document = answer["verdict"]
    captured = [state["root"] for state in document["states"] if state["name"] == "captured"]
    return Verdict(
        outcome=document["outcome"],
        passes=document["passes"],
        cause=document["cause"],
        commit=document["commit"],
        checkpoint_digest=captured[0] if captured else "",
        text=answer["text"],
        recorded=tuple(answer.get("recorded", ())),
        document=document,
    )
