"""docs/settings.md is what the schema says, and each of its examples is a valid file."""

from __future__ import annotations

import re

import yaml
from each_row import each_row
from known_names import section_keys, setting_keys
from settings_reference import EXAMPLES, PAGE, SCHEMA, page_text

from gate.commands.schema import schema_text
from gate.pipelines.reader_questions import ReadingFault, SettingsQuestion
from gate.pipelines.scaffold import SCHEMA_LINE
from gate.settings.gate_settings import GateSettings
from gate.settings.load import MINIMAL_FILE, parse_settings
from gate.settings.reach import INSIDE, REACHES_OUT
from gate.text.documents import read_document, write_document

TEXT = PAGE.read_text("utf-8")


def test_the_page_is_what_the_schema_gives() -> None:
    assert page_text() == TEXT, "run `make settings-reference`"


def test_the_schema_that_editors_read_is_shipped_where_a_settings_file_says() -> None:
    assert SCHEMA.read_text("utf-8") == schema_text(), "run `make settings-reference`"
    name = SCHEMA_LINE.rstrip().rpartition("/v1/")[2]
    assert PAGE.parents[1] / name == SCHEMA


def test_every_key_has_its_row() -> None:
    for key in setting_keys().keys() - section_keys():
        section, _, name = key.partition(".")
        part = TEXT.partition(f"## {section}\n")[2].partition("\n## ")[0] if name else TEXT
        rows = [line.split("`")[1] for line in part.splitlines() if line.startswith("| `")]
        assert (name or section) in {row.replace("[]", "") for row in rows}


@each_row("section", EXAMPLES)
def test_the_example_of_a_section_is_valid_and_sets_that_section(section: str) -> None:
    whole = {**yaml.safe_load(MINIMAL_FILE), **yaml.safe_load(EXAMPLES[section])}
    settings = parse_settings(yaml.safe_dump(whole).encode(), "docs/settings.md")
    assert yaml.safe_load(EXAMPLES[section]).keys() == {section}
    assert section in settings.model_fields_set
    assert f"```yaml\n{EXAMPLES[section]}```" in TEXT


def test_each_section_has_an_example_and_one_shows_tolerances() -> None:
    sections = {key for key in section_keys() if "." not in key}
    assert EXAMPLES.keys() == sections <= GateSettings.model_fields.keys()
    shown = yaml.safe_load(EXAMPLES["compare"])["compare"]["tolerances"]
    keys = {"metric", "absolute", "relative", "ulp", "steps", "derived"}
    assert set().union(*shown) == keys


def test_each_sentence_of_the_schema_is_one() -> None:
    """A capital or a name at its start, a full stop at its end."""
    for key, model in setting_keys().items():
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        sentence = fields[key.rpartition(".")[2]].description or ""
        assert sentence.endswith("."), key
        assert sentence[0].isupper() or sentence[0] == "`", key


@each_row("section", ["", *EXAMPLES])
def test_settings_survive_the_way_from_the_process_that_reads_them(section: str) -> None:
    whole = {**yaml.safe_load(MINIMAL_FILE), **yaml.safe_load(EXAMPLES.get(section, "{}"))}
    settings = parse_settings(yaml.safe_dump(whole).encode(), "repro-gate.yml")
    form = SettingsQuestion.answer_form()
    answer = write_document(form.model_validate({"result": {"kind": "answer", "answer": settings}}))
    result = read_document(form, answer, "answer", max_bytes=2**20).result
    assert not isinstance(result, ReadingFault)
    assert result.answer == settings


def test_the_page_on_the_first_pull_request_names_every_key_that_is_refused() -> None:
    page = (PAGE.parent / "required-check.md").read_text("utf-8")
    section = page.partition("## The first pull request")[2].partition("\n## ")[0]
    named = {word.partition(":")[0] for word in re.findall(r"`([a-z_.: ]+)`", section)}
    # a section may stand for all of its keys
    told = {key for key in REACHES_OUT if any(f"{key}.".startswith(f"{one}.") for one in named)}
    assert told == REACHES_OUT.keys()
    assert not {key for key in INSIDE if any(f"{key}.".startswith(f"{one}.") for one in named)}
