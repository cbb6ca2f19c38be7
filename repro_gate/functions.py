"""The functions of the Python API, and the records that they return."""

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
    """The verdict of a gate call.

    `outcome` is a word of README's table of outcomes, such as `reproduced` or `code-drift`. `text`
    is the summary with which the comment on a pull request begins. `recorded` names the baseline
    files that this call wrote. `document` is the whole content of verdict.json.
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
        """Return a metric of the first strict run as value by step; None for a NaN or infinity.

        Raises `KeyError`, naming the metrics that exist, for an unknown name.
        """
        known = {one["name"]: one for one in self.document["series"]}
        if name not in known:
            raise KeyError(f"no metric {name!r}; there are: {', '.join(known) or 'none'}")
        return dict(zip(known[name]["steps"], known[name]["values"], strict=True))


class NotReproducibleError(AssertionError):
    """A training differs from its repeat or its baseline; `verdict` has all the facts."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Digest:
    """The digests of a checkpoint: `root` over everything, and `parts` for model, optimizer, ...

    `document` is the JSON that `repro-gate digest --json` prints.
    """

    root: str
    parts: Mapping[str, str]
    format: str
    document: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The comparison of two checkpoints; `differences` has a row for each leaf that differs.

    `document` is the JSON that `repro-gate diff --json` prints.
    """

    equal: bool
    differences: tuple[Mapping[str, Any], ...]
    document: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedPackage:
    """A package whose seals hold; `document` is the JSON that `repro-gate verify --json` prints."""

    outcome: str
    commit: str
    document: Mapping[str, Any] = field(repr=False)


# State that the pytest plug-in shares with the calls in a test: its option, and the baseline files
# recorded since it last read them. A marker and a plain call thereby behave alike.
UPDATE = [False]
_RECORDED: list[str] = []


def taken_records() -> list[str]:
    """Return the baseline files that this process has recorded since the last call, and reset."""
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

    `command`, `max_steps` and `settings` (with the keys of repro-gate.yml) override the settings
    file in `folder` or at the root of its repository. Without arguments that file decides
    everything. A call that trains what the file trains shares the file's baseline. Any other call
    has a separate baseline below `.repro-gate/`, named after `gate_id` or the command. `out` is the
    output folder.

    `update` records the result as the baseline, with `reason`. None means: if pytest was started
    with `--repro-gate-update`.

    Raises `NotReproducibleError`, an `AssertionError`, if two runs differ, if the result differs
    from the baseline, or if there is no baseline. Raises `ReproGateError` if the training could not
    be judged.
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
    """Return the settings as a plain dict for JSON.

    A value that is no mapping is passed on: the program checks all arguments and reports it.
    """
    if settings is None:
        return {}
    return dict(settings) if isinstance(settings, Mapping) else settings


def load_verdict(path: PathLike) -> Verdict:
    """Return the verdict in a file `verdict.json`, or in the output folder of a gate call.

    Raises `ReproGateError` for a file that contains no verdict.
    """
    return _verdict(started(["python-call", "--verdict", os.fspath(path)]))


def digest(path: PathLike, *, exclude: Mapping[str, str] | None = None) -> Digest:
    """Return the digests of a checkpoint in any known format, or of a package.tar.

    No code in the file is run. `exclude` maps patterns of leaves to leave out to the reason for
    each. Raises `ReproGateError` for a file that cannot be read.
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

    `exclude` is as for `digest`. Raises `ReproGateError` for a file that cannot be read.
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

    Pass a trust file, or for a seal without a key the identity and the issuer. Raises
    `ReproGateError` with exit code 1 if any check fails.
    """
    options = {
        "--commit": commit,
        "--trusted-keys": os.fspath(trusted_keys),
        "--certificate-identity": certificate_identity,
        "--certificate-oidc-issuer": certificate_oidc_issuer,
        "--repository": repository,
    }
    # an empty commit is passed too: the program refuses it, as it refuses any other wrong commit
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
