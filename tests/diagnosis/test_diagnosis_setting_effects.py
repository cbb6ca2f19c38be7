from __future__ import annotations

from diagnosed_runs import seeded, with_fingerprints
from each_row import each_row
from evidence_cases import evidence_of, settings_of

from gate.comparison.compare import compare_results
from gate.comparison.differences import Event, EventKind, MetricDelta, OptimizerSettingChange
from gate.diagnosis.causes import DRIFT
from gate.diagnosis.diagnosis import CauseClass
from gate.diagnosis.first_divergence import diagnose_drift
from gate.diagnosis.suspects import KnownLines
from gate.report.brief import cause_words


@each_row(
    ("moved_at", "seen", "explains", "stands_beside"),
    [
        (1, False, True, False),
        (2, False, False, True),
        (3, False, False, False),
        # the update of step 1 was the baseline's, whatever was set
        (1, True, False, True),
    ],
)
def test_a_setting_explains_a_loss_that_differs_after_it_where_no_equal_weights_disprove_it(
    moved_at: int, *, seen: bool, explains: bool, stands_beside: bool
) -> None:
    change = OptimizerSettingChange(
        optimizer=0, name="lr", before="0.1", after="0.2", step=moved_at, equal_until=moved_at - 1
    )
    expected, observed = (
        with_fingerprints(
            *({"parameters": text} if seen else {} for text in ("a:1", f"a:{last}", f"a:{last}")),
            values=(2.5, last, last + 0.5),
        )
        for last in (2.25, 9.0)
    )
    compared = compare_results(expected, observed, settings_of().compare, ("base", "head"))
    found = diagnose_drift(compared.model_copy(update={"optimizer_settings": (change,)}))
    assert found is not None
    assert (found.kind, found.first_step) == ("loss", 2)
    assert found.optimizer_settings == (change,) * explains
    assert found.settings_beside == (change,) * stands_beside
    words = cause_words(found)
    assert (words == "optimizer 0, lr 0.1 → 0.2") is explains
    assert ("Also changed: optimizer 0, lr 0.1 → 0.2" in words) is stands_beside
    # what to look at is what was changed, not what shows it
    assert (found.remedy == DRIFT[EventKind.PARAMETERS].remedy) is explains


def logged_instead(metric: str, observed: str) -> MetricDelta:
    """What a script logged at step 4, where it had logged 0.1."""
    return MetricDelta(
        metric=metric,
        step=4,
        expected="0.1",
        observed=observed,
        absolute=None,
        relative=None,
        ulp=None,
        within=False,
    )


@each_row(
    ("first", "logged", "explains"),
    [
        (Event(kind=EventKind.STATE, name="state/model/0/bn.running_mean", step=None), "", False),
        (Event(kind=EventKind.STATE, name="state/optimizer/0/group/0/lr", step=None), "", True),
        (Event(kind=EventKind.METRIC, name="file.lr", step=4, own_step=4), "0.2", True),
        (Event(kind=EventKind.METRIC, name="file.accuracy", step=4, own_step=4), "0.7", False),
    ],
)
def test_a_setting_that_moved_no_weight_explains_only_what_shows_the_setting(
    first: Event, logged: str, *, explains: bool
) -> None:
    change = OptimizerSettingChange(
        optimizer=0, name="lr", before="0.1", after="0.2", step=1, alone=True
    )
    delta = logged_instead(first.name, logged)
    steps = ({"parameters": "a:1"}, {"parameters": "a:2"})
    compared = compare_results(
        with_fingerprints(*steps),
        with_fingerprints(*steps),
        settings_of().compare,
        ("base", "head"),
    ).model_copy(update={"events": (first,), "metrics": (delta,), "optimizer_settings": (change,)})
    found = diagnose_drift(compared)
    assert found is not None
    assert (cause_words(found) == "lr 0.1 → 0.2") is explains
    assert cause_words(found).endswith("Also changed: lr 0.1 → 0.2") is not explains


@each_row(
    ("logged", "equal_until", "explains"),
    [("0.2", 4, True), ("0.7", 4, False), ("0.2", 5, False)],
)
def test_a_schedule_is_logged_before_the_update_that_it_is_for(
    logged: str, equal_until: int, *, explains: bool
) -> None:
    change = OptimizerSettingChange(
        optimizer=0,
        name="lr",
        before="0.1",
        after="0.2",
        step=equal_until + 1,
        equal_until=equal_until,
        alone=True,
    )
    first = Event(kind=EventKind.METRIC, name="file.lr", step=4, own_step=4)
    delta = logged_instead(first.name, logged)
    compared = compare_results(
        evidence_of(), evidence_of(values=(2.5, 9.0)), settings_of().compare, ("base", "head")
    ).model_copy(update={"events": (first,), "metrics": (delta,), "optimizer_settings": (change,)})
    found = diagnose_drift(compared)
    assert found is not None
    assert found.optimizer_settings == (change,) * explains
    assert (found.cause_class is CauseClass.OPTIMIZER) is explains


@each_row(("kind", "second"), [(EventKind.TURNS, 1), (EventKind.STRUCTURE, 0)])
def test_optimizers_and_groups_that_changed_places_have_changed_no_setting(
    kind: EventKind, second: int
) -> None:
    rates = (("0.1", "0.2", 0), ("0.2", "0.1", second))
    changes = tuple(
        OptimizerSettingChange(optimizer=number, name="lr", before=one, after=other, step=1)
        for one, other, number in rates
    )
    compared = compare_results(
        evidence_of(), evidence_of(values=(2.5, 9.0)), settings_of().compare, ("base", "head")
    ).model_copy(
        update={
            "events": (Event(kind=kind, name=str(kind), step=1),),
            "optimizer_settings": changes,
        }
    )
    found = diagnose_drift(compared)
    assert found is not None
    assert "Also changed" not in cause_words(found)
    one_alone = diagnose_drift(compared.model_copy(update={"optimizer_settings": changes[:1]}))
    assert one_alone is not None
    assert "Also changed" in cause_words(one_alone)


@each_row(
    ("name", "others", "told"),
    [
        ("initial", {}, "the training starts from different weights"),
        (
            "initial.1",
            {"parameters.0": "a:1"},
            "optimizer 1 is given different weights to start from",
        ),
        (
            "initial",
            {"loss.8": "a:{}"},
            "at least one of the optimizers is given different weights to start from",
        ),
    ],
)
def test_weights_that_a_later_optimizer_starts_from_are_no_initialisation(
    name: str, others: dict[str, str], told: str
) -> None:
    before, after = (
        with_fingerprints(
            {
                "parameters": "a:1",
                name: f"a:{side}",
                **{other: text.format(side) for other, text in others.items()},
            },
            values=(2.5, side),
        )
        for side in (1.0, 2.0)
    )
    seed = seeded().model_copy(update={"before": "47", "after": "54"})
    found = diagnose_drift(
        compare_results(before, after, settings_of().compare, ("base", "head")),
        KnownLines(changed_seeds=(seed,)),
    )
    assert found is not None
    assert found.kind is EventKind.INITIAL
    assert found.cause == f"{told} than in the baseline"
    begins = not others
    assert (found.cause_class is CauseClass.SEED) is begins
    assert ("Possibly: " in cause_words(found)) is not begins
    assert ("first used in the initial weights" in cause_words(found)) is begins
