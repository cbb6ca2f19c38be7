"""`repro-gate schema`: what repro-gate.yml may hold."""

from __future__ import annotations

import sys

from gate.settings.schema import schema_text


def schema_command() -> None:
    """Print the JSON Schema of repro-gate.yml.

    Example: repro-gate schema > repro-gate.schema.json
    """
    sys.stdout.write(schema_text())
