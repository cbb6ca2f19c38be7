"""Levels that several seeds decide, through the whole gate, with a played training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from baseline_cases import only_entry
from gate_bench import FILES, Bench, gate_call
from played_training import SCRIPT, Project
from recorded_trainings import pure

from gate.baseline.entry import BaselineEntry
from gate.baseline.folder import read_entry
from gate.baseline.record import with_digest
from gate.errors import BaselineError, EvidenceError, RunError
from gate.pipelines.case import Gated
from gate.pipelines.gate import judging, run_only
from gate.pipelines.seed_runs import announced
from gate.report.assembly import ReportLinks, report_of
from gate.report.layout import Limits
from gate.settings.levels import ReachedLevel
from gate.text.digests import sha256_hex
from gate.text.documents import write_document
from gate.verdict.verdict import Outcome

# `order` stands for the order in which the script draws: another one is a refactor that moves
# every number, and none of them for the better or the worse
SEEDED = SCRIPT.replace(
    'losses = [float(text) for text in play["losses"]]\n',
    'losses = [float(text) for text in play["losses"]]\n'
    "import random\n"
    'seed = play.get("fixed") or os.environ["REPRO_GATE_SEED"]\n'
    'assert sys.argv[2:] == [] or sys.argv[2] == "--seed=" + os.environ["REPRO_GATE_SEED"]\n'
    "draw = random.Random(f\"{play.get('order', 0)}-{seed}\")\n"
    'variant = sys.argv[1] if len(sys.argv) > 1 else "main"\n'
    'losses[-1] += play.get("offsets", {}).get(variant, 0.0) + draw.gauss(0, 0.01)\n'
    'losses[-1] = float("nan") if int(seed) == play.get("broken") else losses[-1]\n',
)
STATISTICAL = """
seeds: [42, 1, 2]
policy: {level: statistical, equivalence: {loss: {absolute: 0.05}}}
"""
SCIENTIFIC = """
seeds: [42, 1, 2]
variants:
  adam: {arguments: "adam --seed={seed}"}
  sgd: {command: "python3 train.py sgd --seed={seed}"}
