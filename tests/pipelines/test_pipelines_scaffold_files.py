"""The files of `init` as text: the gate's own loader takes them, whatever the command is."""

from __future__ import annotations

import shlex

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from workflows_in_documents import workflows
from written_texts import ROOT, pages

from gate.pipelines.scaffold import (
    WORKFLOW,
    Training,
    WorkTree,
    environments,
    plan_files,
    settings_text,
    with_action,
    with_lines,
    workflow_text,
)
from gate.settings.load import MINIMAL_FILE, parse_settings

TRAINING = Training(command="python train.py")
# no program can be given a zero byte, and none is called `A=1`
WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
    min_size=1,
).filter(lambda words: "=" not in words[0])


def _ignored(gitignore: str, *names: str) -> tuple[str, ...]:
    tree = WorkTree(names=names, sources={}, gitignore=gitignore)
    return plan_files(tree, {}, frozenset(), None).ignore


def test_the_usual_settings_say_what_a_minimal_file_says() -> None:
    written = parse_settings(settings_text(TRAINING, 20).encode(), "repro-gate.yml")
    assert written == parse_settings(MINIMAL_FILE.encode(), "repro-gate.yml")


@example(["a\x85b"], 1)
@example(["a\u2028b"], 1)
@given(WORDS, st.integers(1, 100_000))
def test_any_command_is_read_back_as_it_was_given(words: list[str], steps: int) -> None:
    text = settings_text(Training(command=shlex.join(words)), steps)
    train = parse_settings(text.encode(), "repro-gate.yml").train
    assert (train.command, train.max_steps) == (tuple(words), steps)


@given(st.text(st.characters(categories=("L", "N", "Zs", "P")), min_size=1, max_size=50))
def test_any_folder_is_read_back_as_it_was_given(name: str) -> None:
    text = settings_text(Training(command="python train.py", workdir=f"a{name}b"), 1)
    assert yaml.safe_load(text)["train"]["workdir"] == f"a{name}b"


def test_the_workflow_is_the_one_that_the_readme_shows() -> None:
    (readme,) = (page for page in pages() if page.name == "README.md")
    assert WORKFLOW in workflows(readme.text)


def test_the_workflow_keeps_its_promises() -> None:
    workflow = yaml.safe_load(WORKFLOW)
    (job,) = workflow["jobs"].values()
    upload, page, link = job["steps"][-3:]
    # one file, as it is: a click opens it
    assert page["with"]["archive"] is False
    # and one from the comment
    assert link["with"]["page_url"] == f"${{{{ steps.{page['id']}.outputs.artifact-url }}}}"
    assert workflow["permissions"] == {}
    assert workflow["concurrency"]["cancel-in-progress"] is True
    # YAML 1.1 reads the key `on` as true
    assert workflow[True].keys() == {"pull_request", "merge_group"}
    assert upload["uses"].startswith("actions/upload-artifact@")
    assert upload["if"] == "${{ !cancelled() }}"
    assert job.keys().isdisjoint({"if"})


def test_the_workflow_of_a_second_gate_names_it_everywhere() -> None:
    first, second = yaml.safe_load(WORKFLOW), yaml.safe_load(workflow_text("a/b: c.yml", "nlp"))
    (job,) = second["jobs"].values()
    gate, upload, page, link = job["steps"][-4:]
    assert link["with"]["gate_id"] == "nlp"
    assert page["with"]["path"] == "repro-gate-out-nlp/report.html"
    assert gate["with"] == {"config": "a/b: c.yml", "gate_id": "nlp"}
    assert (upload["with"]["name"], upload["with"]["path"]) == (
        "repro-gate-nlp",
        "repro-gate-out-nlp/",
    )
    assert (second["name"], job["name"]) == ("repro-gate-nlp", "gate (nlp)")
    assert (second["concurrency"], second[True]) == (first["concurrency"], first[True])


@pytest.mark.parametrize("name", ["README.md", "docs/quick-start.md"])
def test_the_settings_that_a_page_shows_are_the_ones_written(name: str) -> None:
    assert f"```yaml\n{settings_text(TRAINING, 20)}```" in (ROOT / name).read_text("utf-8")


def test_files_name_the_action_of_its_owner() -> None:
    texts = (settings_text(TRAINING, 20), WORKFLOW)
    owned = [with_action(text, "acme/repro-gate") for text in texts]
    assert all("acme/repro-gate" in text and "org/" not in text for text in owned)


def test_a_file_that_is_there_is_kept() -> None:
    tree = WorkTree(names=("a.yml",), sources={})
    plan = plan_files(tree, {"a.yml": "new", "b.yml": "new"}, frozenset(("a.yml",)), TRAINING)
    assert (dict(plan.new), plan.kept) == ({"b.yml": "new"}, ("a.yml",))


def test_output_and_environments_are_ignored_unless_they_are_already() -> None:
    names = (".venv/pyvenv.cfg", "tools/env/pyvenv.cfg", "train.py")
    assert _ignored("", *names) == ("repro-gate-out/", ".venv/", "tools/env/")
    assert _ignored("*.pyc\n/repro-gate-out\n.venv\n", *names) == ("tools/env/",)
    assert _ignored("repro-gate-out/\r\n.venv/\r\n", ".venv/pyvenv.cfg") == ()


def test_a_folder_that_would_be_a_pattern_is_spelt_out() -> None:
    assert _ignored("repro-gate-out/", "my env[1]/pyvenv.cfg") == ("my\\ env\\[1]/",)


def test_a_project_in_an_environment_is_none() -> None:
    assert environments(("pyvenv.cfg", "train.py")) == ()


def test_lines_are_appended_behind_a_whole_line() -> None:
    assert with_lines("*.pyc", ("a/", "b/")) == "\na/\nb/\n"
    assert with_lines("*.pyc\n", ("a/",)) == "a/\n"
    assert with_lines("", ("a/",)) == "a/\n"
