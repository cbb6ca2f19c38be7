"""The cost and noise documents for a person: on a terminal and as Markdown."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gate.comparison.measurements import (
    CalibrationDocument,
    CostDocument,
    NoiseDocument,
    Provenance,
)
from gate.report.escape import clean, code_block, prose
from gate.report.layout import Section
from gate.report.markdown import Part, fit, opened
from gate.report.measurement_words import (
    cost_headline,
    cost_sections,
    noise_headline,
    noise_sections,
)
from gate.report.tables import section_view
from gate.report.tolerances import calibration_headline, calibration_sections

MARKDOWN_LIMIT_BYTES = 60_000
SHOWN_ROWS = 50
SHOWN_PARTS = ("device", "cpu", "torch", "threads")


def cost_view(cost: CostDocument) -> RenderableType:
    """Prices, arms and knobs for a terminal."""
    return _view(cost_headline(cost), cost_sections(cost), cost.provenance)


def cost_markdown(cost: CostDocument) -> str:
    """The same as a section of Markdown."""
    parts = tuple(opened(section) for section in cost_sections(cost))
    return _markdown("Cost of determinism", cost_headline(cost), parts, cost.provenance)


def noise_view(noise: NoiseDocument) -> RenderableType:
    """The noise floor for a terminal, with tolerances to copy."""
    view = _view(noise_headline(noise), noise_sections(noise), noise.provenance)
    # to be copied: broken at the width of the terminal it would be other YAML
    snippet = Text(noise.snippet, no_wrap=True, overflow="ignore")
    return Group(view, Text("\nFor repro-gate.yml:", style="bold"), snippet)


def noise_markdown(noise: NoiseDocument) -> str:
    """The same as a section of Markdown."""
    snippet = Part(text=f"#### For repro-gate.yml\n\n{code_block(noise.snippet)}")
    parts = (*(opened(section) for section in noise_sections(noise)), snippet)
    return _markdown("Noise floor", noise_headline(noise), parts, noise.provenance)


def calibration_view(found: CalibrationDocument) -> RenderableType:
    """Derived tolerances for a terminal, as YAML to copy."""
    view = _view(
        calibration_headline(found), calibration_sections(found, SHOWN_ROWS), found.provenance
    )
    if not found.block:
        return view
    block = Text(found.block, no_wrap=True, overflow="ignore")
    return Group(view, Text("\nFor repro-gate.yml:", style="bold"), block)


def calibration_markdown(found: CalibrationDocument) -> str:
    """The same as a section of Markdown."""
    sections = calibration_sections(found, SHOWN_ROWS)
    parts = tuple(opened(section) for section in sections)
    if found.block:
        parts += (Part(text=f"#### For repro-gate.yml\n\n{code_block(found.block)}"),)
    return _markdown("Derived tolerances", calibration_headline(found), parts, found.provenance)


def _view(headline: str, sections: tuple[Section, ...], origin: Provenance) -> RenderableType:
    return Group(
        Text(headline, style="bold"),
        *map(section_view, sections),
        Text(clean(origin_words(origin)), style="dim"),
    )


def _markdown(title: str, headline: str, parts: tuple[Part, ...], origin: Provenance) -> str:
    head = f"### {title}\n\n{prose(headline)}\n\n{prose(origin_words(origin))}"
    return fit(head, parts, MARKDOWN_LIMIT_BYTES)


def origin_words(origin: Provenance) -> str:
    """Where a measurement was made, in one line."""
    parts = origin.environment.parts
    where = ", ".join(f"{name} {parts[name]}" for name in SHOWN_PARTS if name in parts)
    dirty = f", {len(origin.changed_files)} uncommitted change(s)" if origin.changed_files else ""
    return f"Commit {origin.commit[:12]}{dirty}, {origin.created_at[:16]}, {where}"
