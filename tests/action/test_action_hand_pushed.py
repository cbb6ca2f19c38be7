"""A tag that was pushed by hand builds the image in every job: the action says so in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from each_row import each_row

from gate.action.main import RELEASED, hand_pushed_tag

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("tag", ["v1", "v1.2.3"])
def test_a_tag_without_a_release_is_told(tag: str) -> None:
    said = hand_pushed_tag({"GITHUB_ACTION_REF": tag})
    assert said.startswith(f"the tag {tag} of this action was pushed by hand: ")
    assert "\n" not in said


@each_row(
    "variables",
    [
        {},
        {"GITHUB_ACTION_REF": "main"},
        {"GITHUB_ACTION_REF": "a" * 40},
        {"GITHUB_ACTION_REF": "v1\n::error::x"},
        {"GITHUB_ACTION_REF": "v1", RELEASED: "1.0.0"},
    ],
)
def test_a_release_a_branch_a_commit_and_a_checkout_are_not(variables: dict[str, str]) -> None:
    assert hand_pushed_tag(variables) == ""


def test_only_a_releases_image_says_that_it_is_one() -> None:
    assert f"ENV {RELEASED}=${{RELEASE}}" in (ROOT / "Dockerfile").read_text("utf-8")
    assert '"RELEASE=$version"' in (ROOT / "scripts" / "release_image.sh").read_text("utf-8")
