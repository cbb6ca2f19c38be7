"""Parses `repro-gate.yml` into `GateSettings`; reports all faults at once, with key and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gate.errors import SettingsError
from gate.settings.data import TYPED, Verify
from gate.settings.fault_words import in_words_of_settings
from gate.settings.gate_settings import GateSettings
from gate.settings.train_sections import RANKS_WORD, with_ranks
from gate.text.digests import sha256_hex
from gate.text.documents import KeyPath, lines_of
from gate.text.json_text import canonical_json
from gate.text.phrases import count
from gate.text.strict_yaml import parse_yaml

BEGIN: Final = "# >>> repro-gate baseline calibrate (replaced by the next --write)"
PART: Final = re.compile(r"[^.\[\]]+")
END: Final = "# <<< repro-gate baseline calibrate"
COPY_HINT: Final = "Nothing was written. Copy the printed lines into the file yourself."


def with_block(data: bytes, block: str, source: str) -> bytes:
    """Return the settings file with `block`, a whole `compare` section, between the two marks.

    A file without marks gets both at its end, if it has no `compare` yet. Raises `SettingsError` if
    anything but the tolerances would change.
    """
    before, _ = parse_yaml(data, source)
    text = data.decode("utf-8")
    # keep the file's line endings, so that only the block changes in a diff
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.split(newline)
    begins = [place for place, line in enumerate(lines) if line == BEGIN]
    ends = [place for place, line in enumerate(lines) if line == END]
    inserted = [BEGIN, *block.rstrip("\n").split("\n"), END]
    if (len(begins), len(ends)) == (1, 1) and begins[0] < ends[0]:
        lines[begins[0] : ends[0] + 1] = inserted
    elif begins or ends:
        raise _refused(f"{source}: needs each of the two marks once, the beginning first")
    elif not isinstance(before, dict) or "compare" in before:
        raise _refused(f"{source}: has a compare section of its own")
    else:
        # drop the empty last element, which only stands for the final line end
        lines = [*(lines[:-1] if lines[-1] == "" else lines), *inserted, ""]
    changed = newline.join(lines).encode("utf-8")
    _check(before, changed, block, source)
    return changed


def _check(before: object, changed: bytes, block: str, source: str) -> None:
    """Raise `SettingsError` unless the file is the same with other tolerances.

    The text was edited by lines, so unforeseen YAML could have changed its meaning.
    """
    try:
        after, _ = parse_yaml(changed, source)
        parse_settings(changed, source)
    except SettingsError as error:
        raise _refused(f"{source}: the lines do not fit into it: {error.message}") from error
    expected, _ = parse_yaml(block.encode("utf-8"), source)
    if _without_tolerances(before) != _without_tolerances(after) or (
        _tolerances(after) != _tolerances(expected)
    ):
        raise _refused(f"{source}: the lines would change more than the tolerances")


def _tolerances(document: object) -> object:
    compare = document.get("compare") if isinstance(document, dict) else None
    return compare.get("tolerances") if isinstance(compare, dict) else None


def _without_tolerances(document: object) -> object:
    if not isinstance(document, dict):
        return document
    compare = document.get("compare", {})
    rest = {key: compare[key] for key in compare if key != "tolerances"} if compare else {}
    return {**document, "compare": rest}


def _refused(problem: str) -> SettingsError:
    return SettingsError(problem, hint=COPY_HINT)


MINIMAL_FILE = """\
version: 1
train:
  command: python train.py
  max_steps: 20
