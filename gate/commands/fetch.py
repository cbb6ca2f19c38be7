"""`repro-gate fetch`."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.commands.options import AsJson, Config
from gate.commands.program import FILES
from gate.errors import RepositoryError, SettingsError
from gate.pipelines.entry import MAX_SETTINGS_BYTES, find_config, parse_settings_apart
from gate.publishing.artifact import PACKAGE_FILE, Pulled, WantedPackage
from gate.publishing.registry import OciRegistry
from gate.settings.delivery_sections import SigningSettings, check_repository
from gate.settings.gate_settings import GateSettings
from gate.system.gate_names import DEFAULT_GATE, GATE_ID
from gate.system.git.repository import GitRepository
from gate.text.package_names import MAX_PACKAGE_BYTES
from gate.text.untrusted_text import safe_line

FULL_HASH: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")


def fetch_command(  # noqa: PLR0913 - each parameter is an option of the command
    commit: Annotated[
        str, typer.Argument(help="Whose package: a full hash, or in a clone any name of a commit.")
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="registry/name, with @sha256:... a certain package of it; default: publish.oci of "
            "the settings.",
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write to; default: package-HASH.")
    ] = None,
    config: Config = "",
    gate_id: Annotated[
        str, typer.Option(help="Gate of the repository; default: report.gate_id of the settings.")
    ] = "",
    max_bytes: Annotated[
        int, typer.Option(min=1, help="A package above this size is refused.")
    ] = MAX_PACKAGE_BYTES,
    *,
    as_json: AsJson = False,
) -> None:
    """Fetch a sealed package from its registry.

    Every byte is checked against its digest; who sealed it is for `repro-gate verify` to say.

    Example: repro-gate fetch SHA --from registry.example.org/team/runs
    """
    settings, project = _settings(config)
    place, digest = _place(source, settings)
    full = _full_hash(commit)
    wanted = WantedPackage(
        commit=full, gate_id=_gate(gate_id, settings), digest=digest, max_bytes=max_bytes
    )
    folder = out or Path(f"package-{full[:12]}")
    pulled = OciRegistry(place, os.environ, FILES).pull(wanted, folder)
    signing = settings.signing if settings else SigningSettings()
    keys = os.path.relpath(project / signing.trusted_keys)
    _show(pulled, folder, keys, as_json=as_json)


def _full_hash(commit: str) -> str:
    if FULL_HASH.match(commit):
        return commit
    try:
        return GitRepository(Path.cwd()).resolve(commit)
    except RepositoryError as error:
        raise SettingsError(
            f"{safe_line(commit)!r} is no full hash, and cannot be looked up: {error.message}",
            hint="Give all digits of the hash, or call this in a clone that has the commit.",
        ) from error


def _settings(config: str) -> tuple[GateSettings | None, Path]:
    """The settings of the clone that the call is made in, None outside of one; their folder."""
    start = Path.cwd()
    top = next((each for each in (start, *start.parents) if (each / ".git").exists()), start)
    try:
        path = find_config(config, start, top)
    except SettingsError:
        if config:
            raise
        return None, start
    text = FILES.read_bytes(path, max_bytes=MAX_SETTINGS_BYTES)
    return parse_settings_apart(text, path.name), path.parent


def _place(source: str, settings: GateSettings | None) -> tuple[str, str]:
    """The name in a registry, and a digest or nothing."""
    if not source:
        if settings is None or settings.publish.oci is None:
            raise SettingsError(
                "no registry is named",
                hint="Give --from registry.example.org/team/runs, or set publish.oci in "
                "repro-gate.yml.",
            )
        return settings.publish.oci, ""
    place, _, digest = source.partition("@")
    try:
        check_repository(place)
    except ValueError as error:
        raise SettingsError(f"--from {safe_line(source)!r} {error}") from error
    if "@" in source and not DIGEST.match(digest):
        raise SettingsError(
            f"--from {safe_line(source)!r} has no digest behind the @",
            hint="It is sha256: and 64 hexadecimal digits, as the comment shows it.",
        )
    return place, digest


def _gate(gate_id: str, settings: GateSettings | None) -> str:
    if gate_id and not GATE_ID.match(gate_id):
        raise SettingsError(
            f"--gate-id {safe_line(gate_id)!r} is not the id of a gate",
            hint="It is what report.gate_id says in the gate's settings.",
        )
    return gate_id or (settings.report.gate_id if settings else DEFAULT_GATE)


def _show(pulled: Pulled, folder: Path, keys: str, *, as_json: bool) -> None:
    if as_json:
        facts = asdict(pulled) | {"folder": str(folder)}
        sys.stdout.write(json.dumps(facts, indent=2, sort_keys=True) + "\n")
        return
    # anybody can have a certificate: whose it must be is not for the registry to say
    by_key = f"--trusted-keys {shlex.quote(keys)}"
    by_identity = "--certificate-identity NAME --certificate-oidc-issuer ISSUER"
    trust = by_key if any(name.endswith(".dsse.json") for name in pulled.files) else by_identity
    package = shlex.quote(str(folder / PACKAGE_FILE))
    lines = [
        f"fetched {pulled.reference}",
        f"  says       {safe_line(pulled.outcome)}, {safe_line(pulled.created_at)}",
        f"  commit     {pulled.commit}",
        f"  folder     {safe_line(str(folder))}",
        f"  files      {', '.join(pulled.files)}",
        *(f"  note: {note}" for note in pulled.notes),
        "",
        "Nothing is proved yet. Verify:",
        f"  repro-gate verify {package} {trust} --commit {pulled.commit}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
