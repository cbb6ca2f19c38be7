"""`repro-gate config-hash`: print the configuration that a training used, and its digest.

The configuration is in the evidence of a run. With `--diff` two of them are compared.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.commands.options import OUT
from gate.commands.program import FILES
from gate.errors import EvidenceError, ExitCode, SettingsError
from gate.evidence.configuration import Configuration, configuration_changes
from gate.isolation.confined_look import read_apart, reading_seconds
from gate.pipelines.kept_configuration import open_configuration
from gate.text.documents import RecordForm
from gate.text.json_text import reviewable_json
from gate.text.untrusted_text import safe_line

CONFIG_HASH_SCHEMA: Final = "repro-gate.config-hash/1"
NOTHING_SEEN: Final = (
    "The gate sees argparse, Hydra, OmegaConf, transformers' TrainingArguments, and the YAML, TOML "
    "and JSON files of the commit that the training reads. Run `repro-gate gate` again, or set "
    "these."
)

PlaceToRead = Annotated[
    Path, typer.Argument(help="Output folder, verdict.json, baseline entry or package.tar.")
]
Difference = Annotated[
    tuple[Path, Path] | None, typer.Option("--diff", metavar="A B", help="Compare two of these.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the document as JSON on stdout.")]


def config_hash_command(
    path: PlaceToRead = OUT, *, diff: Difference = None, as_json: AsJson = False
) -> None:
    """Print what a training was configured with.

    With --diff, exit code 1 when a value differs.

    Example: repro-gate config-hash repro-gate-out
    """
    if diff is not None:
        if path != OUT:
            raise SettingsError("--diff takes both paths", hint="Name two: --diff A B.")
        _show_difference(*diff, as_json=as_json)
        return
    settings_hash = _read(path)
    if as_json:
        document = {"schema_version": CONFIG_HASH_SCHEMA, **settings_hash.model_dump(mode="json")}
        sys.stdout.write(reviewable_json(document))
        return
    _print(f"{settings_hash.digest}  {path}")
    for name, text in settings_hash.values.items():
        _print(f"  {name} = {text}")
    for name in settings_hash.varies:
        _print(f"  {name} differs from run to run, so it is left out")


def _show_difference(left: Path, right: Path, *, as_json: bool) -> None:
    before, after = _read(left), _read(right)
    varies = {*before.varies, *after.varies}
    first, second = (
        {name: text for name, text in side.values.items() if name not in varies}
        for side in (before, after)
    )
    changes = configuration_changes(first, second)
    if as_json:
        document = {
            "schema_version": CONFIG_HASH_SCHEMA,
            "equal": not changes,
            "a": before.digest,
            "b": after.digest,
            "changes": [change.model_dump(mode="json") for change in changes],
        }
        sys.stdout.write(reviewable_json(document))
    else:
        if not changes:
            _print(f"equal: {len(first)} values, {after.digest}")
        for change in changes:
            _print(change.described)
    raise typer.Exit(int(ExitCode.FAIL if changes else ExitCode.PASS))


def _read(path: Path) -> Configuration:
    form: RecordForm[Configuration | None] = RecordForm(Configuration | None)
    answer = read_apart(
        form,
        lambda: open_configuration(FILES, path),
        what=safe_line(str(path)),
        seconds=reading_seconds(path),
    )
    if answer is None:
        raise EvidenceError(
            f"{safe_line(str(path))}: nothing of the training's configuration was seen",
            hint=NOTHING_SEEN,
        )
    return answer


def _print(line: str) -> None:
    sys.stdout.write(f"{safe_line(line, limit=2000)}\n")
