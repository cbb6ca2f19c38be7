"""The published JSON Schema of `repro-gate.yml`, for editors and for people."""

from __future__ import annotations

import json

from gate.records.settings import GateSettings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_text() -> str:
    """JSON Schema (draft 2020-12) of the settings file, each key with type, default, meaning."""
    schema = {"$schema": DIALECT, "title": "repro-gate.yml", **GateSettings.model_json_schema()}
    schema["title"] = "repro-gate.yml"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
