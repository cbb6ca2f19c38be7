"""Settings that differ are named word by word, whatever text they hold."""

from __future__ import annotations

import json

from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.differences import OtherSetting
from gate.verdict.reasons import changed_words, settings_words

BASE = ("python", "sft.py", "--use_peft", "--lora_alpha", "8", "--lr=0.1")


def command(*words: str, before: tuple[str, ...] = BASE) -> OtherSetting:
    return OtherSetting(
        key="train.command", before=json.dumps(list(before)), after=json.dumps(list(words))
    )


def test_a_number_is_named_with_its_option() -> None:
    changed = command(*BASE[:4], "9", BASE[5])
    assert settings_words((changed,)) == "train.command (--lora_alpha 8 → 9)"


@each_row(
    ("words", "told"),
    [
        ((*BASE[:5], "--lr=0.2"), "--lr=0.1 → --lr=0.2"),
        ((*BASE, "--epochs", "3"), "--epochs 3 added"),
        ((*BASE[:2], *BASE[3:]), "--use_peft removed"),
        (("python", "dpo.py", *BASE[2:]), "sft.py → dpo.py"),
        ((*BASE[:4], "a b", BASE[5]), "--lora_alpha 8 → 'a b'"),
    ],
)
def test_words_that_come_go_or_change_are_named(words: tuple[str, ...], told: str) -> None:
    assert changed_words(command(*words)) == (told,)


def test_variables_and_numbers_are_named_by_both_values() -> None:
    settings = (
        OtherSetting(key="train.env.LR", before='"0.1"', after='"0.2"'),
        OtherSetting(key="train.env.NEW", after='"1"'),
        OtherSetting(key="train.max_steps", before="24", after="15"),
        OtherSetting(key="train.seed", before="1", after="2"),
    )
    assert settings_words(settings) == (
        "train.env.LR (0.1 → 0.2), train.env.NEW (none → 1), train.max_steps (24 → 15) and 1 more"
    )


@given(st.lists(st.text(max_size=300), max_size=40), st.lists(st.text(max_size=300), max_size=40))
def test_any_command_is_one_short_harmless_line(one: list[str], other: list[str]) -> None:
    words = settings_words((command(*other, before=tuple(one)),))
    assert len(words) < 1200
    assert words.isprintable()
    assert "::" not in words
