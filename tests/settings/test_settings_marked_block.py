from __future__ import annotations

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import SettingsError
from gate.settings.load import BEGIN, END, parse_settings, with_block

HEAD = "version: 1 # mine\ntrain: {command: python a.py, max_steps: 3}\n"
BLOCK = "# measured\ncompare:\n  tolerances:\n    - metric: loss\n      absolute: 0.5\n"
OWN = "compare: {tensors: {relative: 0}}\n"
OTHER = BLOCK.replace("0.5", "0.25")


def _put(text: str, block: str = BLOCK) -> str:
    return with_block(text.encode(), block, "repro-gate.yml").decode()


@pytest.mark.parametrize("head", [HEAD, HEAD.rstrip("\n"), HEAD.replace("\n", "\r\n")])
def test_it_is_put_at_the_end_and_replaced_later_and_the_rest_stays(head: str) -> None:
    first = _put(head)
    assert first.startswith(head.rstrip("\r\n"))
    second = _put(first, OTHER)
    assert second == first.replace("0.5", "0.25")
    (rule,) = parse_settings(second.encode(), "x").compare.tolerances
    assert rule.absolute == 0.25


def test_what_stands_after_the_block_stays() -> None:
    text = _put(HEAD) + "report: {gate_id: a}\n"
    assert _put(text, OTHER).endswith(f"{END}\nreport: {{gate_id: a}}\n")


@each_row(
    ("text", "why"),
    [
        (HEAD + OWN, "has a compare section of its own"),
        (f"{HEAD}{BEGIN}\n", "needs each of the two marks once"),
        (f"{HEAD}{END}\n{BEGIN}\n", "needs each of the two marks once"),
        (f"{HEAD}{BEGIN}\n{BEGIN}\n{END}\n", "needs each of the two marks once"),
        (f"{HEAD}{BEGIN}\nnoise: {{runs: 3}}\n{END}\n", "would change more than the tolerances"),
        (f"{HEAD}{BEGIN}\n{OWN}{END}\n", "would change more than the tolerances"),
        ("{version: 1, train: {command: a, max_steps: 1}}\n", "do not fit into it: "),
        (f"{HEAD}compare:\n  tolerances: []\n{BEGIN}\n{END}\n", "do not fit into it: "),
        (f"{HEAD}...\n", "do not fit into it: "),
    ],
)
def test_what_cannot_be_done_safely_is_refused(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as refused:
        _put(text)
    assert refused.value.hint.startswith("Nothing was written.")


@given(st.text(st.sampled_from("\n\r #>|'\"{}[]:-&*!%@a"), max_size=30))
def test_whatever_else_the_file_holds_is_left_or_the_file_is_refused(rest: str) -> None:
    text = HEAD + rest
    try:
        parse_settings(text.encode(), "x")
        changed = _put(text)
    except SettingsError:
        return
    before, after = (parse_settings(one.encode(), "x") for one in (text, changed))
    assert after.model_copy(update={"compare": before.compare}) == before
    assert [rule.absolute for rule in after.compare.tolerances] == [0.5]
