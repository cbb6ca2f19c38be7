from __future__ import annotations

from each_row import each_row
from evidence_cases import PARTS, evidence_of

from gate.comparison.differences import Event, EventKind
from gate.diagnosis.first_divergence import REMEDIES
from gate.diagnosis.suspects import KnownLines, suspects_of
from gate.evidence.observations import Override, OverrideKind, SeedScope
from gate.evidence.run_evidence import RunEvidence
from gate.settings import knobs
from gate.verdict.override_findings import (
    drawn_entropy,
    entropy_stopped_pass,
    override_findings,
    suspected_seeds,
    suspected_settings,
)
from gate.verdict.verdict import Finding, Severity


def override(line: int = 12, **changes: object) -> Override:
    plain = Override(
        rank=0,
        pid=1,
        step=3,
        kind=OverrideKind.SWITCH,
        name="cudnn_benchmark",
        before="off",
        after="on",
        file="train.py",
        line=line,
        closed=False,
        restored=False,
    )
    return plain.model_copy(update=changes)


def run(*overrides: Override, device: str = "cuda") -> RunEvidence:
    parts = {**PARTS, "device": device}
    return evidence_of(parts=parts).model_copy(update={"overrides": overrides})


def found(*overrides: Override, device: str = "cuda") -> tuple[Finding, ...]:
    runs = (run(*overrides, device=device), run(*overrides, device=device))
    return override_findings(runs, repeats=True)


@each_row("knob", [knob for knob in knobs.KNOBS if knob.strict != knobs.KEEP])
def test_a_setting_of_gpus_that_a_training_on_a_cpu_changes_is_no_finding(
    knob: knobs.Knob,
) -> None:
    changed = override(name=knob.name, before=knob.strict, after="on")
    told = [finding.code for finding in found(changed, device="cpu")]
    # what a training on a GPU is told of it stands where it may matter here, too
    expected = [] if knob.gpu_alone else [finding.code for finding in found(changed)]
    assert told == expected


@each_row(
    ("value", "again", "expected"),
    [("0", "0", 0), ("1234", "1234", 0), ("0", "1", 1), ("random", "random", 1), ("", "", 1)],
)
def test_a_hash_seed_that_is_one_number_in_each_run_changed_nothing(
    value: str, again: str, expected: int
) -> None:
    runs = [run(override(name="hash_seed", before="42", after=one)) for one in (value, again)]
    assert len(override_findings(tuple(runs), repeats=True)) == expected


def test_an_untouched_run_has_no_finding() -> None:
    assert found() == override_findings((), repeats=True) == ()


def test_a_knob_that_was_turned_back_is_told_with_its_place_and_step() -> None:
    (finding,) = found(override(), override(step=9))
    assert (finding.code, finding.severity) == ("settings-overridden", Severity.WARNING)
    assert finding.message == (
        "train.py:12 changed cudnn_benchmark from off to on at step 3 and later"
    )


def test_what_the_harness_put_back_is_said() -> None:
    (finding,) = found(override(restored=True, before=""))
    assert finding.message == (
        "train.py:12 changed cudnn_benchmark from unset to on at step 3; the harness restored it"
    )


def test_an_override_that_nobody_saw_has_an_unseen_place() -> None:
    (finding,) = found(override(file="", line=0))
    assert finding.message.startswith("an unknown line changed cudnn_benchmark")


def test_the_first_places_are_shown_and_the_rest_counted() -> None:
    shown = found(*(override(line) for line in range(1, 9)))
    assert len(shown) == 5
    assert shown[-1].message.endswith("(and 3 more places)")


def test_a_determinism_suspended_is_a_notice_of_its_own() -> None:
    (finding,) = found(override(name="deterministic_algorithms", closed=True))
    assert (finding.code, finding.severity) == ("determinism-suspended", Severity.NOTICE)
    assert finding.message == (
        "deterministic algorithms are switched off and on again in 1 place: train.py:12"
    )


def test_a_seed_from_outside_is_told() -> None:
    (finding,) = found(override(kind=OverrideKind.ENTROPY, name="torch.seed"))
    assert finding.message == "train.py:12 takes a nondeterministic seed at step 3: torch.seed"