"""


def parse_settings(data: bytes, source: str) -> GateSettings:
    """Parse and check the settings; `source` is the name of the file in errors.

    Raises `SettingsError` with one line for each fault of the file.
    """
    value, lines = parse_yaml(data, source)
    if not isinstance(value, dict) or not value:
        raise SettingsError(
            f"{source}: is empty or not a mapping of keys",
            hint="Move it away and run `repro-gate init`, which writes one. The least that it "
            "needs: {version: 1, train: {command: python train.py, max_steps: 20}}",
        )
    # through JSON: in its JSON mode, pydantic's strict types accept a list for a tuple and a text
    # for an enumeration
    document = json.dumps(value)
    try:
        return GateSettings.model_validate_json(document, context=TYPED)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        faults = in_words_of_settings(errors, json.loads(document), GateSettings)
        faults = [_at_its_key(fault, lines) for fault in faults]
        faults.sort(key=lambda fault: _place(fault["loc"], lines))
        raise SettingsError(
            f"{source}: {count(len(faults), 'error')}",
            hint="`repro-gate schema` prints every key with its type and default.",
            details=lines_of(faults, lambda path: _line(path, lines), GateSettings),
        ) from error


def _at_its_key(fault: ErrorDetails, lines: dict[KeyPath, int]) -> ErrorDetails:
    """Give a fault between two keys the line of the key that its text names first."""
    named, _, words = fault["msg"].removeprefix("Value error, ").partition(" ")
    key = named.removesuffix(":")
    below = (int(part) if part.isdecimal() else part for part in PART.findall(key))
    path = (*fault["loc"], *below)
    if fault["type"] != "value_error" or fault["loc"] or "." not in named or path not in lines:
        return fault
    return {**fault, "loc": path, "msg": words}


def _place(path: KeyPath, lines: dict[KeyPath, int]) -> int:
    """Return the line of a key, or of the closest key above if it is missing; 0 without any."""
    above = (path[:length] for length in range(len(path), -1, -1))
    return next((lines[key] for key in above if key in lines), 0)


def _line(path: KeyPath, lines: dict[KeyPath, int]) -> str:
    number = _place(path, lines)
    return f"line {number}: " if number else ""


def settings_digest(settings: GateSettings) -> str:
    """Return the SHA-256 of all settings, defaults included."""
    # canonical JSON, so that the order and layout of the file do not matter
    return sha256_hex(canonical_json(settings.model_dump(mode="json")))


def training_digest(settings: GateSettings) -> str:
    """Return the SHA-256 of `training_settings`: equal digests mean comparable results."""
    return sha256_hex(canonical_json(training_settings(settings)))


def training_settings(settings: GateSettings) -> dict[str, str]:
    """Return the settings that change the numbers of a training, each key with its value as JSON.

    Results under other values are not comparable: another command, step count, seed, thread count,
    variable or variant is another experiment. Defaults are left out, so that a new key in a later
    version keeps every committed baseline comparable.
    """
    # limits of time and output decide whether a run ends, but change no number of a complete run
    train = settings.train.model_dump(
        mode="json", exclude_defaults=True, exclude={"timeout_seconds", "output_limit_bytes"}
    )
    # the number of ranks is a part of the environment, so replace it by its placeholder here
    command = settings.train.command
    train["command"] = list(with_ranks(command, RANKS_WORD) or command)
    determinism = settings.determinism.parts_of_the_experiment()
    variants = {
        name: variant.model_dump(mode="json", exclude_defaults=True)
        for name, variant in settings.variants.items()
    }
    # the data's digest judges its content; the settings only say which data sets there are
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


# sections that change how many runs a call makes, what they cost, or where the result is sent
NOT_JUDGED_BY: Final = frozenset(
    ("runs", "cost", "diagnosis", "noise", "slo", "signing", "package", "publish", "report")
)


def answering_digest(files_digest: str, settings: GateSettings) -> str:
    """Return the SHA-256 of everything that an entry must share to answer without a run.

    It covers more than `training_settings`: the image, the network, or a number that may be
    infinite changes the run of the same files, or its judgement.
    """
    judged = settings.model_dump(mode="json", exclude_defaults=True, exclude={*NOT_JUDGED_BY})
    return sha256_hex(canonical_json([files_digest, judged]))


def _flat(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield values under dotted keys; a list is one value, because its order matters."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, json.dumps(value, sort_keys=True)
