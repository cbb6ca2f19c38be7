"""`repro-gate audit`: report the evidence behind a result, and what is missing.

Audits a repository, or a package, which is parsed in a confined child.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.audit.checklist import answered_items
from gate.audit.items import AuditReport, PackageFacts
from gate.audit.package_answers import audit_package
from gate.audit.production import production_items
from gate.audit.repository_answers import audit_repository
from gate.commands.program import FILES, MAX_DOCUMENT_BYTES
from gate.errors import SettingsError
from gate.isolation.confined_look import read_apart, reading_seconds
from gate.package.keys import read_trusted_keys
from gate.package.seal_records import Expected, TrustedKeys
from gate.pipelines.audited_package import look_at_package
from gate.pipelines.audited_repository import look_at_repository
from gate.report.audit_views import audit_markdown, audit_text, checklist_markdown
from gate.system.git.repository import GitRepository
from gate.text.documents import RecordForm, write_document
from gate.text.untrusted_text import safe_line

FACTS: Final[RecordForm[PackageFacts]] = RecordForm(PackageFacts)
HERE: Final = Path()


class AuditFormat(StrEnum):
    """The formats in which the audit can be printed."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    NEURIPS = "neurips"
    PRODUCTION = "production"


def audit_command(
    path: Annotated[Path, typer.Argument(help="Folder to audit; default: this one.")] = HERE,
    package: Annotated[
        Path | None, typer.Option(help="Audit this package.tar instead of a folder.")
    ] = None,
    trusted_keys: Annotated[
        Path | None, typer.Option(help="Trust file: checks the package's seal too.")
    ] = None,
    commit: Annotated[
        str, typer.Option(help="Full hash of the commit that the package must be about.")
    ] = "",
    form: Annotated[
        AuditFormat,
        typer.Option(
            "--format",
            help="neurips fills in the NeurIPS and MLRC checklists, production those of an "
            "operator.",
        ),
    ] = AuditFormat.TEXT,
) -> None:
    """Audit the evidence behind a result.

    Looks at code, environment, data, configuration, seeds, hardware and seals. Runs nothing of
    what it looks at. Exit code 1 when one of them fails, else 0: an unknown answer is no failure.

    Example: repro-gate audit --package repro-gate-out/package.tar
    """
    if package is None:
        if trusted_keys is not None or commit:
            raise SettingsError(
                "--trusted-keys and --commit are for a package",
                hint="Name it with --package, or leave them out.",
            )
        place = path.resolve()
        report = audit_repository(look_at_repository(place, FILES, GitRepository(place)))
    else:
        report = _of_package(path, package, trusted_keys, commit)
    sys.stdout.write(_shown(report, form))
    raise typer.Exit(int(report.exit_code))


def _of_package(path: Path, package: Path, trusted_keys: Path | None, commit: str) -> AuditReport:
    if path != HERE:
        raise SettingsError(
            "audit takes a folder or --package, not both", hint="Leave one of the two out."
        )
    if (trusted_keys is None) != (not commit):
        raise SettingsError(
            "a seal is checked with a trust file and a commit",
            hint="Give --trusted-keys and --commit, both: a seal of another commit is valid too.",
        )
    expected = Expected(commit=commit) if commit else None

    def look() -> PackageFacts:
        trusted = _trusted(trusted_keys) if trusted_keys is not None else None
        return look_at_package(package, FILES, trusted, expected)

    seconds = reading_seconds(package)
    return audit_package(read_apart(FACTS, look, what=safe_line(str(package)), seconds=seconds))


def _trusted(path: Path) -> TrustedKeys:
    return read_trusted_keys(FILES.read_bytes(path, max_bytes=MAX_DOCUMENT_BYTES), str(path))


def _shown(report: AuditReport, form: AuditFormat) -> str:
    if form is AuditFormat.JSON:
        return write_document(report).decode("utf-8")
    if form is AuditFormat.MARKDOWN:
        return audit_markdown(report)
    if form is AuditFormat.NEURIPS:
        return checklist_markdown(report, answered_items(report))
    if form is AuditFormat.PRODUCTION:
        return checklist_markdown(report, production_items(report))
    return audit_text(report)
