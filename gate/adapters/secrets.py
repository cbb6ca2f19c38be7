"""Keys and tokens, read only when they are needed.

The gate asks only after the last training process is gone; until then nothing of them is in a
variable of the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gate.ports import Files
from gate.records.sealed.identity import IdentityRequest

MAX_KEY_BYTES = 64 * 1024
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


class FileSecrets(_JobIdentity):
    """For the command line: the key from a file, its pass phrase from one variable."""

    def __init__(self, key: Path | None, files: Files, variables: Mapping[str, str]) -> None:
        super().__init__(variables)
        self._key = key
        self._files = files

    def signing_key(self) -> bytes | None:
        """The file's content, or None when no file was named."""
        if self._key is None:
            return None
        return self._files.read_bytes(self._key, max_bytes=MAX_KEY_BYTES)

    def passphrase(self) -> bytes | None:
        """The pass phrase from the environment, or None."""
        return self._variables.get(PASSPHRASE_VARIABLE, "").encode() or None

    def token(self) -> str:
        """None: the command line posts nothing."""
        return ""


class InputSecrets(_JobIdentity):
    """For the action: the step's inputs, which the runner hands over as variables."""

    def signing_key(self) -> bytes | None:
        """The input `signing_key`, or None when it is empty."""
        return self._input("SIGNING_KEY").encode() or None

    def passphrase(self) -> bytes | None:
        """The input `signing_key_passphrase`, or None when it is empty."""
        return self._input("SIGNING_KEY_PASSPHRASE").encode() or None

    def token(self) -> str:
        """The input `token`."""
        return self._input("TOKEN")

    def _input(self, name: str) -> str:
        # the line end of a secret that was pasted is no part of it
        return self._variables.get(f"INPUT_{name}", "").strip()
