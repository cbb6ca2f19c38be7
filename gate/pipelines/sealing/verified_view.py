"""What a verification established, for a terminal of 80 columns and for programs."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from typing import Final

from gate.records.sealed.attestation import StatementKind, VerifiedPackage

WIDTH: Final = 80
LABEL: Final = 13
NOT_CHECKED: Final = "whether the training code was honest about its numbers"
COUNTED: Final = {1: "one", 2: "two", 3: "three"}


def verified_json(found: VerifiedPackage) -> str:
    """Every fact by its name."""
    facts = asdict(found) | {"isolation": found.isolation.model_dump(mode="json")}
    return json.dumps(facts, indent=2, sort_keys=True) + "\n"


def verified_text(found: VerifiedPackage) -> str:
    """What was checked, a line for each question that a reader has."""
    rows = [
        *_signed(found),
        ("package", f"the sealed file, byte for byte; all {found.members} files as listed"),
        ("verdict", f"{found.level}, {found.strict_runs} equal strict runs"),
        *_made(found),
        ("isolation", found.isolation.described),
        ("checkpoint", found.checkpoint_root),
        *(("note", note) for note in found.notes),
        ("not checked", NOT_CHECKED),
    ]
    lines = [f"verified: {found.outcome}, commit {found.commit}"]
    for label, text in rows:
        lines += textwrap.wrap(
            text,
            WIDTH,
            initial_indent=f"  {label:<{LABEL - 2}}",
            subsequent_indent=" " * LABEL,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines) + "\n"


def _signed(found: VerifiedPackage) -> list[tuple[str, str]]:
    names = ", ".join(kind.value for kind in found.statements)
    count, files = COUNTED[len(found.statements)], len(found.seals)
    signer = "identity" if found.identity else "key"
    signed = ("signed", f"{names}: {count} statements in {files} files, all by one {signer}")
    if found.identity:
        return [
            signed,
            ("identity", found.identity),
            ("issuer", found.issuer),
            ("logged", found.logged_at),
        ]
    return [signed, ("key", found.key_id)]


def _made(found: VerifiedPackage) -> list[tuple[str, str]]:
    rows = [
        ("made", f"{found.created_at} (the signer's claim)"),
        ("provenance", "says of settings, commit, data and baseline what the verdict says"),
    ]
    if StatementKind.MODEL in found.statements:
        files = "1 file" if found.model_files == 1 else f"{found.model_files} files"
        rows.append(("model", f"{found.model_folder}/: {files}, the ones that its signature lists"))
    return rows
