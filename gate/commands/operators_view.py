"""An operator audit by itself, for a terminal; the caller prints it."""

from __future__ import annotations

from rich.console import Group, RenderableType

from gate.evidence.operators import OperatorReport
from gate.report.layout import Limits
from gate.report.operators import NOTHING_FOUND, operators_sections
from gate.report.tables import section_view


def operators_view(operator_audit: OperatorReport, limits: Limits) -> RenderableType:
    """The operators as one rich renderable."""
    sections = operators_sections(operator_audit, limits)
    return Group(*map(section_view, sections)) if sections else NOTHING_FOUND
