"""`repro-gate audit`: what a result rests on, and what is missing."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gate.adapters.git.repository import GitRepository
from gate.audit.repository import audit_repository
from gate.codec.documents import write_document
from gate.commands.program import FILES
from gate.pipelines.offline.audited_repository import look_at_repository
from gate.records.published.audit import AuditReport
from gate.report.audited.text import audit_text


class AuditFormat(StrEnum):
    """How the answer is printed."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    NEURIPS = "neurips"


def audit_command(
    path: Annotated[Path, typer.Argument(help="Folder to audit; need not be a repository.")] = Path(),
) -> None:
    """Check what a result rests on.

    Example: repro-gate audit
    """
    place = path.resolve()
    report = audit_repository(look_at_repository(place, FILES, GitRepository(place)))
    sys.stdout.write(audit_text(report))
    raise typer.Exit(int(report.exit_code))
