"""A block of `repro-gate.yml` between two marks, put in or replaced without touching the rest."""

from __future__ import annotations

from typing import Final

from gate.errors import SettingsError
from gate.settings.load import parse_settings
from gate.text.strict_yaml import parse_yaml

BEGIN: Final = "# >>> repro-gate baseline calibrate (replaced by the next --write)"
END: Final = "# <<< repro-gate baseline calibrate"
COPY_HINT: Final = "Nothing was written. Copy the lines that were printed to where they belong."


def with_block(data: bytes, block: str, source: str) -> bytes:
    """The settings file with `block`, a whole `compare` section, between the marks.

    A file without marks gets both at its end, if it has no `compare` yet. Raises `SettingsError`
    where the result would not be the same settings with other tolerances.
    """
    before, _ = parse_yaml(data, source)
    text = data.decode("utf-8")
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
        lines = [*(lines[:-1] if lines[-1] == "" else lines), *inserted, ""]
    changed = newline.join(lines).encode("utf-8")
    _check(before, changed, block, source)
    return changed


def _check(before: object, changed: bytes, block: str, source: str) -> None:
    """Is it the same file with other tolerances? The text may hold what nobody thought of."""
    try:
        after, _ = parse_yaml(changed, source)
        parse_settings(changed, source)
    except SettingsError as error:
        raise _refused(f"{source}: the lines do not fit into it: {error.message}") from error
    wanted, _ = parse_yaml(block.encode("utf-8"), source)
    if _without_tolerances(before) != _without_tolerances(after) or (
        _tolerances(after) != _tolerances(wanted)
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
