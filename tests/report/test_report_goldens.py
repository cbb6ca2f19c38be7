"""The comment for every outcome, as a reviewer reads it; UPDATE_GOLDENS=1 writes the files."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from each_row import each_row
from report_cases import LINKS
from report_outcomes import CASES

from gate.report.comment import comment_text
from gate.verdict.verdict import Outcome

GOLDEN = Path(__file__).parent / "golden"


@each_row("name", CASES)
def test_comment_is_the_golden_one(name: str) -> None:
    path = GOLDEN / f"{name}.md"
    # only a pass is sealed, so only a pass can be verified
    links = LINKS if CASES[name].passes else replace(LINKS, verify_command="")
    # every new key of the settings moves their digest, and none of what a reviewer reads
    text = comment_text(CASES[name], links)
    if digest := CASES[name].settings_digest:
        text = text.replace(digest, "a digest of the settings")
    if os.environ.get("UPDATE_GOLDENS") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@each_row("name", CASES)
def test_a_comment_writes_percent_and_code_one_way(name: str) -> None:
    text = (GOLDEN / f"{name}.md").read_text(encoding="utf-8")
    assert not re.search(r"\d%|\\`", text)


def test_every_outcome_has_a_golden_file() -> None:
    assert {case.outcome for case in CASES.values()} == set(Outcome)
    assert {path.stem for path in GOLDEN.glob("*.md")} == set(CASES)
