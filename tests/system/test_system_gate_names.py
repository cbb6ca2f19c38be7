"""Two gates of a repository share no name: neither in GitHub nor in the workspace."""

from __future__ import annotations

import pytest
from each_row import each_row
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gate.pipelines.scaffold import own_baseline, workflow_path
from gate.publishing.registry import commit_tag
from gate.report.comment import marker
from gate.settings.gate_settings import FILE_NAME
from gate.system.gate_names import (
    GATE_ID,
    artifact_name,
    check_name,
    gate_of_config,
    is_artifact_name,
    output_folder,
    status_context,
)
from gate.verdict.history_lines import badge_file, history_file

IDS = st.just("default") | st.from_regex(GATE_ID, fullmatch=True)
PATHS = st.lists(
    st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1).filter(
        lambda part: part not in {".", ".."}
    ),
    min_size=1,
).map("/".join)
# what git-check-ref-format(1) has for a branch, nearly
BRANCHES = st.text(
    st.characters(exclude_characters=" ~^:?*[\\\x7f", exclude_categories=("Cc", "Cs", "Zs")),
    min_size=1,
    max_size=255,
)
COMMIT = "c" * 40


def _names(gate_id: str) -> set[str]:
    """Every name that is derived from an id, with what it names."""
    names = {
        "comment": marker(gate_id),
        "history": history_file(gate_id),
        "badge": badge_file(gate_id),
        "tag": commit_tag(COMMIT, gate_id),
        "artifact": artifact_name(gate_id),
        "folder": output_folder(gate_id),
        # the lock lies in the folder
        "lock": f"{output_folder(gate_id)}/.lock",
        "check": check_name(gate_id),
        "status": status_context(gate_id, FILE_NAME, FILE_NAME),
        "workflow": workflow_path(gate_id),
        "baseline": own_baseline("second.yml", gate_id),
    }
    files = ("history", "badge")
    return {f"{'file' if kind in files else kind}: {name}" for kind, name in names.items()}


@example("default", "x")
@example("x", "x.badge")
@given(IDS, IDS)
def test_two_gates_share_no_name(one: str, other: str) -> None:
    assume(one != other)
    assert not _names(one) & _names(other)


@given(IDS)
def test_each_name_is_one_that_its_place_takes(gate_id: str) -> None:
    assert is_artifact_name(artifact_name(gate_id))
    assert "/" not in output_folder(gate_id) + history_file(gate_id)
    # of a registry's tag there are 128 characters (OCI distribution specification)
    assert len(commit_tag("c" * 64, gate_id)) <= 128


@example("a/b.yml", "a-b.yml", "default")
@given(PATHS, PATHS, IDS)
def test_the_status_of_two_settings_files_is_not_one(one: str, other: str, gate_id: str) -> None:
    assume(one != other)
    contexts = [status_context("default", path, FILE_NAME) for path in (one, other)]
    assert contexts[0] != contexts[1]
    assert gate_id == "default" or status_context(gate_id, one, FILE_NAME) not in contexts


@example(("default", "x) (into y"), ("default", "x"), "", "y")
@example(("default", "into main"), ("default", FILE_NAME), "", "main")
@given(
    st.tuples(IDS, PATHS),
    st.tuples(IDS, PATHS),
    st.one_of(st.just(""), BRANCHES),
    st.one_of(st.just(""), BRANCHES),
)
def test_the_status_of_two_pairs_of_gate_and_base_is_not_one(
    one: tuple[str, str], other: tuple[str, str], base: str, other_base: str
) -> None:
    assume(base != other_base)
    contexts = {
        status_context(*one, FILE_NAME, base),
        status_context(*other, FILE_NAME, other_base),
    }
    assert len(contexts) == 2
    # GitHub has room for 255
    assert max(map(len, contexts)) <= 255


@given(PATHS)
def test_an_id_made_of_a_path_is_an_id(path: str) -> None:
    assert GATE_ID.match(gate_of_config(path))
    assert "/" not in path or gate_of_config(path) != "default"


@pytest.mark.parametrize(
    ("path", "gate_id"),
    [
        ("repro-gate.yml", "default"),
        ("research/nlp/repro-gate.yml", "research-nlp"),
        ("repro-gate-nlp.yml", "nlp"),
        ("lab/vision.yml", "lab-vision"),
    ],
)
def test_the_id_of_a_settings_file_is_its_folder_and_name(path: str, gate_id: str) -> None:
    assert gate_of_config(path) == gate_id


@each_row("name", ["", "a/b", 'a"b', "a\nb", "-a", "x" * 101])
def test_a_name_that_github_refuses_for_an_artifact_is_refused(name: str) -> None:
    assert not is_artifact_name(name)
