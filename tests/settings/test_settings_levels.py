"""Seeds, variants, margins and rankings that could not be judged are refused, each in one line."""

from __future__ import annotations

import pytest
from each_row import each_row

from gate.errors import SettingsError
from gate.settings.gate_settings import GateSettings
from gate.settings.load import parse_settings, training_settings

HEAD = "version: 1\ntrain: {command: python a.py, max_steps: 3}\n"
MARGIN = "policy: {level: statistical, equivalence: {loss: {absolute: 0.1}}}\n"
RANKING = "policy: {level: scientific, ranking: {metric: loss, better_is: lower}}\n"
VARIANTS = "variants: {a: {arguments: --x}, b: {arguments: --y}}\n"
SEEDS = "seeds: [42, 1, 2]\n"


def _parsed(text: str) -> GateSettings:
    return parse_settings((HEAD + text).encode(), "repro-gate.yml")


def test_whole_settings_of_both_levels_are_taken() -> None:
    assert _parsed(SEEDS + MARGIN).seeds == (42, 1, 2)
    assert _parsed(SEEDS + VARIANTS + RANKING).variants["b"].arguments == ("--y",)


@each_row(
    ("text", "why"),
    [
        (SEEDS, "seeds: needs policy.level: statistical or scientific, and it is numerical"),
        (f"seeds: [42, 1]\n{MARGIN}", "seeds: needs at least 3 seeds, not 2"),
        (f"seeds: [42]\n{MARGIN}", "seeds: needs at least 3 seeds, not 1"),
        (f"seeds: {list(range(1000))}\n{MARGIN}", "seeds: must have at most 20 entries"),
        (f"seeds: [42, 1, 1]\n{MARGIN}", "seeds: names seed 1 twice: it would count as two"),
        (f"seeds: [42, 1, -1]\n{MARGIN}", "seeds[2]: must be greater than or equal to 0"),
        (f"seeds: [42, 1, true]\n{MARGIN}", "seeds[2]: must be a valid integer"),
        (f"seeds: [1, 2, 3]\n{MARGIN}", "seeds: must include train.seed (42), whose strict runs"),
        (MARGIN, "policy.level: statistical needs seeds, for example seeds: [42, 1, 2, 3, 4]"),
        (SEEDS + RANKING, "policy.level: scientific needs variants, for example variants: {adam"),
        (SEEDS + VARIANTS + MARGIN, "variants: needs policy.level: scientific, and it is statis"),
        (
            f"{SEEDS}variants: {{a: {{arguments: --x}}}}\n{RANKING}",
            "variants: needs at least 2 variants: one alone has no rank",
        ),
        (
            f"{SEEDS}variants: {{a: {{arguments: --x}}, b: {{}}}}\n{RANKING}",
            "variants.b: needs arguments or command, and not both",
        ),
        (
            f"{SEEDS}variants: {{a: {{arguments: --x}}, ../b: {{arguments: --y}}}}\n{RANKING}",
            "must match the pattern",
        ),
    ],
)
def test_seeds_and_variants_that_cannot_be_judged_are_refused(text: str, why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        _parsed(text)
    assert why in " ".join(refused.value.details)


@each_row(
    ("policy", "why"),
    [
        ("{level: statistical}", "level: statistical needs equivalence, for example {loss: {abs"),
        ("{level: scientific}", "level: scientific needs ranking, for example {metric: file.acc"),
        ("{equivalence: {loss: {absolute: 1}}}", "equivalence is judged at level: statistical al"),
        ("{ranking: {metric: a, better_is: lower}}", "ranking is judged at level: scientific alo"),
        ("{level: statistical, equivalence: {a: {absolute: 0}}}", "must be greater than 0"),
        ("{level: statistical, equivalence: {a: {relative: .nan}}}", "must be a finite number"),
        ("{level: statistical, equivalence: {a: {}}}", "needs absolute or relative, and not both"),
        (
            "{level: statistical, equivalence: {a: {absolute: 1, relative: 1}}}",
            "needs absolute or relative, and not both",
        ),
        (
            "{level: statistical, equivalence: {a: {absolute: 1}}, require_bitwise: true}",
            "level: statistical and require_bitwise: true exclude each other",
        ),
        ("{level: scientific, ranking: {metric: a, better_is: up}}", "'lower' or 'higher'"),
    ],
)
def test_a_policy_that_cannot_be_judged_is_refused(policy: str, why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        _parsed(f"{SEEDS}policy: {policy}\n")
    assert why in " ".join(refused.value.details)


def test_seeds_are_no_part_of_the_experiment_and_variants_are() -> None:
    assert "seeds" not in " ".join(training_settings(_parsed(SEEDS + MARGIN)))
    names = training_settings(_parsed(SEEDS + VARIANTS + RANKING))
    assert names["variants.a.arguments"] == '["--x"]'


@pytest.mark.parametrize(
    ("command", "same"),
    [
        ("torchrun --nproc-per-node 4 train.py", True),
        ("torchrun --nproc-per-node=2 train.py", False),
        ("torchrun --nproc-per-node 2 train.py --lr 2", False),
    ],
)
def test_the_number_of_ranks_is_no_part_of_the_experiment(command: str, same: bool) -> None:  # noqa: FBT001 - a case
    train = "version: 1\ntrain: {{command: {}, max_steps: 3}}\n"
    texts = (train.format(one) for one in ("torchrun --nproc-per-node 2 train.py", command))
    one, other = (training_settings(parse_settings(text.encode(), "x")) for text in texts)
    assert (one == other) is same
