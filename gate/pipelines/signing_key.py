"""The key that seals: refused early where it cannot, opened after the last training process."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from gate.package.signing_ports import Secrets, Signer
from gate.pipelines.adapters import Adapters
from gate.verdict.request import GateRequest


def refuse_unusable_key(request: GateRequest, secrets: Secrets, *, allow_plain: bool) -> None:
    """`SettingsError` for a key that can give no signature; an hour of training earlier."""
    # a fork's pull request is never sealed
    if not request.from_fork:
        # a pull request fills the checkout: nothing in it may run beside the key
        checkout = request.top if request.pull_request else None
        secrets.check_signer(checkout=checkout, allow_plain=allow_plain)


def with_secrets_closed(request: GateRequest, adapters: Adapters, secrets: Secrets) -> Adapters:
    """The same adapters; while a training runs, no other account reads the secrets' files."""
    logins = adapters.publishers.login_files if request.settings.publish.oci else ()
    files = (*secrets.secret_files(), *logins)

    def closed(places: tuple[Path, ...], way: Path) -> AbstractContextManager[None]:
        return adapters.closed((*places, *files), way)

    return replace(adapters, closed=closed)


def open_signing_key(secrets: Secrets, *, allow_plain: bool) -> Signer | None:
    """The key that was named, wherever it is; None where none was.

    Only to be called when no process of the training lives any more (T1 in docs/architecture.md).
    Raises `AttestationError` for a key that cannot be used.
    """
    elsewhere = secrets.signer()
    if elsewhere is not None:
        return elsewhere
    pem = secrets.signing_key()
    if pem is None:
        return None
    # slow to import, and most calls have no key
    from gate.package.keys import KeyFile, load_private_key  # noqa: PLC0415

    return KeyFile(load_private_key(pem, secrets.passphrase(), allow_plain=allow_plain))
