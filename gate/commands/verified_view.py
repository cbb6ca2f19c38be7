"""What a verification established, for a terminal of 80 columns and for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from gate.evidence.state_roots import StateName, StateRoots
from gate.package.model_check import ModelCheck, PartAnswer
from gate.package.seal_records import StatementKind, VerifiedPackage
from gate.package.ustar import SUMS_NAME

WIDTH: Final = 80
LABEL: Final = 14
NOT_CHECKED: Final = "whether the training code was honest about its numbers"
OUTSIDE: Final = "To check it without repro-gate: the same command with --explain."
UNSIGNED: Final = "keyid and hint in the seal files: they only say which key to try"
_REPORTED: Final = ", as another job reports it: not checked"
COUNTED: Final = {1: "one", 2: "two", 3: "three"}


def verified_json(
    found: VerifiedPackage, recomputed: Sequence[StateName] = (), model: ModelCheck | None = None
) -> str:
    """Every fact by its name."""
    facts = asdict(found) | {
        "isolation": found.isolation.model_dump(mode="json"),
        "states": [state.model_dump(mode="json") for state in found.states],
        "recomputed": [name.value for name in recomputed],
        "model_file": asdict(model) if model is not None else None,
    }
    return json.dumps(facts, indent=2, sort_keys=True) + "\n"


def verified_text(
    found: VerifiedPackage, recomputed: Sequence[StateName] = (), model: ModelCheck | None = None
) -> str:
    """What was checked, a line for each question that a reader has.

    `recomputed` are the states whose roots were made anew from the bytes in the package.
    """
    listed = f"its {found.members} files agree with {SUMS_NAME}"
    rows = [
        *_signed(found),
        ("package", f"the sealed file, byte for byte; {listed}"),
        ("verdict", f"{found.level}, {found.strict_runs} equal strict runs"),
        *_made(found),
        *_base(found),
        ("isolation", f"{found.isolation.described}{_REPORTED if found.imported_evidence else ''}"),
        *((state.name.value, _root(state, recomputed)) for state in found.states),
        ("all states", found.checkpoint_root),
        *(("note", note) for note in found.notes),
        ("not checked", NOT_CHECKED),
    ]
    lines = [f"verified: {found.outcome}, commit {found.commit}"]
    if model is not None:
        lines[0] = f"{_model_head(model)}\n{lines[0]}"
        rows[:0] = [("in the file", part.described) for part in model.parts]
    for label, text in rows:
        lines += textwrap.wrap(
            text,
            WIDTH,
            initial_indent=f"  {label:<{LABEL - 2}}",
            subsequent_indent=" " * LABEL,
            break_long_words=False,
            break_on_hyphens=False,
        )
    lines += ["", OUTSIDE]
    return "\n".join(lines) + "\n"


def _base(found: VerifiedPackage) -> list[tuple[str, str]]:
    """What the commit was to be merged into, as far as it was to be."""
    branch = f"a merge into {found.base_branch}" if found.base_branch else "a base commit"
    return [("judged for", f"{branch}, at {found.base_commit}")] if found.base_commit else []


def _root(state: StateRoots, recomputed: Sequence[StateName]) -> str:
    how = "recomputed" if state.name in recomputed else "not in the package, so not recomputed"
    return f"{state.root} ({how})"


def _model_head(model: ModelCheck) -> str:
    """The answer for a promotion."""
    if model.identical:
        return f"{model.shown} is, value for value, what the sealed run saved"
    if model.holds_the_model:
        return f"{model.shown} holds the tensors of the sealed run's model"
    if model.parts[0].answer is PartAnswer.EQUAL:
        return f"{model.shown} holds the sealed run's model, and tensors that the run did not have"
    return f"{model.shown} does not hold the sealed run's model"


def _signed(found: VerifiedPackage) -> list[tuple[str, str]]:
    names = ", ".join(kind.value for kind in found.statements)
    count, files = COUNTED[len(found.statements)], len(found.seals)
    signer = "identity" if found.identity else "key"
    signed = ("signed", f"{names}: {count} statements in {files} files, by one {signer}")
    if found.identity:
        return [
            signed,
            ("identity", found.identity),
            ("issuer", found.issuer),
            ("logged", found.logged_at),
        ]
    return [signed, ("key", found.key_id), ("not signed", UNSIGNED)]


def _made(found: VerifiedPackage) -> list[tuple[str, str]]:
    rows = [
        ("made", f"{found.created_at} (the signer's claim)"),
        ("provenance", "agrees with the verdict on settings, commit, data and baseline"),
    ]
    if StatementKind.MODEL in found.statements:
        files = "1 file" if found.model_files == 1 else f"{found.model_files} files"
        text = f"{found.model_folder}/: {files}, exactly those that its signature lists"
        rows.append(("model", text))
    return rows
