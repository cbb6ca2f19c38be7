"""`repro-gate.yml` becomes `GateSettings`; all errors are reported at once, with key and line."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import ValidationError

from gate.errors import SettingsError
from gate.settings.data import Verify
from gate.settings.gate_settings import GateSettings
from gate.text.codec_digests import sha256_hex
from gate.text.documents import KeyPath, fault_lines
from gate.text.json_text import canonical_json
from gate.text.strict_yaml import parse_yaml

MINIMAL_FILE = """\
version: 1
train:
  command: python train.py
  max_steps: 20
"""


def parse_settings(data: bytes, source: str) -> GateSettings:
    """Read and check the settings; `source` names the file in errors.

    Raises `SettingsError` with one line for each fault of the file.
    """
    value, lines = parse_yaml(data, source)
    if not isinstance(value, dict) or not value:
        raise SettingsError(
            f"{source}: is empty or not a mapping of keys",
            hint=f"A minimal file:\n{MINIMAL_FILE}",
        )
    try:
        # by way of JSON, where strict types take a list for a tuple and a text for an enumeration
        return GateSettings.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise SettingsError(
            f"{source}: {error.error_count()} error(s)",
            hint="`repro-gate schema` prints every key with its type and default.",
            details=fault_lines(error, lambda path: _line(path, lines), GateSettings),
        ) from error


def _line(path: KeyPath, lines: dict[KeyPath, int]) -> str:
    """The line of a key, or of the nearest key above it when it is the missing one."""
    for length in range(len(path), -1, -1):
        if path[:length] in lines:
            return f"line {lines[path[:length]]}: "
    return ""


def settings_digest(settings: GateSettings) -> str:
    """SHA-256 over every setting, defaults included."""
    return sha256_hex(canonical_json(settings.model_dump(mode="json")))


def training_digest(settings: GateSettings) -> str:
    """SHA-256 over `training_settings`: equal for settings whose results may be compared."""
    return sha256_hex(canonical_json(training_settings(settings)))


def training_settings(settings: GateSettings) -> dict[str, str]:
    """What changes the numbers of a training, and nothing else: each key with its value as JSON.

    Results made under others are not comparable: another command, step count, seed, thread count,
    variable or variant is another experiment. Settings at their default are left out, so that a new
    key in a later version leaves every committed baseline comparable.
    """
    # limits of time and output change whether a run ends, and no number of one that did
    train = settings.train.model_dump(
        mode="json", exclude_defaults=True, exclude={"timeout_seconds", "output_limit_bytes"}
    )
    determinism = settings.determinism.parts_of_the_experiment()
    variants = {
        name: variant.model_dump(mode="json", exclude_defaults=True)
        for name, variant in settings.variants.items()
    }
    # what the data holds is judged by its digest: here is which data sets there are
    data = {source.label: source.verify is Verify.SAMPLE for source in settings.data}
    made = settings.preprocess
    sections = {
        "train": train,
        "determinism": determinism,
        "variants": variants,
        "data": {name: "sample" if sampled else "whole" for name, sampled in data.items()},
        "preprocess": {"command": made.command, "out": made.out} if made is not None else {},
    }
    return dict(_flat(sections, ""))


def _flat(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Keys with dots between them; a list is one value, since its order matters."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, json.dumps(value, sort_keys=True)
