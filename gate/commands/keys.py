"""`repro-gate keys`: generate a key pair, and maintain the trust file.

The trust file lists the public keys whose seals a verifier accepts. Changes are written under a
lock of its folder, and the file is parsed in a confined child.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from gate.commands.options import AsJson, console
from gate.commands.program import FILES, MAX_DOCUMENT_BYTES
from gate.errors import AttestationError, SealServiceError, SettingsError, StorageError
from gate.isolation.confined_look import read_apart
from gate.package.keys import (
    generate_private_key,
    private_pem,
    public_key,
    public_pem,
    read_trusted_keys,
    trusted_key,
    with_key,
)
from gate.package.seal_records import MAX_KEY_TEXT, KeyAlgorithm, KeyStatus, TrustedKey, TrustedKeys
from gate.package.secrets import FileSecrets
from gate.package.trust_file import (
    find_key,
    read_public_key,
    with_key_retired,
    with_key_revoked,
    write_trusted_keys,
)
from gate.pipelines.call_setup import parse_settings_apart
from gate.pipelines.settings_file import nearest_settings, settings_bytes
from gate.report.escape import clean
from gate.settings.signer_places import FilePlace, SignerPlace, read_signer_place
from gate.system.clock import SystemClock
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line

HEADINGS: Final = ("id", "algorithm", "state", "since (UTC)", "comment")
ALGORITHMS: Final = {"PKIX_ECDSA_P256_SHA_256": "P-256", "PKIX_ED25519": "Ed25519"}
SHOWN_ID_CHARACTERS = 16
WIDTH = 80
# Terminal cells that a comment gets at least, however long the ids are.
MIN_COMMENT_CELLS = 10


def keys_view(document: TrustedKeys) -> Text:
    """Show the keys, sorted by id.

    An id is shortened to as many characters as make it unique in the list. A comment is cut at the
    width of the terminal.
    """
    if not document.keys:
        return Text("No keys.")
    length = _id_length([key.key_id for key in document.keys])
    keys = sorted(document.keys, key=lambda entry: entry.key_id)
    rows = [HEADINGS, *(_row(key, length) for key in keys)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(HEADINGS) - 1)]
    return Text("\n").join(_line(row, widths) for row in rows)


def _line(row: tuple[str, ...], widths: list[int]) -> Text:
    *facts, comment = row
    line = "".join(f"{fact:<{width}}  " for fact, width in zip(facts, widths, strict=True))
    shown = Text(comment)
    # `truncate` counts terminal cells, not characters: a Chinese character takes two
    shown.truncate(max(WIDTH - len(line), MIN_COMMENT_CELLS), overflow="ellipsis")
    return Text((line + shown.plain).rstrip())


def _row(key: TrustedKey, length: int) -> tuple[str, ...]:
    texts = (clean(text) for text in (key.comment, key.reason) if text)
    return (
        key.key_id[:length],
        ALGORITHMS[key.key_details],
        key.status.value,
        datetime.fromisoformat(_since(key)).astimezone(UTC).strftime("%Y-%m-%d %H:%M"),
        # untrusted text: a terminal and the log of a job must obey nothing of it
        safe_line("; ".join(texts)),
    )


def _since(key: TrustedKey) -> str:
    """Return the time since which the key has its present state, in ISO 8601."""
    if key.status is KeyStatus.REVOKED:
        return key.revoked_at or key.added_at
    return key.retired_at or key.added_at


def _id_length(ids: list[str]) -> int:
    """Return how many characters, at least 16, make every id in the list unique."""
    lengths = range(SHOWN_ID_CHARACTERS, max(map(len, ids)) + 1)
    return next(n for n in lengths if len({key_id[:n] for key_id in ids}) == len(ids))


ENTRY: Final[RecordForm[TrustedKey]] = RecordForm(TrustedKey)
TRUSTED: Final[RecordForm[TrustedKeys]] = RecordForm(TrustedKeys)
MAX_PEM_BYTES: Final = 64 * 1024
TRUST_FILE: Final = Path(".repro-gate/trusted-keys.json")
TrustFile = Annotated[
    Path | None,
    typer.Option("--trusted-keys", help="The trust file; default: that of the settings."),
]
KeyId = Annotated[
    str, typer.Argument(metavar="ID", help="The key's id, or a unique beginning of it.")
]
Comment = Annotated[str, typer.Option(help="Comment to store with the public key.")]

keys_app = typer.Typer(
    help="Generate signing keys, manage trusted ones.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@keys_app.command("generate")
def generate_command(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the three files.")],
    comment: Comment = "",
    algorithm: Annotated[
        KeyAlgorithm, typer.Option(help="ecdsa-p256 verifies with every outside tool.")
    ] = KeyAlgorithm.ECDSA_P256,
    *,
    allow_plain: Annotated[
        bool, typer.Option("--allow-plain", help="Write the private key without a pass phrase.")
    ] = False,
) -> None:
    """Generate a key pair and a trust file.

    The pass phrase comes from REPRO_GATE_PASSPHRASE.

    Example: REPRO_GATE_PASSPHRASE=$(openssl rand -base64 24) repro-gate keys generate --out keys
    """
    _check_text("--comment", comment)
    secret, trust = folder / "signing-key.pem", folder / "trusted-keys.json"
    # Parse the trust file before generating the key: parsing forks a child, and a child forked
    # later would have a copy of the private key in its memory.
    before = None if FILES.exists(secret) else _bytes_of(trust)
    known = _read(trust) if before is not None else TrustedKeys(keys=())
    key = generate_private_key(algorithm)
    passphrase = FileSecrets(None, FILES, os.environ).passphrase()
    pem = private_pem(key, passphrase, allow_plain=allow_plain)
    entry = trusted_key(key.public_key(), added_at=_now(), comment=comment)
    # Checked again under the lock: the file may have changed since it was parsed, and parsing here
    # would fork a child with a copy of the key.
    with FILES.one_writer(folder):
        # an overwritten private key cannot be recovered
        if FILES.exists(secret):
            raise SettingsError(f"{secret} already holds a key", hint="Choose another folder.")
        if _bytes_of(trust) != before:
            raise SettingsError(
                f"{safe_line(str(trust))}: changed meanwhile", hint="Run the command again."
            )
        data = write_trusted_keys(with_key(known, entry))
        # The temporary file behind this write has mode 0600 too, so that no other account can read
        # the key at any time.
        FILES.write_bytes(secret, pem, mode=0o600)
        FILES.write_bytes(folder / "gate-public-key.pem", public_pem(key.public_key()))
        FILES.write_bytes(trust, data)
    sys.stdout.write(f"key {entry.key_id}\nprivate: {secret}\npublic:  {trust}\n")


@keys_app.command("list")
def list_command(trusted_keys: TrustFile = None, *, as_json: AsJson = False) -> None:
    """List trusted keys and whether they count.

    The comment is followed by the reason for a revocation; --json prints ids and texts in full.

    Example: repro-gate keys list --trusted-keys keys/trusted-keys.json
    """
    document = _read(_trust_file(trusted_keys))
    if as_json:
        # `json.dumps` escapes all but ASCII here: a terminal would act on some control characters
        # that JSON allows.
        facts = document.model_dump(mode="json")
        sys.stdout.write(json.dumps(facts, indent=2, sort_keys=True) + "\n")
        return
    console().print(keys_view(document))


@keys_app.command("add")
def add_command(
    public: Annotated[
        str,
        typer.Argument(
            metavar="PUBLIC.pem|WHERE",
            help="The public key in PEM; or pkcs11:…, vault:MOUNT/KEY or exec:COMMAND, which "
            "supply "
            "it.",
        ),
    ],
    trusted_keys: TrustFile = None,
    comment: Comment = "",
) -> None:
    """Trust a public key from now on.

    ECDSA on P-256, or Ed25519. Creates the file if there is none.

    Example: repro-gate keys add gate-public-key.pem --comment "release team, 2026"
    """
    _check_text("--comment", comment)
    entry = _entry(read_signer_place(public), comment)
    path = _trust_file(trusted_keys)
    with FILES.one_writer(path.parent):
        known = _read(path) if FILES.exists(path) else TrustedKeys(keys=())
        FILES.write_bytes(path, write_trusted_keys(with_key(known, entry)))
    _tell(f"key {entry.key_id} added to {path}")


@keys_app.command("retire")
def retire_command(key: KeyId, trusted_keys: TrustFile = None) -> None:
    """Stop a key; its earlier seals still count.

    Use it for a key that you replace. Revoke one that was lost or stolen.

    Example: repro-gate keys retire 3f9a
    """
    now = _now()
    path = _trust_file(trusted_keys)

    def retired(document: TrustedKeys) -> tuple[TrustedKeys, str]:
        retired_key = find_key(document, key, safe_line(str(path)))
        return with_key_retired(document, retired_key, at=now), retired_key.key_id

    key_id = _changed(path, retired)
    _tell(f"key {key_id} retired: a seal made after {now} does not verify")


@keys_app.command("revoke")
def revoke_command(
    key: KeyId,
    trusted_keys: TrustFile = None,
    at: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time from which it may have leaked, such as 2026-01-31T12:00:00Z; default: now.",
        ),
    ] = "",
    reason: Annotated[str, typer.Option(help="Reason, stored in the file.")] = "",
) -> None:
    """Revoke a key; none of its seals counts.

    For a key that was lost or stolen. This cannot be undone.

    Example: repro-gate keys revoke 3f9a --reason "laptop stolen"
    """
    _check_text("--reason", reason)
    since = _past_time(at) if at else _now()
    path = _trust_file(trusted_keys)

    def revoked(document: TrustedKeys) -> tuple[TrustedKeys, str]:
        revoked_key = find_key(document, key, safe_line(str(path)))
        return with_key_revoked(document, revoked_key, at=since, reason=reason), revoked_key.key_id

    key_id = _changed(path, revoked)
    _tell(f"key {key_id} revoked: no seal of it verifies any more")


def _trust_file(given: Path | None) -> Path:
    """Return the trust file that the caller names, or that the settings name, or the default.

    The settings are the nearest ones, in this folder or above it. Raises `StorageError` where a
    path that the caller did not name leads through a symbolic link.
    """
    if given is not None:
        return given
    settings = nearest_settings(Path())
    if settings is None:
        return _without_links(TRUST_FILE, Path())
    text = settings_bytes(settings, FILES)
    chosen = parse_settings_apart(text, str(settings)).signing.trusted_keys
    return _without_links(settings.parent / chosen, settings.parent)


def _without_links(path: Path, below: Path) -> Path:
    """Return `path` if no part of it below `below` is a symbolic link.

    The folder may be an unpacked archive of a stranger, whose link could lead this call to write
    outside of it.
    """
    FILES.refuse_links(path.absolute(), below=below.absolute())
    return path


def _entry(place: SignerPlace, comment: str) -> TrustedKey:
    """Return a trust-file entry for the key at `place`.

    A PEM file is parsed in a confined child. Any other place is a signer, such as an HSM or Vault,
    which reports its public key. Raises `SettingsError` if it reports none that can be used.
    """
    now = _now()
    if isinstance(place, FilePlace):
        pem, shown = (
            FILES.read_bytes(place.path, max_bytes=MAX_PEM_BYTES),
            safe_line(str(place.path)),
        )

        def read() -> TrustedKey:
            return trusted_key(read_public_key(pem, shown), added_at=now, comment=comment)

        return read_apart(ENTRY, read, what=shown)
    signer = FileSecrets(place, FILES, os.environ).signer()
    assert signer is not None  # noqa: S101 - it is no file
    try:
        key = public_key(signer.public_key(), "the signer's public key")
    except SealServiceError:
        raise
    except AttestationError as fault:
        # as in a gate call: the caller named the signer, its PIN or its token
        raise SettingsError(fault.message, hint=fault.hint, details=fault.details) from fault
    return trusted_key(key, added_at=now, comment=comment)


def _changed(path: Path, change: Callable[[TrustedKeys], tuple[TrustedKeys, str]]) -> str:
    """Apply `change` to the trust file under its lock, and return the key's id.

    `change` returns the new document and the id of the key that it changed. Raises `StorageError`
    if there is no such file.
    """
    if not FILES.exists(path):
        raise _no_file(path)
    # read under the lock as well: two calls at once would otherwise lose one of the changes
    with FILES.one_writer(path.parent):
        document, key_id = change(_read(path))
        FILES.write_bytes(path, write_trusted_keys(document))
    return key_id


def _read(path: Path) -> TrustedKeys:
    if not FILES.exists(path):
        raise _no_file(path)
    data, shown = FILES.read_bytes(path, max_bytes=MAX_DOCUMENT_BYTES), safe_line(str(path))
    return read_apart(TRUSTED, lambda: read_trusted_keys(data, shown), what=shown)


def _bytes_of(path: Path) -> bytes | None:
    return FILES.read_bytes(path, max_bytes=MAX_DOCUMENT_BYTES) if FILES.exists(path) else None


def _no_file(path: Path) -> StorageError:
    return StorageError(
        f"there is no trust file {safe_line(str(path))}",
        hint="Name it with --trusted-keys, or begin one with `repro-gate keys add PUBLIC.pem`.",
    )


def _check_text(option: str, text: str) -> None:
    """Raise `SettingsError` for text that is too long or has characters that cannot be seen."""
    if len(text) > MAX_KEY_TEXT:
        raise SettingsError(
            f"{option} has {len(text):,} characters", hint=f"Give at most {MAX_KEY_TEXT}."
        )
    if not text.isprintable():
        raise SettingsError(
            f"{option} holds a control character", hint="Give one line of plain text."
        )


def _past_time(text: str) -> str:
    """Return the time in UTC, cut to whole seconds.

    Raises `SettingsError` for a text that is no time, lacks an offset, or is in the future.
    """
    hint = "Give a time with its offset, such as 2026-01-31T12:00:00Z."
    try:
        time = datetime.fromisoformat(text)
        since = time.astimezone(UTC).replace(microsecond=0).isoformat()
    except (ValueError, OverflowError) as error:
        raise SettingsError(f"--at {safe_line(text)!r} is not a time", hint=hint) from error
    if time.tzinfo is None:
        raise SettingsError(f"--at {safe_line(text)!r} has no offset", hint=hint)
    if time > SystemClock().now():
        raise SettingsError(
            f"--at {safe_line(text)!r} is in the future",
            hint="A key is revoked at once; leave --at out, or give a time in the past.",
        )
    return since


def _now() -> str:
    return SystemClock().now().isoformat()


def _tell(line: str) -> None:
    sys.stdout.write(f"{safe_line(line)}\n")
