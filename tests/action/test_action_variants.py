"""The action for a job's own container, examples and documents say what action.yml says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from each_row import each_row
from workflows_in_documents import main, workflows

from gate.system.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
INSIDE: dict[str, Any] = yaml.safe_load((ROOT / "container" / "action.yml").read_text("utf-8"))
EXAMPLES = sorted((ROOT / "examples" / "workflows").glob("*.yml"))
SLIM: dict[str, Any] = yaml.safe_load((ROOT / "slim" / "action.yml").read_text("utf-8"))
(STEP,) = INSIDE["runs"]["steps"]
RELEASED = re.compile(r"^## \[(\d+\.\d+\.\d+)\]", re.MULTILINE)


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


@each_row("path", EXAMPLES)
def test_what_trains_in_the_actions_image_has_torch_there(path: Path) -> None:
    text = path.read_text("utf-8")
    for job in yaml.safe_load(text)["jobs"].values():
        for step in job.get("steps", []):
            if "/slim@" in step.get("uses", ""):
                assert step.get("with", {}).get("mode") in {"judge", "link"} or "isolation:" in text


def test_each_input_reaches_the_gate_by_a_variable_and_by_no_argument() -> None:
    given = {f"INPUT_{name.upper()}": f"${{{{ inputs.{name} }}}}" for name in INSIDE["inputs"]}
    assert STEP["env"] == given
    assert "${{" not in STEP["run"]


def test_both_actions_give_the_same_outputs() -> None:
    descriptions = {name: output["description"] for name, output in INSIDE["outputs"].items()}
    assert descriptions == {name: text["description"] for name, text in ACTION["outputs"].items()}
    for name, output in INSIDE["outputs"].items():
        assert output["value"] == f"${{{{ steps.gate.outputs.{name} }}}}"


@pytest.mark.parametrize("page", ["docs/action.md", "docs/package.md"])
def test_the_checkpoint_digest_is_described_in_the_same_words_everywhere(page: str) -> None:
    words = ACTION["outputs"]["checkpoint_digest"]["description"]
    assert words.removesuffix(".") in " ".join((ROOT / page).read_text("utf-8").split())


def test_the_step_needs_nothing_but_sh_and_python() -> None:
    assert STEP["shell"] == "sh"
    assert STEP["run"] == 'exec python3 -I "$GITHUB_ACTION_PATH/start.py"'
    assert (ROOT / "container" / "start.py").is_file()


@each_row("path", EXAMPLES)
def test_an_example_uses_inputs_that_its_action_has(path: Path) -> None:
    for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values():
        for step in job.get("steps", []):
            known = INSIDE if "/container@" in step.get("uses", "") else ACTION
            if step.get("uses", "").startswith("org/repro-gate"):
                assert step.get("with", {}).keys() <= known["inputs"].keys()


def test_each_page_for_users_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for page in ("quick-start", "gpu", "permissions", "forks", "required-check", "kubernetes"):
        assert f"(docs/{page}.md)" in readme
    for page in ("baseline", "limits", "enterprise-server", "settings", "action", "commands"):
        assert f"(docs/{page}.md)" in readme


def test_the_readme_is_read_in_a_few_minutes() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    prose = re.sub(r"```.*?```|<[^>]*>|\]\([^)]*\)", "", text, flags=re.DOTALL)
    assert len(re.findall(r"[^\s|]+", prose)) <= 900
    # what it is about is seen before anything is read
    assert "docs/screenshots/" in "\n".join(text.splitlines()[:20])


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
