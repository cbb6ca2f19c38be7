"""`repro-gate schema`: print the JSON Schema of repro-gate.yml or of a published document."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated

import typer

from gate.audit.items import AuditReport
from gate.comparison.measurements import ComparedCommits, ShakenTraining
from gate.comparison.studies import StudyDocument
from gate.fleet.indicators import SloReport
from gate.settings.gate_settings import GateSettings
from gate.text.document import Document

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class SchemaOf(StrEnum):
    """The files that have a schema; the default is the settings file."""

    SETTINGS = "settings"
    COMPARE = "compare"
    SHAKE = "shake"
    STUDY = "study"
    AUDIT = "audit"
    SLO = "slo"


PUBLISHED: dict[SchemaOf, tuple[str, type[Document]]] = {
    SchemaOf.SETTINGS: ("repro-gate.yml", GateSettings),
    SchemaOf.COMPARE: ("compare.json", ComparedCommits),
    SchemaOf.SHAKE: ("shake.json", ShakenTraining),
    SchemaOf.STUDY: ("study.json", StudyDocument),
    SchemaOf.AUDIT: ("audit.json", AuditReport),
    SchemaOf.SLO: ("slo.json", SloReport),
}


def schema_text(of: SchemaOf = SchemaOf.SETTINGS) -> str:
    """Return a file's JSON Schema (draft 2020-12): type, default and description of each key."""
    title, model = PUBLISHED[of]
    schema = {"$schema": DIALECT, **model.model_json_schema(), "title": title}
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


OF_HELP = "The file: repro-gate.yml (settings), or the JSON of compare, study, shake, audit or slo."


def schema_command(
    of: Annotated[SchemaOf, typer.Argument(help=OF_HELP)] = SchemaOf.SETTINGS,
) -> None:
    """Print the JSON Schema of repro-gate.yml.

    With `compare` that of compare.json, with `study` that of study.json, with `shake` that of
    shake.json, with `audit` that of what `repro-gate audit --format json` prints, with `slo` that
    of `repro-gate slo --format json`.

    Example: repro-gate schema > repro-gate.schema.json
    """
    sys.stdout.write(schema_text(of))
