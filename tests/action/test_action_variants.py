"""The action for a job's own container, examples and documents say what action.yml says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from workflows_in_documents import main, workflows

from gate.cli import QUICK_VERBS
from gate.records.version import VERSION
from gate.settings.load import parse_settings
from gate.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
INSIDE: dict[str, Any] = yaml.safe_load((ROOT / "container" / "action.yml").read_text("utf-8"))
EXAMPLES = sorted((ROOT / "examples" / "workflows").glob("*.yml"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SLIM: dict[str, Any] = yaml.safe_load((ROOT / "slim" / "action.yml").read_text("utf-8"))
(STEP,) = INSIDE["runs"]["steps"]
SHELL_BLOCK = re.compile(r"^```(?:sh)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RELEASED = re.compile(r"^## \[(\d+\.\d+\.\d+)\]", re.MULTILINE)
SETTINGS_BLOCK = re.compile(r"^```yaml\n(version: 1\n.*?)^```$", re.MULTILINE | re.DOTALL)


def test_both_actions_take_the_same_inputs_and_one_more() -> None:
    assert INSIDE["inputs"].keys() - ACTION["inputs"].keys() == {"requirements"}
    assert {name: INSIDE["inputs"][name] for name in ACTION["inputs"]} == ACTION["inputs"]


def test_the_action_without_torch_differs_in_name_and_image_alone() -> None:
    own = {"name", "description", "branding", "runs"}
    assert {key: SLIM[key] for key in SLIM if key not in own} == {
        key: ACTION[key] for key in ACTION if key not in own
    }
    assert SLIM["runs"] == {**ACTION["runs"], "image": "../Dockerfile"}
    assert len(SLIM["description"]) < 125


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_what_trains_in_the_actions_image_has_torch_there(path: Path) -> None:
    text = path.read_text("utf-8")
    for job in yaml.safe_load(text)["jobs"].values():
        for step in job["steps"]:
            if "/slim@" in step.get("uses", ""):
                assert step.get("with", {}).get("mode") == "judge" or "isolation:" in text


def test_each_input_reaches_the_gate_by_a_variable_and_by_no_argument() -> None:
    given = {f"INPUT_{name.upper()}": f"${{{{ inputs.{name} }}}}" for name in INSIDE["inputs"]}
    assert STEP["env"] == given
    assert "${{" not in STEP["run"]


def test_both_actions_give_the_same_outputs() -> None:
    descriptions = {name: output["description"] for name, output in INSIDE["outputs"].items()}
    assert descriptions == {name: text["description"] for name, text in ACTION["outputs"].items()}
    for name, output in INSIDE["outputs"].items():
        assert output["value"] == f"${{{{ steps.gate.outputs.{name} }}}}"


def test_the_step_needs_nothing_but_sh_and_python() -> None:
    assert STEP["shell"] == "sh"
    assert STEP["run"] == 'exec python3 -I "$GITHUB_ACTION_PATH/start.py"'
    assert (ROOT / "container" / "start.py").is_file()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_uses_inputs_that_its_action_has(path: Path) -> None:
    for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values():
        for step in job["steps"]:
            known = INSIDE if "/container@" in step.get("uses", "") else ACTION
            if step.get("uses", "").startswith("org/repro-gate"):
                assert step.get("with", {}).keys() <= known["inputs"].keys()


def test_the_documents_that_the_program_and_the_examples_name_are_there() -> None:
    texts = [*(ROOT / "gate").rglob("*.py"), *EXAMPLES, *DOCUMENTS, ROOT / ".github" / "zizmor.yml"]
    named = {name for path in texts for name in re.findall(r"docs/[a-z-]+\.md", path.read_text())}
    assert {name for name in named if not (ROOT / name).is_file()} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_each_link_between_documents_leads_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text("utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_each_page_for_users_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for page in ("quick-start", "gpu", "permissions", "forks", "required-check", "kubernetes"):
        assert f"(docs/{page}.md)" in readme
    for page in ("baseline", "limits", "enterprise-server"):
        assert f"(docs/{page}.md)" in readme


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_settings_in_a_document_are_valid(path: Path) -> None:
    for block in SETTINGS_BLOCK.findall(path.read_text("utf-8")):
        parse_settings(block.encode(), path.name)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_each_command_in_a_document_is_one_of_ours(path: Path) -> None:
    text = path.read_text("utf-8")
    lines = [line for block in SHELL_BLOCK.findall(text) for line in block.splitlines()]
    words = [line.split() for line in lines if line.strip()]
    verbs = {first[1] for first in words if first[0] == "repro-gate" and len(first) > 1}
    assert verbs <= VERBS.keys() | QUICK_VERBS.keys()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {first[1] for first in words if first[0] == "make"} <= targets


def test_a_workflow_in_a_document_is_found_for_the_linters(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```yaml\non: push\njobs: {}\n```\n\n```yaml\nversion: 1\n```\n")
    assert workflows(page.read_text()) == ("on: push\njobs: {}\n",)
    main(tmp_path, [page])
    assert (tmp_path / "page-block-1.yml").read_text() == "on: push\njobs: {}\n"


def test_the_changelog_and_the_code_agree_on_the_version() -> None:
    released = RELEASED.findall((ROOT / "CHANGELOG.md").read_text("utf-8"))
    numbers = [tuple(map(int, version.split("."))) for version in (VERSION, *released)]
    assert numbers == sorted(numbers, reverse=True)
