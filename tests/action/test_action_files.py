"""action.yml, Dockerfile, requirements and pages tell one story, and it is the code's."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from each_row import each_row

from gate.package.secrets import InputSecrets
from gate.report.outputs import StepOutputs
from gate.settings.event import ActionInputs
from gate.system.files.files import LocalFiles

ROOT = Path(__file__).resolve().parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
REFRESH = ROOT / "examples" / "workflows" / "refresh-baseline.yml"
EXAMPLES = sorted((ROOT / "examples" / "workflows").glob("*.yml"))
TWO_JOBS = [path for path in EXAMPLES if path != REFRESH]
WORKFLOWS = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), *EXAMPLES]
# as the README writes it: who copies an example puts the release there that they trust
OWN_ACTION = "org/repro-gate@v1"
SLIM_ACTION = "org/repro-gate/slim@v1"
OWN_WORKFLOW = "org/repro-gate/.github/workflows/reusable.yml@v1"
OWN_ACTIONS = {OWN_ACTION, SLIM_ACTION, "org/repro-gate/container@v1", OWN_WORKFLOW}
# the one that others call, and the example that calls it
CALLED = ROOT / ".github" / "workflows" / "reusable.yml"
CALLER = ROOT / "examples" / "workflows" / "eight-lines.yml"
# those that part running from judging
TWO_JOBS = [path for path in EXAMPLES if re.search(r"mode: (run|judge)", path.read_text("utf-8"))]
ENTRY_POINT = ["/opt/repro-gate/bin/python", "-I", "-u", "-m", "gate", "action"]
SECRET_INPUTS = {"token", "signing_key", "signing_key_passphrase"}
FULL_HASH = re.compile(r"[^@\s]+@[0-9a-f]{40}|docker://[^@\s]+@sha256:[0-9a-f]{64}")


def _workflow(path: Path) -> dict[str, Any]:
    workflow: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return workflow


def _triggers(workflow: Mapping[Any, Any]) -> set[str]:
    # the key `on` is a truth value to YAML 1.1
    on = workflow[True]
    return {on} if isinstance(on, str) else set(on)


def _steps(workflow: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All steps; a job that calls a workflow has none, and counts as one."""
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [job])]


def _documented(heading: str) -> set[str]:
    """The names in the first column of the table below a heading of the page on the action."""
    page = (ROOT / "docs" / "action.md").read_text("utf-8")
    found = re.search(rf"^#+ {heading}$(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"docs/action.md has no heading {heading!r}"
    return set(re.findall(r"^\| *`([a-z_]+)` *\|", found[1], re.MULTILINE))


def _pins(name: str) -> dict[str, str]:
    """Package to version, without the part that names a build, such as +cpu."""
    text = (ROOT / "requirements" / name).read_text("utf-8")
    found = re.findall(r"^([\w-]+)==([^\s+]+)", text, re.MULTILINE)
    return {package.lower().replace("_", "-"): version for package, version in found}


def test_marketplace_takes_the_description() -> None:
    assert len(ACTION["description"]) < 125


def test_inputs_are_those_that_the_code_reads() -> None:
    plain = {field.name for field in fields(ActionInputs)}
    assert set(ACTION["inputs"]) == plain | SECRET_INPUTS


def test_each_secret_input_reaches_its_reader() -> None:
    variables = {f"INPUT_{name.upper()}": name for name in SECRET_INPUTS}
    secrets = InputSecrets(variables, LocalFiles())
    assert secrets.token() == "token"
    assert secrets.signing_key() == b"signing_key"
    assert secrets.passphrase() == b"signing_key_passphrase"


def test_outputs_are_those_that_the_code_writes() -> None:
    assert list(ACTION["outputs"]) == [field.name for field in fields(StepOutputs)]


@pytest.mark.parametrize("table", ["inputs", "outputs"])
def test_each_name_is_one_that_every_shell_can_hand_on(table: str) -> None:
    assert all(re.fullmatch(r"[a-z][a-z_]*", name) for name in ACTION[table])


@pytest.mark.parametrize("table", ["inputs", "outputs"])
def test_each_input_and_output_is_described(table: str) -> None:
    assert all(entry["description"].endswith(".") for entry in ACTION[table].values())


@pytest.mark.parametrize("table", ["inputs", "outputs"])
def test_the_page_lists_each_input_and_output(table: str) -> None:
    assert _documented(table.capitalize()) == set(ACTION[table])


def test_no_argument_carries_an_input_because_command_lines_are_readable_by_all() -> None:
    assert "${{" not in str(ACTION["runs"])


def test_action_starts_what_the_image_starts() -> None:
    runs = ACTION["runs"]
    assert (runs["using"], runs["image"]) == ("docker", "Dockerfile")
    assert [runs["entrypoint"], *runs["args"]] == ENTRY_POINT


def test_post_step_is_a_program_of_the_image_that_needs_no_argument() -> None:
    path = ROOT / "container" / "post-step"
    assert f"COPY container/post-step /code/bin/{path.name}" in DOCKERFILE
    assert ACTION["runs"]["post-entrypoint"] == f"/opt/repro-gate/code/bin/{path.name}"
    assert path.stat().st_mode & 0o111 == 0o111
    assert path.read_text("utf-8").startswith("#!/opt/repro-gate/bin/python -I")


def test_a_change_of_the_code_is_the_last_layer() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2].splitlines()[-1]
    assert last == "COPY --from=code /code /opt/repro-gate/code"
    dependencies = DOCKERFILE.partition(" AS dependencies\n")[2].partition("\nFROM ")[0]
    assert "COPY gate" not in dependencies