policy: {level: scientific, ranking: {metric: loss, better_is: lower}}
"""
pure(SEEDED)
RANKED = {"adam": 0.0, "sgd": 0.5}
SWAPPED = {"adam": 0.5, "sgd": 0.0}


@pytest.fixture
def seeded(project: Project) -> Project:
    project.write("train.py", SEEDED)
    project.settings(STATISTICAL)
    return project


def _told(gated: Gated) -> tuple[str, str, dict[str, str], list[str]]:
    report = report_of(gated.verdict, ReportLinks(), Limits(deltas=9, rows=99))
    rows = {row[0].text: row[1].text for row in report.overview.rows}
    return report.headline, report.brief.happened, rows, [one.title for one in report.sections]


def _labels(bench: Bench) -> set[str]:
    return {path.parent.name for path in (bench.out / "evidence").glob("*/output.txt")}


def _entry(project: Project) -> BaselineEntry:
    return read_entry(only_entry(project.path).read_bytes(), "baseline")


def test_another_order_of_draws_drifts_and_passes_at_the_statistical_level(
    bench: Bench, seeded: Project
) -> None:
    bench.record()
    entry = _entry(seeded)
    assert [(one.variant, one.seed) for one in entry.seeded] == [("", seed) for seed in (1, 2, 42)]
    seeded.play(order=1)
    gated = bench.gate()
    verdict = gated.verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.CODE_DRIFT, True)
    assert verdict.level is ReachedLevel.STATISTICAL
    assert verdict.judged is not None
    (loss,) = verdict.judged.equivalences
    assert loss.head is not None
    assert loss.head.seeds == 3
    headline, happened, rows, titles = _told(gated)
    assert headline == "passed: a different result, equivalent over the seeds"
    assert "The statistical level is reached: loss is 2.1" in happened
    assert "over 3 seeds, the baseline's 2.1" in happened
    assert happened.endswith("of each other (margin ±0.05).")
    assert rows["Level statistical"] == "✅ 1 metric equivalent over the seeds"
    assert "Equivalence over seeds (mean ± s over n)" in titles
    # the proposal holds what was seen
    assert gated.proposed is not None
    assert len(gated.proposed.seeded) == 3


def test_another_number_of_ranks_is_judged_at_the_statistical_level(
    bench: Bench, seeded: Project
) -> None:
    bench.record()
    seeded.play(order=1, environment={"world_size": "4"})
    verdict = bench.gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.ENVIRONMENT_DRIFT, True)
    assert verdict.level is ReachedLevel.STATISTICAL
    assert "trained with 4 ranks, and the baseline with 1 rank: " in verdict.cause


def test_a_regression_fails_at_the_statistical_level_and_says_by_how_much(
    bench: Bench, seeded: Project
) -> None:
    bench.record()
    seeded.play(losses=["2.5", "2.25", "2.625"])
    gated = bench.gate()
    assert (gated.verdict.outcome, gated.verdict.passes) == (Outcome.CODE_DRIFT, False)
    assert gated.verdict.level is None
    headline, happened, rows, _ = _told(gated)
    assert headline == "failed: this change moves the result"
    assert gated.verdict.judged is not None
    why = gated.verdict.judged.problem
    assert why.startswith("loss differs by +0.")
    assert why.endswith(" over 3 seeds, which is outside ±0.05")
    assert f"The statistical level is not reached: {why}." in happened
    assert rows["Level statistical"] == f"❌ not reached: {why}"


@pytest.mark.usefixtures("priced")
def test_further_seeds_are_trained_only_where_they_are_needed(
    bench: Bench, seeded: Project
) -> None:
    bench.gate()
    # without a baseline, for the proposal
    assert {"seed-1", "seed-2"} < _labels(bench)
    assert "seed-42" not in _labels(bench)
    bench.record()
    known = _entry(seeded)
    gated = bench.gate()
    assert (gated.verdict.outcome, gated.verdict.passes) == (Outcome.REPRODUCED, True)
    assert _labels(bench) == {"strict-1", "strict-2", "default-1", "default-2"}
    assert gated.verdict.judged is None
    # equal bits: what the entry says of its seeds still holds
    assert gated.proposed is not None
    assert gated.proposed.seeded == known.seeded
    seeded.play(random=True)
    assert bench.gate().verdict.outcome is Outcome.NONDETERMINISTIC
    assert not {label for label in _labels(bench) if label.startswith("seed-")}


def test_a_seed_without_effect_is_not_recorded_and_never_passes(
    bench: Bench, seeded: Project
) -> None:
    bench.record()
    seeded.play(fixed="5")
    gated = bench.gate()
    assert (gated.verdict.outcome, gated.verdict.passes) == (Outcome.CODE_DRIFT, False)
    why = "the seed has no effect: all 3 seeds give the same result, bit for bit. Let the script"
    assert gated.verdict.judged is not None
    assert gated.verdict.judged.problem.startswith(why)
    assert gated.proposed is None
    with pytest.raises(BaselineError, match="not recorded: the seed has no effect") as refused:
        bench.record()
    assert refused.value.hint.startswith("policy.level: statistical is judged by how the result")


def test_nan_of_one_seed_is_not_recorded_and_never_passes(bench: Bench, seeded: Project) -> None:
    bench.record()
    seeded.play(order=1, broken=2)
    gated = bench.gate()
    assert not gated.verdict.passes
    assert gated.verdict.judged is not None
    assert gated.verdict.judged.problem == "loss holds nan in seed-2"
    with pytest.raises(BaselineError, match="not recorded: loss holds nan in seed-2"):
        bench.record()


def test_a_baseline_without_seeds_reaches_no_level_and_says_so(
    bench: Bench, seeded: Project
) -> None:
    seeded.settings("")
    bench.record()
    assert _entry(seeded).seeded == ()
    seeded.settings(STATISTICAL)
    seeded.play(order=1)
    gated = bench.gate()
    assert not gated.verdict.passes
    assert "the baseline entry holds no result of several seeds; record it" in gated.verdict.cause


def test_a_swapped_ranking_fails_at_the_scientific_level(bench: Bench, seeded: Project) -> None:
    seeded.settings(SCIENTIFIC)
    seeded.play(offsets=RANKED)
    bench.record()
    entry = _entry(seeded)
    assert len(entry.seeded) == 6
    seeded.play(offsets=RANKED, order=1)
    gated = bench.gate()
    assert (gated.verdict.outcome, gated.verdict.passes) == (Outcome.CODE_DRIFT, True)
    assert gated.verdict.level is ReachedLevel.SCIENTIFIC
    headline, happened, rows, titles = _told(gated)
    assert headline == "passed: a different result, and the variants rank as before"
    assert happened.endswith(
        "The scientific level is reached: the variants rank as before (adam > sgd)."
    )
    assert rows["Level scientific"] == "✅ 1 of 1 neighbouring pair rank as before"
    assert "Ranking of variants by loss (mean ± s over n)" in titles
    seeded.play(offsets=SWAPPED, order=1)
    gated = bench.gate()
    assert (gated.verdict.passes, gated.verdict.level) == (False, None)
    why = "The scientific level is not reached: sgd is no longer behind adam."
    assert why in _told(gated)[1]


def test_a_variant_of_another_command_is_another_experiment(bench: Bench, seeded: Project) -> None:
    seeded.settings(SCIENTIFIC)
    seeded.play(offsets=RANKED)
    bench.record()
    seeded.settings(SCIENTIFIC.replace("adam --seed", "adamw --seed"))
    seeded.play(offsets=RANKED, order=1)
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert "variants.adam.arguments" in verdict.cause


def test_a_variant_that_fails_is_named(bench: Bench, seeded: Project) -> None:
    broken = SCIENTIFIC.replace("python3 train.py sgd --seed={seed}", "python3 absent.py")
    seeded.settings(broken)
    with pytest.raises(RunError, match=r"run sgd-seed-42: python3 absent\.py exited with 2"):
        bench.record()


def _pull_request(bench: Bench, base: str) -> Gated:
    request = bench.request(base=base, commit="HEAD")
    return gate_call(replace(request, pull_request=True), bench.adapters())


def test_a_brought_baseline_is_reproduced_only_with_the_seeds_that_were_seen(
    bench: Bench, seeded: Project
) -> None:
    bench.record()
    base = seeded.commit()
    seeded.play(order=1)
    bench.record()
    seeded.commit()
    verdict = _pull_request(bench, base).verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.BASELINE_CHANGE, True)
    doctored = _entry(seeded)
    first, *others = doctored.seeded
    seeds = (first.model_copy(update={"values": others[0].values}), *others)
    entry = doctored.model_copy(update={"seeded": seeds})
    FILES.write_bytes(only_entry(seeded.path), write_document(with_digest(entry)))
    seeded.commit()
    verdict = _pull_request(bench, base).verdict
    assert verdict.outcome is Outcome.CODE_DRIFT
    assert "brought-seeds" in [finding.code for finding in verdict.findings]


def _told_elsewhere(bench: Bench, tmp_path: Path) -> Path:
    """The evidence folder of a job that runs and judges nothing."""
    run_only(bench.request(), bench.adapters())
    folder = tmp_path / "told"
    (bench.out / "evidence").rename(folder)
    return folder


def test_results_of_seeds_are_taken_over_from_another_job(
    bench: Bench, seeded: Project, tmp_path: Path
) -> None:
    bench.record()
    commit = seeded.play(order=1)
    folder = _told_elsewhere(bench, tmp_path)
    request = replace(bench.request(commit=commit), imported_runs=True)
    assert (
        judging(folder)(request, bench.adapters(), None).verdict.level is ReachedLevel.STATISTICAL
    )
    # one of another seed under the label of this one, in a manifest that fits again
    document = json.loads((folder / "set.json").read_text())
    document["seeded"][0]["result"]["seed"] = 8
    (folder / "set.json").write_text(json.dumps(document))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["documents"][0]["sha256"] = sha256_hex((folder / "set.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(EvidenceError, match="run seed-1: has a different seed or variant than"):
        judging(folder)(request, bench.adapters(), None)


def test_the_cost_is_said_before_the_first_of_these_runs(seeded: Project, bench: Bench) -> None:
    assert announced(bench.request().settings, 30.0) == (
        "policy.level statistical: 2 more runs, one for each further seed, about 60 s if each "
        "takes as long as the first run"
    )
    seeded.settings(SCIENTIFIC)
    assert announced(bench.request().settings, 60.0) == (
        "policy.level scientific: 6 more runs, one for each seed of each of 2 variants, about "
        "6 min if each takes as long as the first run"
    )
