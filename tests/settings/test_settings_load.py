from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_origin

import pytest
import yaml
from each_row import each_row
from known_names import models_in, setting_keys
from pydantic import BaseModel, ValidationError

from gate.commands.schema import schema_text
from gate.errors import SettingsError
from gate.isolation.modes import ContainerSettings
from gate.settings.gate_settings import GateSettings
from gate.settings.load import MINIMAL_FILE, parse_settings, settings_digest, training_digest
from gate.text.document import command_words


def _parse(text: str) -> GateSettings:
    return parse_settings(text.encode(), "repro-gate.yml")


def _faults(text: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        _parse(text)
    return caught.value.details


def test_a_minimal_file_is_three_facts() -> None:
    settings = _parse(MINIMAL_FILE)
    assert settings.train.command == ("python", "train.py")
    assert settings.train.max_steps == 20
    assert settings.determinism.threads == 1


def test_every_fault_is_told_at_once_with_key_and_line() -> None:
    text = "version: 2\ntrain:\n  comand: x\n  max_steps: 0\n  command: 'a \"'\nfoo: 1\n"
    assert set(_faults(text)) == {
        "line 1: version: must be 1",
        "line 3: train.comand: is not a known key; did you mean command?",
        "line 4: train.max_steps: must be greater than or equal to 1",
        "line 5: train.command: No closing quotation",
        "line 6: foo: is not a known key",
    }


@each_row(
    ("train", "fault"),
    [
        ("command: ['']", "train.command: is empty: give a command, "),
        ('command: [python, "a\\0b"]', "train.command: contains a zero byte"),
        ("command: A=1 python train.py", "train.command: A=… sets a variable, which only a shell "),
        ('command: x, env: {A: "a\\0b"}', "train.env: A contains a zero byte"),
    ],
)
def test_what_no_process_can_be_started_with_is_refused(train: str, fault: str) -> None:
    (told,) = _faults(f"version: 1\ntrain: {{{train}, max_steps: 1}}\n")
    assert told.startswith(f"line 2: {fault}")


@pytest.mark.parametrize(
    ("command", "operator"),
    [
        ("python a.py && python b.py", "&&"),
        ("python a.py || true", "||"),
        ("python a.py | tee x", "|"),
        ("python a.py > log.txt 2>&1", ">"),
        ("python a.py >> log.txt", ">>"),
        ("python a.py < answers.txt", "<"),
        ("python a.py 2>&1", "2>&1"),
        ("python a.py; python b.py", ";"),
        ("python a.py &", "&"),
        ("python a.py >log.txt", ">log.txt"),
        ("python a.py 2>/dev/null", "2>/dev/null"),
        ("python a.py <answers.txt", "<answers.txt"),
    ],
)
def test_a_command_that_takes_a_shell_is_refused_with_the_remedy(
    command: str, operator: str
) -> None:
    (fault,) = _faults(f"version: 1\ntrain:\n  command: {command!r}\n  max_steps: 1\n")
    assert fault == (
        f"line 3: train.command: {operator} belongs to a shell, and the command starts without "
        "one: write bash -c '...', or name a script that does all of it"
    )


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("python a.py --split ';'", ";"),
        (r"find . -exec python {} \;", ";"),
        ('bash -c "python a.py && python b.py"', "python a.py && python b.py"),
        ("python a.py --note='a > b'", "--note=a > b"),
        ("python a.py --rule 'it\"s' x>1", "x>1"),
    ],
)
def test_an_operator_in_quotes_or_in_a_word_is_an_argument(command: str, word: str) -> None:
    assert command_words(command)[-1] == word


def test_a_list_of_words_may_hold_any_of_them() -> None:
    settings = _parse("version: 1\ntrain:\n  command: [python, a.py, ';', '>']\n  max_steps: 1\n")
    assert settings.train.command == ("python", "a.py", ";", ">")


def test_a_missing_key_points_at_its_section() -> None:
    assert _faults("version: 1\ntrain:\n  max_steps: 3\n") == (
        "line 2: train.command: is required",
    )


@pytest.mark.parametrize("text", ["", "# only a comment\n", "- a\n", "text"])
def test_an_empty_file_shows_a_minimal_one(text: str) -> None:
    with pytest.raises(SettingsError, match="is empty or not a mapping") as caught:
        _parse(text)
    assert "command: python train.py" in caught.value.hint