def test_a_seed_that_is_the_same_in_each_run_is_no_finding() -> None:
    assert found(override(kind=OverrideKind.RESEED, name="torch.manual_seed", after="42")) == ()


def test_a_seed_that_differs_between_runs_is_told() -> None:
    seeds = [override(kind=OverrideKind.RESEED, name="random.seed", after=text) for text in "12"]
    (finding,) = override_findings((run(seeds[0]), run(seeds[1])), repeats=False)
    assert finding.code == "seed-differs"
    assert finding.message == "train.py:12 gives random.seed a different seed in each run"
    assert override_findings((run(seeds[0]),), repeats=False) == ()


def test_a_seed_that_a_package_gives_names_the_packages_own_line() -> None:
    stack = ("loaders/filters.py:120 shuffled", "train.py:12 <module>")
    seeds = [private(text, stack=stack) for text in "12"]
    (finding,) = override_findings((run(seeds[0]), run(seeds[1])), repeats=False)
    assert finding.message == (
        "train.py:12 gives random.Random a different seed in each run, by loaders/filters.py:120 "
        "shuffled"
    )
    assert finding.remedy.startswith("Give that package a constant seed")
    suspects = suspects_of(
        Event(kind=EventKind.BATCH, name="batch", step=3),
        KnownLines(overrides=(seeds[0],)),
        numbers_differ=False,
    )
    assert REMEDIES[suspects[0].kind](suspects[0]) == (
        "Give what train.py:12 calls (loaders/filters.py:120 shuffled) a constant seed"
    )


def private(after: str, **changes: object) -> Override:
    told: dict[str, object] = {
        "kind": OverrideKind.RESEED,
        "name": "random.Random",
        "scope": SeedScope.PRIVATE,
    }
    return override().model_copy(update={"after": after, **told, **changes})


def test_a_private_seed_that_differs_is_told_by_its_line_and_a_notice_while_runs_are_equal() -> (
    None
):
    runs = (run(private("1")), run(private("2")))
    (finding,) = override_findings(runs, repeats=False)
    assert (finding.code, finding.severity) == ("seed-differs", Severity.WARNING)
    assert finding.message == "train.py:12 gives random.Random a different seed in each run"
    assert finding.remedy == "Give that generator a constant seed."
    (notice,) = override_findings(runs, repeats=True)
    assert notice.severity is Severity.NOTICE
    assert notice.message.endswith("; the runs are equal anyway")


def test_a_private_generator_without_a_seed_is_no_override() -> None:
    unseeded = private("none given", kind=OverrideKind.ENTROPY)
    assert not unseeded.weakens
    (finding,) = override_findings((run(unseeded), run(unseeded)), repeats=False)
    assert finding.message == (
        "train.py:12 creates a generator with a nondeterministic seed: random.Random"
    )


def test_what_a_library_seeds_while_it_is_imported_is_told_only_when_runs_differ() -> None:
    unseeded = private("none given", kind=OverrideKind.ENTROPY, importing=True)
    runs = (run(unseeded), run(unseeded))
    assert override_findings(runs, repeats=True) == ()
    (finding,) = override_findings(runs, repeats=False)
    assert finding.severity is Severity.NOTICE
    assert finding.remedy.startswith("A library does this")


def test_no_remedy_asks_to_take_an_import_out() -> None:
    (finding,) = found(override(importing=True))
    assert finding.remedy.startswith(
        "A library does this while it is imported: set the value again"
    )


def test_seeds_of_workers_are_compared_in_any_order_and_number() -> None:
    workers = [private(text, pid=pid) for pid, text in enumerate("3123")]
    assert override_findings((run(*workers), run(*reversed(workers[1:]))), repeats=False) == ()


def suspected(*overrides: Override, device: str = "GPU, compute capability 9.0") -> list[str]:
    runs = tuple(
        evidence_of(parts={**PARTS, "device": device}).model_copy(update={"overrides": each})
        for each in (overrides, ())
    )
    return [each.name for each in suspected_settings(runs)]


def turned(knob: knobs.Knob) -> Override:
    kind = OverrideKind.ENVIRONMENT if knob.acts is knobs.Acts.ENVIRONMENT else OverrideKind.SWITCH
    return override(kind=kind, name=knob.name, before=knob.strict, after="other")


