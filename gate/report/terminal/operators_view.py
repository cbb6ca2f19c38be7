"""An operator audit by itself, for a terminal; the caller prints it."""

from __future__ import annotations

from rich.console import RenderableType

from gate.records.observed.operator_audit import OperatorReport
from gate.report.layout import Limits
from gate.report.operators import NOTHING_FOUND, operators_section
from gate.report.terminal.tables import section_view


def operators_view(operator_audit: OperatorReport, limits: Limits) -> RenderableType:
    """The operators as one rich renderable."""
    section = operators_section(operator_audit, limits)
    return section_view(section) if section else NOTHING_FOUND