@each_row(
    ("lines", "fault"),
    [
        ("  workdir: ../other", "must be a relative path inside the project, without '..'"),
        ("  checkpoint: /etc/passwd", "must be a relative path inside the project, without '..'"),
        ("  env: {GITHUB_TOKEN: x}", "'GITHUB_TOKEN' is reserved: the training must not see it"),
        ("  pass_env: [VAULT_TOKEN]", "'VAULT_TOKEN' is reserved: the training must not see it"),
        ("  pass_env: [VAULT_TOKEN_FILE]", "'VAULT_TOKEN_FILE' is reserved: the training must"),
        ("  pass_env: [A-B]", "'A-B' is not the name of an environment variable"),
        ("  metrics: {file: /abs}", "must be a relative path inside the project, without '..'"),
        ("  metrics: {stdout_pattern: '('}", "is not a regular expression"),
        ("  metrics: {stdout_pattern: 'x'}", "needs a named group for each metric"),
        ("  env: {A: 3}", "must be a valid string"),
        ("  seed: -1", "must be greater than or equal to 0"),
        ("  timeout_seconds: .inf", "line 5: train.timeout_seconds: must be a finite number"),
        ("  timeout_seconds: 1.0e+400", "line 5: train.timeout_seconds: must be a finite number"),
    ],
)
def test_a_value_that_cannot_work_is_refused(lines: str, fault: str) -> None:
    (found,) = _faults(f"{MINIMAL_FILE}{lines}\n")
    assert fault in found


@each_row(
    ("lines", "fault"),
    [
        (
            "isolation: {image: 'python:3.12'}",
            "isolation.image: has the wrong form. Image that the training runs in, ",
        ),
        (
            "runs: {parallel: 1}",
            "runs.parallel: must be 'auto' or 'never', or must be greater than or equal to 2",
        ),
        (
            "slo: {targets: {M11: 0.5}}",
            "slo.targets.M11: is not a valid key: a key must be 'M1', 'M2', 'M3', 'M4', ",
        ),
        (
            "preprocess: {out: a, command: 5}",
            "preprocess.command: must be one text or a list of words, for example `python train.p",
        ),
        (
            "preprocess: {out: a, command: ''}",
            "preprocess.command: is empty: give a command, for example `python train.py`",
        ),
        ("compare: {tolerances: 3}", "compare.tolerances: must be a list"),
        ("cost: 3", "cost: must be a mapping of keys to values"),
        (
            "compare: {tolerances: [{metric: '', absolute: 1}]}",
            "compare.tolerances[0].metric: must have at least 1 character",
        ),
    ],
)
def test_a_fault_is_told_in_a_sentence_and_not_in_a_librarys_words(lines: str, fault: str) -> None:
    (found,) = _faults(f"{MINIMAL_FILE}{lines}\n")
    assert found.startswith(f"line 5: {fault}")


def _numbers(part: object) -> Iterator[dict[str, Any]]:
    """Every number with a fraction in a schema of pydantic's core."""
    if isinstance(part, dict):
        if part.get("type") == "float":
            yield part
        yield from (number for below in part.values() for number in _numbers(below))
    elif isinstance(part, list | tuple):
        yield from (number for below in part for number in _numbers(below))


def test_no_setting_may_be_infinite_or_no_number() -> None:
    GateSettings.model_rebuild(force=True)
    numbers = list(_numbers(GateSettings.__pydantic_core_schema__))
    assert len(numbers) > 20
    assert [number for number in numbers if number.get("allow_inf_nan") is not False] == []


def test_a_metrics_file_and_a_pattern_may_be_given() -> None:
    text = MINIMAL_FILE + "  metrics: {file: m.jsonl, stdout_pattern: 'loss (?P<loss>.+)'}\n"
    assert _parse(text).train.metrics.file == "m.jsonl"


def test_a_command_may_be_a_list_of_words() -> None:
    text = MINIMAL_FILE.replace("python train.py", "[python, train me.py]")
    assert _parse(text).train.command == ("python", "train me.py")


def test_digests_move_with_what_they_cover_only() -> None:
    plain, other = _parse(MINIMAL_FILE), _parse(MINIMAL_FILE + "report: {gate_id: two}\n")
    assert settings_digest(plain) != settings_digest(other)
    assert training_digest(plain) == training_digest(other)
    patient = _parse(MINIMAL_FILE + "  timeout_seconds: 9\n")
    assert training_digest(plain) == training_digest(patient)
    allowing = _parse(MINIMAL_FILE + "determinism: {allow_operators: [put_]}\n")
    assert training_digest(plain) != training_digest(allowing)
    seeded = _parse(MINIMAL_FILE + "  seed: 7\n")
    assert training_digest(plain) != training_digest(seeded)


