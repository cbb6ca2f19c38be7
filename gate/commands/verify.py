"""`repro-gate verify`: check that a package is what its seals say, offline.

Everything that parses the package or its seals runs in a confined child, because a package may
come from anyone. With `--explain` nothing is verified here: the command prints a script that
checks the same with standard tools.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.commands.options import AsJson
from gate.commands.program import FILES
from gate.commands.trust import (
    CertificateIdentity,
    CertificateIssuer,
    Trust,
    TrustedKeysFile,
    TrustedRootFile,
    chosen_trust,
    judged_for_words,
)
from gate.errors import ExitCode, SettingsError
from gate.evidence.run_evidence import StateName, StateRoots
from gate.isolation.confined_look import read_apart, reading_seconds
from gate.isolation.modes import IsolationMode
from gate.package.content import check_model, check_states
from gate.package.instructions import Artifact, TrustFile, outside_sections
from gate.package.keyless import read_identity_bundle
from gate.package.model_signing import ModelCheck, model_folder
from gate.package.provenance import read_provenance
from gate.package.seal_files import find_seals, seal_places
from gate.package.seal_opening import Opened, open_seals, opened_seal
from gate.package.seal_records import ED25519, Expected, StatementKind, TrustedKeys, VerifiedPackage
from gate.package.signing import Identity, decode_base64
from gate.package.statement import read_statement
from gate.package.ustar import SUMS_NAME
from gate.package.verify import check_expected
from gate.system.clock import SystemClock
from gate.system.files.port import Files
from gate.text.documents import RecordForm
from gate.text.plain_records import PlainForm
from gate.text.untrusted_text import escaped_lines, safe_line

HEAD = (
    "# Verifies the package without repro-gate; paste it part by part where you are now.\n"
    "# Stop where a part prints something else; do not unpack such a package then."
)
ED25519_NOTE = (
    "# No model signature: OpenSSF Model Signing takes no Ed25519 key.\n"
    "# The provenance lists the same files with their SHA-256."
)


def explain_by_key(
    package: Path,
    chosen: Sequence[Path],
    trusted: tuple[str, TrustedKeys],
    expected: Expected,
    files: Files,
) -> str:
    """Return the commands that check seals made with a key, without this program.

    `chosen` are the seal files that the caller names; empty for those beside the package.
    `trusted` is the path and the content of the trust file. The package itself is not read. Raises
    `AttestationError` if a seal does not hold or is about another commit.
    """
    path, document = trusted
    opened, key = open_seals(find_seals(package, files, chosen), document)
    check_expected(read_statement(opened.payload(StatementKind.VERDICT, package)), expected)
    model = model_folder(read_provenance(opened.payload(StatementKind.PROVENANCE, package)).model)
    # OpenSSF Model Signing takes no Ed25519 key, so such a package has no seal of its model
    if model is not None and key.key_details != ED25519:
        opened.payload(StatementKind.MODEL, package)
    artifact = Artifact(
        package=str(package),
        commit=expected.commit.lower(),
        seals=_one_of_each(opened, package, chosen, files),
        trust=TrustFile(path=path, key_id=key.key_id),
        algorithm=key.key_details,
        model_folder=model.name if model is not None else "",
    )
    note = ED25519_NOTE if key.key_details == ED25519 else ""
    return _script(artifact, note)


def identity_artifact(
    package: Path, chosen: Sequence[Path], identity: Identity, expected: Expected, files: Files
) -> Artifact:
    """Return what the commands need to know of a package that was sealed by an identity.

    No signature is checked here: cosign does that when the user runs the commands. Raises
    `AttestationError` for a file that is not such a seal, and for a seal of another commit.
    """
    paths = [path for path, _ in seal_places(package, files, chosen)]
    seals = []
    for path, seal in zip(paths, find_seals(package, files, chosen), strict=True):
        envelope = read_identity_bundle(seal).dsse_envelope
        payload = decode_base64(envelope.payload, f"{seal.name}: the payload")
        kind = opened_seal(seal, envelope.payload_type, payload, "").kind
        if kind is StatementKind.VERDICT:
            # the repository may be only in the certificate, which cosign checks, not this function
            check_expected(read_statement(payload), replace(expected, repository=""))
        seals.append((kind, str(path)))
    commit = expected.commit.lower()
    return Artifact(package=str(package), commit=commit, seals=seals, identity=identity)


def explain_by_identity(artifact: Artifact, *, trusted_root: str) -> str:
    """Return the commands for seals by an identity: cosign checks certificate, log and signature.

    `trusted_root` is the path of the root of trust; empty for that of the public Sigstore services.
    """
    return _script(replace(artifact, trusted_root=trusted_root), "")


def _one_of_each(
    opened: Opened, package: Path, chosen: Sequence[Path], files: Files
) -> tuple[tuple[StatementKind, str], ...]:
    """Return one seal file per statement: the bare DSSE envelope if there is one.

    `seal_places` lists a bare envelope before the Sigstore bundle of the same statement.
    """
    places = [str(path) for path, _ in seal_places(package, files, chosen)]
    first: dict[StatementKind, str] = {}
    for place, kind in zip(places, opened.kinds, strict=True):
        first.setdefault(kind, place)
    return tuple(first.items())


def _script(artifact: Artifact, note: str) -> str:
    parts = [f"# {part.title}\n{part.lines}" for part in outside_sections(artifact)]
    return "\n".join((HEAD, "", *parts)) + (f"\n{note}\n" if note else "")


WIDTH: Final = 80
LABEL: Final = 14
NOT_CHECKED: Final = "whether the training code was honest about its numbers"
OUTSIDE: Final = "To check it without repro-gate: the same command with --explain."
UNSIGNED: Final = "keyid and hint in the seal files: they only say which key to try"
NOT_SEALED_HINT: Final = (
    "hint: Do not load it as that model. Use the file in the package, or name the file that you "
    "deploy in train.checkpoint, so that a gate seals it as it is."
)
_REPORTED: Final = ", as another job reports it: not checked"
COUNTED: Final = {1: "one", 2: "two", 3: "three"}


def verified_json(
    verified: VerifiedPackage, recomputed: Sequence[StateName] = (), model: ModelCheck | None = None
) -> str:
    """Return all facts of a verified package as JSON; the arguments are those of `verified_text`.

    In ASCII, as `json.dumps` writes by default.
    """
    facts = asdict(verified) | {
        "isolation": verified.isolation.model_dump(mode="json"),
        "states": [state.model_dump(mode="json") for state in verified.states],
        "recomputed": [name.value for name in recomputed],
        "model_file": asdict(model) if model is not None else None,
    }
    return json.dumps(facts, indent=2, sort_keys=True) + "\n"


def _runs(verified: VerifiedPackage) -> str:
    return verified.one_run or f"{verified.strict_runs} equal strict runs"


def verified_text(
    verified: VerifiedPackage, recomputed: Sequence[StateName] = (), model: ModelCheck | None = None
) -> str:
    """Return what was checked, as lines for a terminal.

    `recomputed` names the states whose root digests were recomputed from the bytes in the package.
    `model` is the check of the file that `--model` names, or None. For a file without a tensor that
    is the whole answer: nothing in it could be compared.
    """
    if model is not None and not model.has_tensors:
        return "".join(f"{line}\n" for part in _model_head(model) for line in _wrapped(part))
    listed = f"its {verified.members} files agree with {SUMS_NAME}"
    rows = [
        *_signed(verified),
        ("package", f"the sealed file, byte for byte; {listed}"),
        ("verdict", f"{verified.level}, {_runs(verified)}"),
        *_made(verified),
        *_base(verified),
        (
            "isolation",
            f"{verified.isolation.described}{_REPORTED if verified.imported_evidence else ''}",
        ),
        *((state.name.value, _root(state, recomputed)) for state in verified.states),
        ("all states", verified.checkpoint_root),
        *(("note", note) for note in verified.notes),
        ("not checked", NOT_CHECKED),
    ]
    lines = [f"verified: {verified.outcome}, commit {verified.commit}"]
    if model is not None:
        lines[:0] = [line for part in _model_head(model) for line in _wrapped(part)]
        rows[:0] = _in_the_file(model)
    for label, text in rows:
        lines += _wrapped(text, f"  {label:<{LABEL - 2}}", " " * LABEL)
    lines += ["", OUTSIDE]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, start: str = "", further: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=start,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _base(verified: VerifiedPackage) -> list[tuple[str, str]]:
    """Return the row about the merge that was judged; none if the commit was judged by itself."""
    if not verified.base_commit:
        return []
    return [("judged for", judged_for_words(verified.base_branch, verified.base_commit))]


def _root(state: StateRoots, recomputed: Sequence[StateName]) -> str:
    how = "recomputed" if state.name in recomputed else "not in the package, so not recomputed"
    return f"{state.root} ({how})"


def _model_head(model: ModelCheck) -> tuple[str, ...]:
    """Return whether the file contains the sealed model, and what to do if it does not."""
    if model.holds_the_model:
        if model.identical:
            return (f"{model.shown} is, value for value, what the sealed run saved",)
        return (f"{model.shown} holds the tensors of the sealed run's model",)
    if model.has_the_weights:
        head = f"{model.shown} is not the sealed model: it holds more than what was sealed"
        return head, NOT_SEALED_HINT
    why = "" if model.has_tensors else ": it contains no tensors of a model"
    return f"{model.shown} is not the sealed run's model{why}", NOT_SEALED_HINT


def _in_the_file(model: ModelCheck) -> list[tuple[str, str]]:
    rows = [part.described for part in model.parts]
    if model.beyond.count:
        rows.append(f"not sealed: {model.beyond.described}")
    if model.values.count:
        rows.append(f"values that were not sealed: {model.values.described}")
    return [("in the file", text) for text in (*rows, *model.notes)]


def _signed(verified: VerifiedPackage) -> list[tuple[str, str]]:
    names = ", ".join(kind.value for kind in verified.statements)
    count, files = COUNTED[len(verified.statements)], len(verified.seals)
    signer = "identity" if verified.identity else "key"
    signed = ("signed", f"{names}: {count} statements in {files} files, by one {signer}")
    if verified.identity:
        return [
            signed,
            ("identity", verified.identity),
            ("issuer", verified.issuer),
            ("logged", verified.logged_at),
        ]
    return [signed, ("key", verified.key_id), ("not signed", UNSIGNED)]


def _made(verified: VerifiedPackage) -> list[tuple[str, str]]:
    rows = [
        ("made", f"{verified.created_at} (the signer's claim)"),
        ("provenance", "agrees with the verdict on settings, commit, data and baseline"),
    ]
    if StatementKind.MODEL in verified.statements:
        files = "1 file" if verified.model_files == 1 else f"{verified.model_files} files"
        text = f"{verified.model_folder}/: {files}, exactly those that its signature lists"
        rows.append(("model", text))
    return rows


Checked = tuple[VerifiedPackage, tuple[StateName, ...], ModelCheck | None]
CHECKED: Final[RecordForm[Checked]] = RecordForm(Checked)
AGE = re.compile(r"(?P<number>[0-9]{1,5})(?P<unit>[dh])")
AGE_UNITS = {"d": "days", "h": "hours"}


class LeastIsolation(StrEnum):
    """The weakest isolation that a caller accepts; `none` accepts every training."""

    NONE = "none"
    UID = "uid"
    CONTAINER = "container"


def _age(text: str) -> timedelta:
    """Parse an age such as `90d` or `12h`; raises `SettingsError` for any other text."""
    match = AGE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"--max-age {text!r} is not an age", hint="Give days or hours, for example 90d or 12h."
        )
    return timedelta(**{AGE_UNITS[match["unit"]]: int(match["number"])})


Commit = Annotated[
    str, typer.Option(help="Full hash of the commit that the package must be about.")
]
Seals = Annotated[
    list[Path] | None,
    typer.Option(
        "--seal", "--bundle", help="Seal to check, repeatable; default: all next to the package."
    ),
]
Repository = Annotated[
    str, typer.Option(help="owner/name of the repository that it must be about.")
]
Base = Annotated[str, typer.Option(help="Branch that it must have been judged for, such as main.")]
MaxAge = Annotated[
    str, typer.Option(help="Maximum age of the seal, by its own timestamp: 90d, 12h.")
]
Least = Annotated[
    LeastIsolation,
    typer.Option(
        help="Weakest isolation of the training that is accepted; another job's report is not."
    ),
]
Package = Annotated[Path | None, typer.Argument(help="The package.tar to verify.")]
NamedPackage = Annotated[
    Path | None, typer.Option("--package", help="The same, where --model names a file.")
]
ModelFile = Annotated[
    Path | None, typer.Option("--model", help="Model file or folder: is it the sealed run's?")
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print the commands for openssl, cosign and others.")
]


def verify_command(  # noqa: PLR0913 - each parameter is an option of the command
    commit: Commit,
    package: Package = None,
    named: NamedPackage = None,
    trusted_keys: TrustedKeysFile = None,
    seal: Seals = None,
    repository: Repository = "",
    *,
    base: Base = "",
    max_age: MaxAge = "",
    model: ModelFile = None,
    least_isolation: Least = LeastIsolation.NONE,
    certificate_identity: CertificateIdentity = "",
    certificate_oidc_issuer: CertificateIssuer = "",
    trusted_root: TrustedRootFile = None,
    explain: Explain = False,
    as_json: AsJson = False,
) -> None:
    """Verify a sealed package offline.

    Checks all seals, every byte, the verdict, the commit and the content of the states.

    Example: repro-gate verify demo-out/package.tar --trusted-keys trusted-keys.json --commit SHA
    """
    if explain and as_json:
        raise SettingsError(
            "--explain prints commands and no JSON", hint="Leave out --json, or --explain."
        )
    place = _only(package, named)
    identity = Identity(name=certificate_identity, issuer=certificate_oidc_issuer)
    trust = chosen_trust(trusted_keys, identity, trusted_root)
    oldest = SystemClock().now() - _age(max_age) if max_age else None
    expected = Expected(
        commit=commit,
        repository=repository,
        base_branch=base,
        not_before=oldest,
        least_isolation=IsolationMode(least_isolation.value),
    )
    seals = tuple(seal or ())
    trust.make_ready()
    paths = (place, *seals, *(() if model is None else (model,)))
    apart = partial(read_apart, what=safe_line(str(place)), seconds=reading_seconds(*paths))
    if explain:
        text = apart(PlainForm(str), lambda: _explained(place, seals, trust, expected))
        sys.stdout.write(escaped_lines(text))
        return

    def look() -> Checked:
        sealed = trust.verified(place, expected, seals)
        # only after the seals: they say which digests the content has to have
        recomputed = check_states(place, sealed.states, FILES)
        return sealed, recomputed, check_model(model, place, FILES) if model is not None else None

    verified, recomputed, checked = apart(CHECKED, look)
    # escaped, because the package's author chose some of the names in the output
    show = verified_json if as_json else verified_text
    sys.stdout.write(escaped_lines(show(verified, recomputed, checked)))
    if checked is not None and not checked.holds_the_model:
        raise typer.Exit(int(ExitCode.FAIL))


def _only(package: Path | None, named: Path | None) -> Path:
    """Return the package, given as the argument or with `--package`.

    Raises `SettingsError` unless exactly one of the two is given.
    """
    chosen = package or named
    if chosen is None or (package is not None and named is not None):
        raise SettingsError(
            "verify takes one package",
            hint="For example: repro-gate verify package.tar, or --model FILE --package "
            "package.tar.",
        )
    return chosen


def _explained(package: Path, seals: tuple[Path, ...], trust: Trust, expected: Expected) -> str:
    """Return the commands that check the same without this program, by key or by identity."""
    if trust.keys is not None:
        known = (str(trust.keys), trust.trusted_keys())
        return explain_by_key(package, seals, known, expected, FILES)
    artifact = identity_artifact(package, seals, trust.identity, expected, FILES)
    return explain_by_identity(artifact, trusted_root=str(trust.root or ""))
