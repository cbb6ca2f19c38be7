"""The process that holds key and token has no parser of saved states in reach: rule T5, in imports.

Such a file is the training's, and parsed by a fresh process alone
(`gate/pipelines/confined_reader.py`).
"""

from __future__ import annotations

from module_imports import GATE, dotted, imported_modules

FILES = {dotted(path): path for path in GATE.rglob("*.py")}
PARSERS = ("gate.checkpoint.formats", "gate.checkpoint.pickle", "gate.evidence.saved_state")
# Their arguments are files that somebody names by hand; they hold neither key nor token.
BY_HAND = {f"gate.commands.{name}" for name in ("diff", "digest", "state_options", "verify")}
ENTRIES = sorted(
    name
    for name in FILES
    if name.startswith(("gate.action.", "gate.commands.")) and name not in BY_HAND
)


def reached(entry: str) -> dict[str, str]:
    """Every module that an entry imports, at once or on the way, with one that imports it."""
    importers: dict[str, str] = {}
    waiting = [entry]
    while waiting:
        importer = waiting.pop()
        for name in imported_modules(FILES[importer]):
            if name in FILES and name not in importers:
                importers[name] = importer
                waiting.append(name)
    return importers


def test_no_command_that_may_hold_a_key_reaches_a_parser() -> None:
    assert len(ENTRIES) > len(BY_HAND)
    assert {
        f"{entry} -> {importer} -> {name}"
        for entry in ENTRIES
        for name, importer in reached(entry).items()
        if name.startswith(PARSERS)
    } == set()


def test_the_reader_reaches_all_of_them() -> None:
    assert {name for name in FILES if name.startswith("gate.checkpoint.formats.")} <= {
        *reached("gate.pipelines.confined_reader")
    }