def test_an_operator_name_is_no_list() -> None:
    (found,) = _faults(MINIMAL_FILE + "determinism: {allow_operators: ['put_;cumsum']}\n")
    assert "determinism.allow_operators[0]: must match the pattern" in found


def test_a_key_at_its_default_leaves_the_digest_as_it_is() -> None:
    """So a baseline stays comparable when a later version brings a key."""
    spelt_out = _parse(MINIMAL_FILE + "determinism: {allow_operators: [], profile: strict}\n")
    assert training_digest(spelt_out) == training_digest(_parse(MINIMAL_FILE))


def test_the_schema_is_json_and_describes_every_key_of_train() -> None:
    schema = json.loads(schema_text())
    train = schema["$defs"]["TrainSettings"]["properties"]
    assert all("description" in key for key in train.values())
    assert {"type": "string", "minLength": 1} in train["command"]["anyOf"]


def test_a_misspelt_key_of_any_level_is_told_the_one_that_was_meant() -> None:
    silent = [key for key in setting_keys() if not _names_the_one_that_was_meant(key)]
    assert silent == []


def _names_the_one_that_was_meant(key: str) -> bool:
    *sections, name = key.split(".")
    document: dict[str, Any] = yaml.safe_load(MINIMAL_FILE)
    place = document
    model: type[BaseModel] = GateSettings
    for section in sections:
        annotation = model.model_fields[section].annotation
        (model,) = models_in(annotation)
        below = place.setdefault(section, {})
        if get_origin(annotation) is tuple:
            place[section] = [below]
        place = below
    place[f"{name}x"] = 1
    faults = _faults(yaml.safe_dump(document))
    (told,) = (fault for fault in faults if f"{name}x: is not a known key" in fault)
    return name in told.partition("; did you mean ")[2].removesuffix("?").split(" or ")


@each_row(
    ("entries", "told"),
    [
        ("[{path: /a/b, at: ../x}]", "must be a relative path inside the project, without '..'"),
        ("[{path: /a/b, at: .GIT/x}]", "at must be a plain path such as data/train, not '.GIT/x'"),
        ("[{path: /a/b, at: a//b}]", "at must be a plain path such as data/train, not 'a//b'"),
        ("[{dvc: x.dvc, at: y}]", "at belongs to path and url"),
        ("[{path: /a, at: d}, {path: /b, at: D/e}]", "two entries are at one place: 'd' and 'D/e'"),
    ],
)
def test_a_place_of_data_lies_in_the_project_and_is_one_entrys(entries: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(f"{MINIMAL_FILE}data: {entries}\n".encode(), "s")
    assert told in caught.value.details[0]


@each_row(
    ("address", "told"),
    [
        ("https://me@example.org/a", "without a user name or a password"),
        ("https://:word@example.org/a", "without a user name or a password"),
        ("https:///a", "must be an address with a host"),
        ("http://example.org/a", "must begin with https://"),
        ("file:///etc/passwd", "must begin with https://"),
    ],
)
def test_an_address_of_data_holds_no_login_and_leads_to_a_host(address: str, told: str) -> None:
    (fault,) = _faults(f"{MINIMAL_FILE}data: [{{url: '{address}', sha256: '{HEX}'}}]\n")
    assert told in fault


HEX = "0" * 64


@each_row(
    "image",
    [
        f"sha256:{HEX}",
        f"python@sha256:{HEX}",
        f"python:3.12-slim@sha256:{HEX}",
        f"ghcr.io/team/a__b.c-d@sha256:{HEX}",
        f"localhost:5000/x@sha256:{HEX}",
        f"Registry.Example.org:443/x/y:V1@sha256:{HEX}",
    ],
)
def test_an_image_is_named_as_registries_name_it(image: str) -> None:
    assert ContainerSettings(image=image).image == image


@each_row(
    "name",
    [
        "x/../evil", "../x", "x/..", "x/./y", "http://x", "https://h/x", "docker://x", "x//y", "x/",
        "/x", "h:/x", "X", "x/Y", "x.", ".x", "x..y", "x___y", "-x/y", "a..b/x", "x:t:u",
        "x:.t", "x@y", "x\ny", "",
    ],
)  # fmt: skip
def test_an_image_name_that_leads_elsewhere_is_none(name: str) -> None:
    with pytest.raises(ValidationError):
        ContainerSettings(image=f"{name}@sha256:{HEX}")
