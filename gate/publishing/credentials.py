"""Find the login for a registry: in two variables, or in the file that `docker login` wrote.

A credential helper is never started, because it is a program that somebody else chose.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gate.errors import DocumentError, PublishError
from gate.system.files.port import Files
from gate.system.login import Login
from gate.text.strict_json import parse_json

USER_VARIABLE: Final = "REPRO_GATE_REGISTRY_USER"
PASSWORD_VARIABLE: Final = "REPRO_GATE_REGISTRY_PASSWORD"  # noqa: S105 - the name, not the secret
MAX_CONFIG_BYTES: Final = 1024 * 1024
# the key of docker's own registry in its configuration file
HUB_KEY: Final = "https://index.docker.io/v1/"
LOGIN_HINT: Final = (
    f"Set {USER_VARIABLE} and {PASSWORD_VARIABLE}, or log in with `docker login`; a credential "
    "helper is not asked."
)


def registry_login(host: str, variables: Mapping[str, str], files: Files) -> Login | None:
    """Return the login for a registry, or None without one; `PublishError` for half a login."""
    user, password = (variables.get(name, "") for name in (USER_VARIABLE, PASSWORD_VARIABLE))
    if user and password:
        return Login.basic(user, password)
    if user or password:
        missing = PASSWORD_VARIABLE if user else USER_VARIABLE
        raise PublishError(f"{missing} is not set", hint=LOGIN_HINT)
    return _from_docker(host, variables, files)


def login_file(variables: Mapping[str, str]) -> Path | None:
    """Return the file that may contain the login, or None if variables contain the login."""
    folder, home = variables.get("DOCKER_CONFIG", ""), variables.get("HOME", "")
    if variables.get(PASSWORD_VARIABLE) or not (folder or home):
        return None
    return (Path(folder) if folder else Path(home) / ".docker").absolute() / "config.json"


# botocore, "Configuring credentials": variables that name a file with a login or a token
S3_FILES: Final = (
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
)


def s3_login_files(variables: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files and the folder that boto3 may read a login from, even if missing."""
    home = variables.get("HOME", "")
    named = [Path(variables[name]).absolute() for name in S3_FILES if variables.get(name)]
    return (*named, *((Path(home) / ".aws",) if home else ()))


def _from_docker(host: str, variables: Mapping[str, str], files: Files) -> Login | None:
    path = login_file(variables)
    if path is None or not files.exists(path):
        return None
    text = files.read_bytes(path, max_bytes=MAX_CONFIG_BYTES)
    try:
        config = parse_json(text, str(path))
    except DocumentError as error:
        raise PublishError(error.message, hint=LOGIN_HINT) from error
    auths = config.get("auths") if isinstance(config, dict) else None
    if not isinstance(auths, dict):
        return None
    names = (host, f"https://{host}", f"https://{host}/v2/", f"https://{host}/v1/")
    hub = (HUB_KEY,) if host == "registry-1.docker.io" else ()
    login = next((auths[name] for name in (*names, *hub) if name in auths), None)
    coded = login.get("auth") if isinstance(login, dict) else None
    return _decoded(coded, path) if isinstance(coded, str) and coded else None


def _decoded(coded: str, path: Path) -> Login:
    try:
        user, colon, password = base64.b64decode(coded, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        colon = ""
    if not colon:
        raise PublishError(f"{path}: the login of the registry cannot be read", hint=LOGIN_HINT)
    return Login.basic(user, password)
