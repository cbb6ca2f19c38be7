"""An unknown key is told with the one that was meant: walked over every key of the settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gate.errors import SettingsError
from gate.settings.gate_settings import GateSettings
from gate.settings.load import parse_settings
from gate.text.documents import known_keys, nearest_key

SCHEMA = GateSettings.model_json_schema()


def _paths(entry: Mapping[str, Any], above: tuple[str | int, ...] = ()) -> Iterator[Any]:
    """Every key that the JSON Schema of the settings knows, in lists and mappings as well."""
    if "$ref" in entry:
        yield from _paths(SCHEMA["$defs"][entry["$ref"].rpartition("/")[2]], above)
    for name, below in entry.get("properties", {}).items():
        yield (*above, name)
        yield from _paths(below, (*above, name))
    for each in (*entry.get("anyOf", ()), *entry.get("oneOf", ()), *entry.get("allOf", ())):
        yield from _paths(each, above)
    for each in (entry.get("items"), entry.get("additionalProperties")):
        if isinstance(each, dict):
            yield from _paths(each, (*above, 0))


def test_each_key_with_a_letter_dropped_is_suggested() -> None:
    paths = list(_paths(SCHEMA))
    assert len(paths) >= len(SCHEMA["$defs"]["TrainSettings"]["properties"]) + 50
    for path in paths:
        key = str(path[-1])
        known = known_keys(GateSettings, path)
        assert key in known
        for place in range(len(key) if len(key) > 2 else 0):
            wrong = key[:place] + key[place + 1 :]
            if wrong not in known:
                told = nearest_key(GateSettings, (*path[:-1], wrong))
                assert key in told.removesuffix("?").replace(" or ", " ").split(), (path, wrong)


def test_the_reader_of_the_settings_says_it() -> None:
    text = b"version: 1\ntrain:\n  command: python train.py\n  max_steps: 2\n  max_step: 2\n"
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, "repro-gate.yml")
    assert caught.value.details == (
        "line 5: train.max_step: is not a known key; did you mean max_steps?",
    )


@pytest.mark.parametrize("key", ["zzz", "", "q" * 10_000])
def test_another_word_gets_no_suggestion(key: str) -> None:
    assert nearest_key(GateSettings, ("train", key)) == ""
