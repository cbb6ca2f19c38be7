"""The published JSON Schemas: of `repro-gate.yml`, for editors, and of documents for programs."""

from __future__ import annotations

import json
from enum import StrEnum

from gate.audit.audit import AuditReport
from gate.comparison.measured_base_head import ComparedCommits
from gate.comparison.shaken import ShakenTraining
from gate.settings.gate_settings import GateSettings
from gate.text.records_document import Document

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class SchemaOf(StrEnum):
    """What a schema is of; the settings file is meant where nothing is said."""

    SETTINGS = "settings"
    COMPARE = "compare"
    SHAKE = "shake"
    AUDIT = "audit"


PUBLISHED: dict[SchemaOf, tuple[str, type[Document]]] = {
    SchemaOf.SETTINGS: ("repro-gate.yml", GateSettings),
    SchemaOf.COMPARE: ("compare.json", ComparedCommits),
    SchemaOf.SHAKE: ("shake.json", ShakenTraining),
    SchemaOf.AUDIT: ("audit.json", AuditReport),
}


def schema_text(of: SchemaOf = SchemaOf.SETTINGS) -> str:
    """JSON Schema (draft 2020-12) of a file, each key with type, default and what is said of it."""
    title, model = PUBLISHED[of]
    schema = {"$schema": DIALECT, **model.model_json_schema(), "title": title}
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
