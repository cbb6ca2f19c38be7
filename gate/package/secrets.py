"""Read keys and tokens, and only when they are needed.

The gate calls the methods that return a secret only after the last training process is gone (T1).
The other methods ask whether a secret is there, and read at most the first line of a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from gate.errors import SettingsError
from gate.package.signing import IdentityRequest, Signer
from gate.settings.signer_places import FilePlace, SignerPlace, read_signer_place
from gate.system.files.port import Files
from gate.text.untrusted_text import safe_line

MAX_KEY_BYTES = 64 * 1024
ENCRYPTED_LABEL = "BEGIN ENCRYPTED PRIVATE KEY"
PASSPHRASE_VARIABLE = "REPRO_GATE_PASSPHRASE"  # noqa: S105 - the name, not the secret

# The runner sets both for a job with the permission `id-token: write`, and never for a job of a
# fork.
REQUEST_URL_VARIABLE = "ACTIONS_ID_TOKEN_REQUEST_URL"
REQUEST_TOKEN_VARIABLE = "ACTIONS_ID_TOKEN_REQUEST_TOKEN"  # noqa: S105 - the name, not the secret


class _JobIdentity:
    """The variables with which a job of GitHub Actions can ask for its identity token."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def may_identify(self) -> bool:
        """Return whether the runner gave this job address and secret; reads no secret."""
        return bool(
            self._variables.get(REQUEST_URL_VARIABLE)
            and self._variables.get(REQUEST_TOKEN_VARIABLE)
        )

    def identity_request(self) -> IdentityRequest | None:
        """Return the address and secret to ask with, or None without `id-token: write`."""
        if not self.may_identify():
            return None
        return IdentityRequest(
            url=self._variables[REQUEST_URL_VARIABLE],
            token=self._variables[REQUEST_TOKEN_VARIABLE],
            server_url=self._variables.get("GITHUB_SERVER_URL", "https://github.com").rstrip("/"),
        )


class _Keys(_JobIdentity):
    """A signing key at a place or in a variable, and its pass phrase in another variable.

    Subclasses set the names of the variables.
    """

    _key_variable = ""
    _passphrase_variable = ""
    _hint = ""
    _passphrase_hint = ""

    def __init__(
        self, place: SignerPlace | None, files: Files, variables: Mapping[str, str]
    ) -> None:
        super().__init__(variables)
        self._place = place
        self._files = files

    def names_key(self) -> bool:
        """Return whether there is a key to sign with; reads no secret."""
        return self._place is not None or self._given(self._key_variable)

    def names_file(self) -> bool:
        """Return whether the key is in PEM, in a file or a variable; reads no secret."""
        return isinstance(self._place, FilePlace) or self._given(self._key_variable)

    def check_signer(self, *, checkout: Path | None, allow_plain: bool) -> None:
        """Raise `SettingsError` if the named key or program cannot sign; reads no secret.

        A program below `checkout` is refused, because the pull request controls it.
        """
        if self.names_key():
            self._check_named(checkout, allow_plain=allow_plain)
        if self.names_file() and not allow_plain and not self._given(self._passphrase_variable):
            raise SettingsError("no pass phrase was given for the signing key", hint=self._hint)

    def _check_named(self, checkout: Path | None, *, allow_plain: bool) -> None:
        # Imported late: slow, and most calls name no key.
        from gate.package.signers import (  # noqa: PLC0415
            check_place,
            key_head,
            refuse_head,
            refuse_programs_below,
        )

        pem, shown = self._variables.get(self._key_variable, "").strip(), "the signing key"
        head = key_head(BytesIO(pem.encode()))
        if self._place is not None:
            check_place(self._place, self._files, self._variables)
            if checkout is not None:
                refuse_programs_below(checkout, self._place, self._variables)
        if isinstance(self._place, FilePlace):
            shown = f"{shown} {safe_line(str(self._place.path))}"
            # Unbuffered, because a buffer would read the secret that follows the first line (T1).
            with self._place.path.open("rb", buffering=0) as file:
                head = key_head(file)
        refuse_head(head, shown, allow_plain=allow_plain)
        if ENCRYPTED_LABEL in head and not self._given(self._passphrase_variable):
            raise SettingsError(
                f"{shown} is encrypted, and no pass phrase was given", hint=self._passphrase_hint
            )

    def secret_files(self) -> tuple[Path, ...]:
        """Return the files with the key, PIN or token, without opening them."""
        if self._place is None:
            return ()
        from gate.package.signers import secret_files  # noqa: PLC0415 - as above

        return secret_files(self._place, self._variables)

    def signing_key(self) -> bytes | None:
        """Return the private key in PEM, or None if there is none or it is not a file."""
        if isinstance(self._place, FilePlace):
            return self._files.read_bytes(self._place.path, max_bytes=MAX_KEY_BYTES)
        return self._read(self._key_variable)

    def passphrase(self) -> bytes | None:
        """Return the pass phrase of a key in PEM, or None."""
        return self._read(self._passphrase_variable)

    def signer(self) -> Signer | None:
        """Return the signer in a token, in a vault or behind a program, or None for a file."""
        if self._place is None or isinstance(self._place, FilePlace):
            return None
        from gate.package.signers import open_signer  # noqa: PLC0415 - as above

        return open_signer(self._place, self._files, self._variables)

    def _given(self, name: str) -> bool:
        return bool(self._variables.get(name, "").strip())

    def _read(self, name: str) -> bytes | None:
        return self._variables.get(name, "").encode() or None


class FileSecrets(_Keys):
    """The secrets of the command line: a key's place, and a file's pass phrase in one variable."""

    _passphrase_variable = PASSPHRASE_VARIABLE
    _passphrase_hint = f"Set {PASSPHRASE_VARIABLE} to its pass phrase."
    _hint = f"Set {PASSPHRASE_VARIABLE}, or accept a plain key with --allow-plain-key."

    def token(self) -> str:
        """Return the empty text: the command line posts nothing."""
        return ""


class InputSecrets(_Keys):
    """The secrets of the action: the step's inputs, which the runner passes as variables."""

    _key_variable = "INPUT_SIGNING_KEY"
    _passphrase_variable = "INPUT_SIGNING_KEY_PASSPHRASE"  # noqa: S105 - the name, not the secret
    _hint = "Give it as input signing_key_passphrase, from a secret."
    _passphrase_hint = _hint

    def __init__(self, variables: Mapping[str, str], files: Files) -> None:
        place = variables.get("INPUT_SIGNER", "").strip()
        super().__init__(read_signer_place(place) if place else None, files, variables)

    def token(self) -> str:
        """Return the input `token`."""
        return self._variables.get("INPUT_TOKEN", "").strip()

    def _read(self, name: str) -> bytes | None:
        # A pasted secret often ends with a line end that is not part of it.
        return self._variables.get(name, "").strip().encode() or None