@each_row("knob", knobs.KNOBS)
def test_a_knob_of_strict_mode_is_suspected_where_it_acts(knob: knobs.Knob) -> None:
    if knob.acts is knobs.Acts.SEED:
        return  # seeds are told as seeds
    opens = knob.strict != knobs.KEEP and knob.name != "memory_fill"
    assert suspected(turned(knob)) == [knob.name] * opens
    assert suspected(turned(knob), device="cpu") == [knob.name] * (opens and not knob.gpu_alone)


def test_the_other_way_round_a_knob_is_no_suspect() -> None:
    assert suspected(override(before="on", after="off")) == []


def test_what_the_harness_put_back_at_once_is_no_suspect() -> None:
    hole = override(name="deterministic_algorithms", before="on", after="off")
    assert suspected(override(restored=True)) == []
    assert suspected(override(restored=True, file="", line=0)) == ["cudnn_benchmark"]
    assert suspected(hole.model_copy(update={"restored": True})) == ["deterministic_algorithms"]
    assert suspected(hole.model_copy(update={"closed": True})) == ["deterministic_algorithms"]


def test_threads_are_suspected_and_seeds_are_not() -> None:
    threads = override(kind=OverrideKind.THREADS, name="threads", before="1", after="2")
    seed = override(kind=OverrideKind.RESEED, name="torch.manual_seed", scope=SeedScope.GLOBAL)
    assert suspected(threads, seed, device="cpu") == ["threads"]


def seeds(pid: int, *numbers: int) -> tuple[Override, ...]:
    """Seeds that one process gave a generator of its own, at one line."""
    generator, kind = "torch.Generator.manual_seed", OverrideKind.RESEED
    scope = SeedScope.PRIVATE
    return tuple(
        override(pid=pid, after=str(number), scope=scope, kind=kind, name=generator)
        for number in numbers
    )


def test_seeds_of_a_pool_beyond_what_is_recorded_are_no_finding() -> None:
    one = run(*seeds(1, 0, 4, 8), *seeds(2, 1, 5, 9))
    other = run(*seeds(1, 1, 2, 3), *seeds(2, 0, 6, 7))
    assert override_findings((one, other), repeats=True) == ()
    assert suspected_seeds((one, other)) == ()


def test_seeds_that_are_recorded_whole_are_compared() -> None:
    (finding,) = override_findings((run(*seeds(1, 7)), run(*seeds(1, 8))), repeats=False)
    assert (
        finding.message
        == "train.py:12 gives torch.Generator.manual_seed a different seed in each run"
    )


def test_one_process_without_threads_gives_its_seeds_in_order() -> None:
    one, other = run(*seeds(1, 1, 2, 3)), run(*seeds(1, 4, 5, 6))
    assert [seed.code for seed in override_findings((one, other), repeats=False)] == [
        "seed-differs"
    ]


def test_an_environment_without_a_seed_is_told_how_to_get_one() -> None:
    unseeded = override(
        kind=OverrideKind.ENTROPY, name="gymnasium.Env.reset", scope=SeedScope.PRIVATE
    )
    (finding,) = override_findings((run(unseeded), run(unseeded)), repeats=False)
    assert finding.remedy == "Pass seed= to reset(), or to the model that calls it."


def test_a_draw_is_the_scripts_own_in_any_strict_run() -> None:
    unseeded = override(kind=OverrideKind.ENTROPY, name="numpy.random.default_rng")
    library = override(kind=OverrideKind.ENTROPY, importing=True)
    assert drawn_entropy((run(library), run(override()))) is None
    draw = drawn_entropy((run(), run(unseeded)))
    assert draw is not None
    assert (draw.call, draw.place) == ("numpy.random.default_rng", "train.py:12")
    assert entropy_stopped_pass(draw, by_chance=False) == ()
    (finding,) = entropy_stopped_pass(draw, by_chance=True)
    assert finding.message == (
        "train.py:12 draws from numpy.random.default_rng, which no seed sets. Runs that draw and "
        "agree may have shared a number, so only equal bits pass, and no tolerance"
    )
