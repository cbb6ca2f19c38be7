"""Keys and tokens, read only when they are needed.

The gate asks only after the last training process is gone; until then nothing of them is in a
variable of the program.
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

# The runner sets both for a job with the permission `id-token: write`, and for no job of a fork.
REQUEST_URL_VARIABLE = "ACTIONS_ID_TOKEN_REQUEST_URL"
REQUEST_TOKEN_VARIABLE = "ACTIONS_ID_TOKEN_REQUEST_TOKEN"  # noqa: S105 - the name, not the secret


class _JobIdentity:
    """What a job of GitHub Actions may say who it is with."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def may_identify(self) -> bool:
        """Whether the runner gave this job what it takes."""
        return bool(
            self._variables.get(REQUEST_URL_VARIABLE)
            and self._variables.get(REQUEST_TOKEN_VARIABLE)
        )

    def identity_request(self) -> IdentityRequest | None:
        """The address and the secret, or None without `id-token: write`."""
        if not self.may_identify():
            return None
        return IdentityRequest(
            url=self._variables[REQUEST_URL_VARIABLE],
            token=self._variables[REQUEST_TOKEN_VARIABLE],
            server_url=self._variables.get("GITHUB_SERVER_URL", "https://github.com").rstrip("/"),
        )


class _Keys(_JobIdentity):
    """A signing key at a place, or in a variable, with its pass phrase in another one."""

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
        """Whether there is anything to sign with; reads no secret."""
        return self._place is not None or self._given(self._key_variable)

    def names_file(self) -> bool:
        """Whether there is a key in PEM; reads no secret."""
        return isinstance(self._place, FilePlace) or self._given(self._key_variable)

    def check_signer(self, *, checkout: Path | None, allow_plain: bool) -> None:
        """`SettingsError` where what was named can give no signature; reads no secret.

        No program below `checkout` is started to sign.
        """
        if self.names_key():
            self._check_named(checkout, allow_plain=allow_plain)
        if self.names_file() and not allow_plain and not self._given(self._passphrase_variable):
            raise SettingsError("no pass phrase was given for the signing key", hint=self._hint)

    def _check_named(self, checkout: Path | None, *, allow_plain: bool) -> None:
        # slow to import, and most calls name no key
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
            with self._place.path.open("rb", buffering=0) as file:
                head = key_head(file)
        refuse_head(head, shown, allow_plain=allow_plain)
        if ENCRYPTED_LABEL in head and not self._given(self._passphrase_variable):
            raise SettingsError(
                f"{shown} is encrypted, and no pass phrase was given", hint=self._passphrase_hint
            )

    def secret_files(self) -> tuple[Path, ...]:
        """Where key, PIN or token are in a file; none is opened."""
        if self._place is None:
            return ()
        from gate.package.signers import secret_files  # noqa: PLC0415 - as above

        return secret_files(self._place, self._variables)

    def signing_key(self) -> bytes | None:
        """The private key in PEM, or None where none was given or it is no file."""
        if isinstance(self._place, FilePlace):
            return self._files.read_bytes(self._place.path, max_bytes=MAX_KEY_BYTES)
        return self._read(self._key_variable)

    def passphrase(self) -> bytes | None:
        """The pass phrase of a key in PEM, or None."""
        return self._read(self._passphrase_variable)

    def signer(self) -> Signer | None:
        """The key in a token, in a vault or behind a program, or None when none was named."""
        if self._place is None or isinstance(self._place, FilePlace):
            return None
        from gate.package.signers import open_signer  # noqa: PLC0415 - as above

        return open_signer(self._place, self._files, self._variables)

    def _given(self, name: str) -> bool:
        return bool(self._variables.get(name, "").strip())

    def _read(self, name: str) -> bytes | None:
        return self._variables.get(name, "").encode() or None


class FileSecrets(_Keys):
    """For the command line: the key's place, the pass phrase of a file from one variable."""

    _passphrase_variable = PASSPHRASE_VARIABLE
    _passphrase_hint = f"Set {PASSPHRASE_VARIABLE} to its pass phrase."
    _hint = f"Set {PASSPHRASE_VARIABLE}, or accept a plain key with --allow-plain-key."

    def token(self) -> str:
        """None: the command line posts nothing."""
        return ""


class InputSecrets(_Keys):
    """For the action: the step's inputs, which the runner hands over as variables."""

    _key_variable = "INPUT_SIGNING_KEY"
    _passphrase_variable = "INPUT_SIGNING_KEY_PASSPHRASE"  # noqa: S105 - the name, not the secret
    _hint = "Give it as input signing_key_passphrase, from a secret."
    _passphrase_hint = _hint

    def __init__(self, variables: Mapping[str, str], files: Files) -> None:
        place = variables.get("INPUT_SIGNER", "").strip()
        super().__init__(read_signer_place(place) if place else None, files, variables)

    def token(self) -> str:
        """The input `token`."""
        return self._variables.get("INPUT_TOKEN", "").strip()

    def _read(self, name: str) -> bytes | None:
        # the line end of a secret that was pasted is no part of it
        return self._variables.get(name, "").strip().encode() or None
