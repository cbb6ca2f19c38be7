"""`repro-gate fetch`: download a sealed package and its seals from a registry, or list packages.

Every byte is checked against its digest. Who sealed the package is for `repro-gate verify`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.commands.options import AsJson, Config
from gate.commands.program import FILES
from gate.commands.registry_names import (
    clone_settings,
    commits_on,
    full_hash,
    gate_name,
    registry_place,
)
from gate.errors import SettingsError
from gate.publishing.artifact import PACKAGE_FILE, ListedPackage, Pulled, WantedPackage
from gate.publishing.registry import OciRegistry
from gate.settings.delivery_sections import SigningSettings
from gate.text.package_names import MAX_PACKAGE_BYTES
from gate.text.phrases import count
from gate.text.untrusted_text import safe_line

# Shown for a tag that has a package's name, but refers to something else.
NO_PACKAGE: Final = "not a package"


def fetch_command(  # noqa: PLR0913 - each parameter is an option of the command
    commit: Annotated[
        str,
        typer.Argument(
            help="Commit of the package: a full hash, or in a clone any name of a commit."
        ),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="registry/name, with @sha256:... one exact package; default: publish.oci of "
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
    list_all: Annotated[
        bool, typer.Option("--list", help="List the gate's packages instead, newest first.")
    ] = False,
    on: Annotated[
        str, typer.Option(help="List only commits that this branch of the clone contains.")
    ] = "",
    most: Annotated[int, typer.Option(min=1, help="How many of the newest are listed.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Fetch a sealed package from its registry.

    Every byte is checked against its digest; who sealed it is for `repro-gate verify` to say.

    Example: repro-gate fetch SHA --from registry.example.org/team/runs
    """
    settings, project = clone_settings(config)
    place, digest = registry_place(source, settings)
    if on and not list_all:
        raise SettingsError("--on is for --list", hint="Leave it out, or list the packages.")
    if list_all != (not commit):
        raise SettingsError(
            "a commit and --list exclude each other" if commit else "which commit's package?",
            hint="Name a commit, or --list to see which commits have one.",
        )
    if list_all:
        registry = OciRegistry(place, os.environ, FILES)
        packages = registry.listed(gate_name(gate_id, settings), commits_on(on))
        _show_listed(tuple(islice(packages, most)), place, as_json=as_json)
        return
    full = full_hash(commit)
    package = WantedPackage(
        commit=full, gate_id=gate_name(gate_id, settings), digest=digest, max_bytes=max_bytes
    )
    folder = out or Path(f"package-{full[:12]}")
    pulled = OciRegistry(place, os.environ, FILES).pull(package, folder)
    signing = settings.signing if settings else SigningSettings()
    keys = os.path.relpath(project / signing.trusted_keys)
    _show(pulled, folder, keys, as_json=as_json)


def _show_listed(packages: Sequence[ListedPackage], place: str, *, as_json: bool) -> None:
    """Print the packages as the registry lists them; the output says that none is verified."""
    if as_json:
        document = [asdict(package) for package in packages]
        sys.stdout.write(json.dumps(document, indent=2, sort_keys=True) + "\n")
        return
    lines = [
        f"{safe_line(listed.created_at) or NO_PACKAGE:20}  {listed.commit}  {listed.digest}"
        for listed in packages
    ]
    lines.append(f"{count(len(packages), 'package')} in {place}; nothing is verified yet")
    sys.stdout.write("\n".join(lines) + "\n")


def _show(pulled: Pulled, folder: Path, keys: str, *, as_json: bool) -> None:
    if as_json:
        facts = asdict(pulled) | {"folder": str(folder)}
        sys.stdout.write(json.dumps(facts, indent=2, sort_keys=True) + "\n")
        return
    # Placeholders, not the package's own identity: anybody can get a certificate, so the registry
    # must not be the one to say whose it has to be.
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
