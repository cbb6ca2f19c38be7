"""Cost and noise documents on a terminal and as Markdown; names come from the training."""

from __future__ import annotations

import io

import pytest
from each_row import each_row
from hypothesis import assume, given
from report_hostile import HOSTILE
from rich.console import Console, RenderableType

from gate.comparison.calibration import tolerance_snippet
from gate.comparison.differences import CostState
from gate.comparison.measurements import (
    ArmFigures,
    CostDocument,
    KnobPrice,
    KnobState,
    MetricNoise,
    MinimalSet,
    NoiseDocument,
    Price,
    Provenance,
    ReductionSpread,
    UlpQuantile,
    WeightNoise,
)
from gate.report.measurement_sections import (
    cost_headline,
    cost_markdown,
    cost_view,
    noise_headline,
    noise_markdown,
    noise_view,
)
from gate.settings.load import parse_settings
from gate.training.environment import Environment


def _provenance(text: str = "cpu") -> Provenance:
    return Provenance(
        commit="a" * 40,
        changed_files=("train.py",),
        created_at="2026-01-02T03:04:05+00:00",
        settings_digest="1" * 64,
        training_digest="2" * 64,
        isolation="none",
        environment=Environment(parts={"device": text, "cpu": text, "torch": "2.13.0"}),
    )


def _price(ratio: float | None = 1.2, **changes: object) -> Price:
    bounds = None if ratio is None else ratio * 0.99
    price = Price(
        arm="strict", over="default", state=CostState.MEASURED, ratio=ratio, low=bounds, high=bounds
    )
    return price.model_copy(update=changes)


def _cost(price: Price | None = None, **changes: object) -> CostDocument:
    cost = CostDocument(
        provenance=_provenance(),
        rounds=3,
        warmup_steps=5,
        steps_used=20,
        order=("default-a-r1",),
        arms=(
            ArmFigures(
                name="strict",
                knobs=("cublas_workspace",),
                runs=3,
                step_seconds=0.02,
                cold_start_seconds=None,
                peak_memory_bytes=2**21,
                device_memory_bytes=0,
                distinct_results=1,
            ),
        ),
        control=_price(1.0),
        prices=(price or _price(),),
        judged_arm="strict",
        attribution=(
            KnobPrice(knob="cublas_workspace", price=None, state=KnobState.KEPT, reason="why"),
            KnobPrice(
                knob="inductor_deterministic",
                price=_price(1.1, state=CostState.INCONCLUSIVE),
                state=KnobState.DROPPED,
                reason="equal",
            ),
        ),
        minimal=MinimalSet(
            knobs=(), dropped=("x",), equal_runs=3, verified=True, same_bits_as_strict=False
        ),
    )
    return cost.model_copy(update=changes)


def _noise(name: str = "loss", *, where: str = "cpu", **changes: object) -> NoiseDocument:
    metric = MetricNoise(
        name=name[:200] or "x",
        dtype="float32",
        points=3,
        largest_gap=0.5,
        gap_step=2,
        largest_relative_gap=None,
        final_gap=0.25,
        largest_deviation=0.1,
        tolerance=0.7,
        at_floor=False,
    )
    noise = NoiseDocument(
        provenance=_provenance(where),
        runs=5,
        distinct_results=4,
        undetected_share=None,
        first_diverging_step=2,
        tolerance_factor=5.1,
        metrics=(metric,),
        weights=WeightNoise(
            elements=10,
            elements_that_differ=3,
            not_finite=1,
            not_compared=(name,),
            relative_l2=(1e-9,),
            largest_relative_l2=1e-9,
            ulp=(UlpQuantile(share=0.5, distance=4),),
        ),
        reduction=ReductionSpread(
            tensors=1,
            elements=9,
            orders=18,
            worst_tensor=name,
            worst=1e-8,
            median=1e-9,
            worst_of_sum=None,
            most_distinct_sums=7,
        ),
        snippet=tolerance_snippet((metric,), 5, 5.1, _provenance(where)),
        notes=(name,),
    )
    return noise.model_copy(update=changes)


def _shown(view: RenderableType, width: int = 80) -> str:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(view, crop=False)
    return file.getvalue()


@each_row(
    ("cost", "words"),
    [
        (_cost(), "Determinism costs +20.0 % step time, 95 % [+18.8 %, +18.8 %]."),
        (_cost(_price(0.5)), "Determinism costs no time here: -50.0 % step time"),
        (
            _cost(_price(1.2, state=CostState.INCONCLUSIVE, reason="fewer than 3 rounds")),
            "The cost of determinism is inconclusive: +20.0 %",
        ),
        (_cost(_price(None, reason="8 steps too short")), "cannot be measured here: 8 steps"),
        (_cost(budget_percent=5.0, over_budget=True), "(budget 5 %); over budget."),
    ],
)
def test_one_sentence_says_what_determinism_costs(cost: CostDocument, words: str) -> None:
    assert words in cost_headline(cost)


def test_the_minimal_set_is_told_with_its_caution() -> None:
    text = " ".join(_shown(cost_view(_cost())).split())
    assert "Minimal sufficient set that still reproduces bit for bit" in text
    assert "none: the default mode" in text
    assert "different bits" in text
    assert "overhead within noise" in cost_markdown(_cost())


def test_a_set_that_was_not_verified_says_so() -> None:
    found = _cost().minimal
    assert found is not None
    unsure = _cost(minimal=found.model_copy(update={"verified": False}))
    assert "no: another run differed" in cost_markdown(unsure)
    assert "strict mode itself is not repeatable here" in cost_markdown(_cost(minimal=None))


def test_without_attribution_there_is_no_word_of_knobs() -> None:
    assert "Cheapest" not in cost_markdown(_cost(attribution=(), minimal=None))


def test_noise_is_told_in_one_sentence() -> None:
    assert noise_headline(_noise()) == (
        "5 runs in default mode gave 4 results, differing from step 2 on."
    )
    assert "at the end only" in noise_headline(_noise(first_diverging_step=None))


def test_without_gradients_nothing_was_summed() -> None:
    assert "| Summed | nothing |" in noise_markdown(_noise(reduction=None))


@given(HOSTILE)
def test_hostile_names_reach_neither_terminal_nor_markdown(text: str) -> None:
    noise = _noise(text, where=text)
    shown, markdown = _shown(noise_view(noise)), noise_markdown(noise)
    assert "\x1b" not in shown
    assert "\x1b" not in markdown
    # The snippet stands in a code block, where nothing is markup.
    assert "<script>" not in markdown.partition("#### For repro-gate.yml")[0]
    assert len(_shown(noise_view(noise)).splitlines()) < 200


@given(HOSTILE)
def test_the_snippet_parses_back_to_the_very_metric(text: str) -> None:
    # a metric without a letter or a sign is refused as a setting
    assume(text.strip())
    noise = _noise(text, where=text)
    assert noise.snippet.isascii()
    settings = f"version: 1\ntrain: {{command: python a.py, max_steps: 3}}\n{noise.snippet}"
    (tolerance,) = parse_settings(settings.encode(), "snippet").compare.tolerances
    assert tolerance.absolute == 0.7


@pytest.mark.parametrize("width", [40, 80, 110])
def test_the_snippet_can_be_copied_whole(width: int) -> None:
    noise = _noise("a/metric/" * 20)
    assert noise.snippet.strip() in _shown(noise_view(noise), width)
