"""`repro-gate schema`: what repro-gate.yml and published documents may hold."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gate.commands.schema import SchemaOf, schema_text

OF_HELP = "The file: repro-gate.yml (settings), or the JSON of compare, shake or audit."


def schema_command(
    of: Annotated[SchemaOf, typer.Argument(help=OF_HELP)] = SchemaOf.SETTINGS,
) -> None:
    """Print the JSON Schema of repro-gate.yml.

    With `compare` that of compare.json, with `shake` that of shake.json, with `audit` that of what
    `repro-gate audit --format json` prints.

    Example: repro-gate schema > repro-gate.schema.json
    """
    sys.stdout.write(schema_text(of))