def test_entry_point_is_in_exec_form_so_that_signals_arrive() -> None:
    (line,) = re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)
    assert yaml.safe_load(line) == ENTRY_POINT


def test_the_code_under_test_cannot_replace_the_gate() -> None:
    assert "-I" in ENTRY_POINT[: ENTRY_POINT.index("-m")]


def test_base_image_is_pinned_by_digest() -> None:
    (default,) = re.findall(r"^ARG BASE_IMAGE=(.*)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", default)


def test_image_keeps_the_account_and_the_frontend_that_every_engine_has() -> None:
    assert not re.search(r"^(USER|# *syntax=)", DOCKERFILE, re.MULTILINE)
    assert "WORKDIR" not in DOCKERFILE.rpartition("\nFROM ")[2]


@pytest.mark.parametrize("name", ["gate.txt", "build.txt", "training.txt"])
def test_each_requirement_is_pinned_and_hashed(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text("utf-8")
    entries = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    assert entries
    assert all(re.match(r"[a-z0-9-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line) for line in entries)


def test_no_requirement_file_names_a_registry() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "requirements").glob("*.txt")]
    assert not [text for text in texts if "://" in text or "index-url" in text]


@pytest.mark.parametrize("name", ["gate.txt", "training.txt", "training-cpu.txt"])
def test_image_has_the_versions_that_the_tests_ran_with(name: str) -> None:
    tested = _pins("constraints.txt")
    moved = {
        package: version
        for package, version in _pins(name).items()
        if tested.get(package, version) != version
    }
    assert moved == {}


def test_a_workflow_grants_nothing_that_a_job_does_not_ask_for() -> None:
    for path in WORKFLOWS:
        workflow = _workflow(path)
        assert workflow["permissions"] == {}, path.name
        assert all("permissions" in job for job in workflow["jobs"].values()), path.name


def test_a_workflow_ends_by_itself() -> None:
    for path in WORKFLOWS:
        workflow: dict[Any, Any] = _workflow(path)
        # a call is one run with its caller
        assert ("concurrency" in workflow) == (path != CALLED), path.name
        if path == CALLED:
            inputs = workflow[True]["workflow_call"]["inputs"]
            minutes = [inputs["timeout-minutes"]["default"]]
        else:
            minutes = [
                job["timeout-minutes"] for job in workflow["jobs"].values() if "steps" in job
            ]
        assert minutes or path == CALLER
        # what a runner allows by itself; a call may train twelve times
        assert all(each <= 360 for each in minutes), path.name


def test_a_workflow_pins_each_action_by_its_full_hash() -> None:
    for path in WORKFLOWS:
        used = [step["uses"] for step in _steps(_workflow(path)) if "uses" in step]
        assert used, path.name
        own = OWN_ACTIONS if path in {*EXAMPLES, CALLED} else {"./", "./slim"}
        assert all(name in own or FULL_HASH.fullmatch(name) for name in used), path.name


def test_a_checkout_leaves_no_token_behind() -> None:
    for path in WORKFLOWS:
        steps = _steps(_workflow(path))
        checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
        assert checkouts or path == CALLER, path.name
        kept = [step for step in checkouts if step["with"]["persist-credentials"] is not False]
        assert kept == [], path.name


def _modes(job: Mapping[str, Any]) -> list[str]:
    own = [step for step in job["steps"] if step.get("uses") in {OWN_ACTION, SLIM_ACTION}]
    return [step["with"]["mode"] for step in own]


@each_row("path", TWO_JOBS)
def test_an_example_uses_inputs_that_exist_and_keeps_the_two_jobs_apart(path: Path) -> None:
    jobs = _workflow(path)["jobs"].values()
    # a job that calls the command line alone has neither
    for job in (job for job in jobs if "repro-gate slo" not in str(job)):
        assert _modes(job) in (["run"], ["judge"], ["judge", "link"])
        text = str(job)
        if _modes(job) == ["run"]:
            assert job["permissions"] == {"contents": "read"}
            assert "secrets." not in text
            assert "'token': ''" in text
        else:
            assert "head.sha" not in text
            assert "'ref'" not in text
        for step in job["steps"]:
            if step.get("uses") in {OWN_ACTION, SLIM_ACTION}:
                assert set(step["with"]) <= set(ACTION["inputs"])


def test_what_runs_a_forks_code_has_no_trigger_with_secrets() -> None:
    for path in TWO_JOBS:
        workflow = _workflow(path)
        runs = any(_modes(job) == ["run"] for job in workflow["jobs"].values())
        triggers = _triggers(workflow)
        if runs:
            # a fork starts the first two; the others run what the repository has merged already
            harmless, merged = {"pull_request", "merge_group"}, {"push", "schedule"}
            assert triggers <= harmless or triggers <= merged
        else:
            assert triggers == {"workflow_run"}


def test_own_gate_uses_inputs_that_exist() -> None:
    steps = _steps(_workflow(ROOT / ".github" / "workflows" / "gate.yml"))
    own = [step for step in steps if step.get("uses") == "./"]
    assert own
    for step in own:
        assert set(step["with"]) <= set(ACTION["inputs"])
        assert (ROOT / step["with"]["config"]).is_file()


def test_the_refresh_uses_inputs_and_outputs_that_exist() -> None:
    text = REFRESH.read_text("utf-8")
    (gate,) = [step for step in _steps(_workflow(REFRESH)) if step.get("uses") == OWN_ACTION]
    assert set(gate["with"]) <= set(ACTION["inputs"])
    assert set(re.findall(r"steps\.gate\.outputs\.(\w+)", text)) <= set(ACTION["outputs"])


def test_the_refresh_trains_where_nothing_can_be_written() -> None:
    train, opened = _workflow(REFRESH)["jobs"].values()
    assert train["permissions"] == {"contents": "read"}
    assert not [step for step in opened["steps"] if step.get("uses") == OWN_ACTION]


def test_the_refresh_hands_no_persons_text_to_a_shell() -> None:
    scripts = [step["run"] for step in _steps(_workflow(REFRESH)) if "run" in step]
    assert scripts
    assert not [script for script in scripts if "${{" in script]


def test_the_pages_show_a_few_small_pictures() -> None:
    pictures = sorted((ROOT / "docs" / "screenshots").iterdir())
    shown = "".join((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/action.md"))
    assert 0 < len(pictures) <= 4
    for picture in pictures:
        assert picture.stat().st_size < 150_000
        assert f"screenshots/{picture.name}" in shown


def test_the_image_gets_every_package_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["packages"]["find"]["include"]
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    for package in (pattern.removesuffix("*") for pattern in patterns):
        assert f"\nCOPY {package} {package}\n" in DOCKERFILE
        assert f"!{package}" in ignored
