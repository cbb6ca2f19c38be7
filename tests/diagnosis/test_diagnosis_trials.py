"""Which settings are tried after a difference, and what their runs prove."""

from __future__ import annotations

from math import comb

import pytest
from each_row import each_row
from evidence_cases import evidence_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.differences import EventKind
from gate.diagnosis.diagnosis import CauseClass, Diagnosis, Suspect, SuspectKind
from gate.diagnosis.setting_trials import candidates, threads_at, with_tried
from gate.evidence.observations import LiveThreads, Override, OverrideKind
from gate.evidence.run_evidence import HarnessProcess, RankRecord, RunEvidence
from gate.evidence.trace import (
    CERTAIN_CONTROLS,
    CERTAIN_RUNS,
    MAX_RUNS,
    MOST_CHANCE,
    Claim,
    TraceFinding,
    TriedSetting,
    TriedSettings,
    chance_of,
    runs_needed,
)
from gate.settings.train_sections import OnOverride
from gate.settings.variations import Setting
from gate.system.machine import RankFacts

TORCH_FILL = "determinism.fill_uninitialized_memory: true"
FIXED_ORDER = "sums over ranks in a fixed order"
HEAP_FILL = "a fill of the C heap"
URANDOM = Suspect(place="train.py:4", kind=SuspectKind.ENTROPY, call="os.urandom", step=1)
TURNED = Suspect(place="train.py:5", kind=SuspectKind.SETTING, call="cudnn_benchmark", step=1)
OVERRIDE = Override(
    step=1,
    kind=OverrideKind.SWITCH,
    name="cudnn_benchmark",
    before="off",
    after="on",
    file="train.py",
    line=5,
    closed=False,
    restored=False,
    rank=0,
    pid=7,
)


def diagnosis(kind: EventKind = EventKind.LOSS, **more: object) -> Diagnosis:
    known = {"first_step": 1, "subject": "loss", "cause": "it differs", "remedy": "Look here."}
    return Diagnosis.model_validate({**known, "kind": kind, **more})


def written(run: RunEvidence, found: Diagnosis | None = None, **sections: object) -> list[str]:
    return [one.written for one in candidates(found or diagnosis(), run, settings_of(**sections))]


def changed(**fields: object) -> RunEvidence:
    return evidence_of().model_copy(update=fields)


def test_on_one_cpu_thread_only_memory_is_left_to_try() -> None:
    assert written(evidence_of()) == [TORCH_FILL, HEAP_FILL]


def test_what_the_script_uses_is_tried_before_memory() -> None:
    busy = changed(
        processes=(HarnessProcess(pid=7, applied={}, variables={"OMP_NUM_THREADS": "4"}),),
        overrides=(OVERRIDE,),
        live_threads=(LiveThreads(step=1, count=3),),
        rank_facts=(RankFacts(rank=0, facts={"loader_workers": "2"}),),
    )
    assert written(busy) == [
        "determinism.on_override: restore",
        "determinism.threads: 1",
        "max_workers=1 in each pool",
        "num_workers=0",
        TORCH_FILL,
        HEAP_FILL,
    ]


def test_what_is_in_force_already_is_not_tried() -> None:
    env = {"GLIBC_TUNABLES": "glibc.malloc.perturb=1"}
    train = {"command": ("python", "train.py"), "max_steps": 3, "env": env}
    filled = {"fill_uninitialized_memory": True, "on_override": OnOverride.RESTORE}
    assert written(changed(overrides=(OVERRIDE,)), determinism=filled, train=train) == []


def test_knobs_of_strict_mode_that_the_settings_left_out_are_tried() -> None:
    told = written(evidence_of(), determinism={"knobs": {"inductor_deterministic": "off"}})
    assert told == [TORCH_FILL, HEAP_FILL, "determinism.knobs.inductor_deterministic: on"]


def test_operators_that_are_allowed_stay_allowed() -> None:
    allowed = {"allow_operators": ("put_",), "knobs": {"deterministic_algorithms": "warn"}}
    assert written(evidence_of(), determinism=allowed) == [TORCH_FILL, HEAP_FILL]


def test_on_a_gpu_kernels_are_awaited_and_attention_is_replaced() -> None:
    parts = {"device": "cuda", "threads": "1"}
    told = written(evidence_of(parts=parts), determinism={"knobs": {"cudnn_benchmark": "on"}})
    assert told == [
        "train.env: {CUDA_LAUNCH_BLOCKING: 1}",
        TORCH_FILL,
        HEAP_FILL,
        "determinism.knobs.cudnn_benchmark: off",
        "determinism.knobs.attention_mem_efficient: off",
        "determinism.knobs.attention_flash: off",
        "determinism.knobs.fp32_matmul: ieee",
        "determinism.knobs.fp32_cudnn: ieee",
    ]


def test_a_known_line_leaves_only_what_could_acquit_it() -> None:
    busy = changed(live_threads=(LiveThreads(step=1, count=3),))
    found = diagnosis(suspects=(URANDOM,))
    assert written(busy, found) == ["max_workers=1 in each pool"]
    assert written(evidence_of(), found) == []
    unseeded = URANDOM.model_copy(update={"kind": SuspectKind.UNSEEDED})
    assert written(busy, diagnosis(suspects=(unseeded,))) == []
    turned = diagnosis(suspects=(TURNED,))
    assert written(changed(overrides=(OVERRIDE,)), turned) == ["determinism.on_override: restore"]


def test_memory_is_tried_first_where_the_trace_saw_it_unwritten() -> None:
    trace = TraceFinding(claim=Claim.UNINITIALISED, sentence="memory")
    told = written(evidence_of(), diagnosis(trace=trace), determinism={"threads": 2})
    assert told == [TORCH_FILL, HEAP_FILL, "determinism.threads: 1"]


@each_row(("step", "alive"), [(1, False), (2, True), (3, True), (4, False), (None, True)])
def test_threads_are_alive_between_two_counts(step: int | None, *, alive: bool) -> None:
    counts = tuple(LiveThreads(step=at, count=count) for at, count in ((1, 1), (2, 4), (4, 1)))
    assert threads_at(changed(live_threads=counts), step) is alive


def tried(
    setting: Setting, *, runs: int = 4, follows: bool | None = None, differing: int = 3
) -> TriedSettings:
    one = TriedSetting(setting=setting, written="it", runs=runs, agree=True, follows=follows)
    return TriedSettings(tried=(one,), pairs=3, differing=differing)


@each_row(
    ("setting", "kind", "alive", "proved"),
    [
        (Setting.ONE_THREAD, EventKind.GRADIENTS, False, CauseClass.THREAD_RACE),
        (Setting.ONE_WORKER, EventKind.LOSS, True, CauseClass.THREAD_RACE),
        (Setting.ONE_WORKER, EventKind.INPUT, False, CauseClass.DATA_ORDER),
        (Setting.ONE_WORKER, EventKind.INPUT, True, None),
        (Setting.ONE_THREAD, EventKind.INPUT, False, None),
        (Setting.ONE_WORKER, EventKind.INITIAL, False, None),
        (Setting.LAUNCH_BLOCKING, EventKind.LOSS, False, CauseClass.THREAD_RACE),
        (Setting.FIXED_COLLECTIVES, EventKind.GRADIENTS, False, CauseClass.COLLECTIVE),
        (Setting.FIXED_COLLECTIVES, EventKind.INPUT, False, None),
        (Setting.NO_LOADER_WORKERS, EventKind.BATCH, False, None),
        (Setting.RESTORE, EventKind.LOSS, False, None),
        (Setting.KNOB, EventKind.LOSS, False, None),
    ],
)
def test_a_setting_that_helps_proves_a_class(
    setting: Setting, kind: EventKind, proved: CauseClass | None, *, alive: bool
) -> None:
    told = with_tried(diagnosis(kind), tried(setting), threads_alive=alive)
    assert told.cause_class is proved


def test_a_fixed_order_of_sums_is_tried_where_more_than_two_ranks_add() -> None:
    def of_ranks(count: int) -> RunEvidence:
        steps = evidence_of().steps
        return changed(ranks=tuple(RankRecord(rank=rank, steps=steps) for rank in range(count)))

    assert written(of_ranks(2)) == [TORCH_FILL, HEAP_FILL]
    assert written(of_ranks(3)) == [FIXED_ORDER, TORCH_FILL, HEAP_FILL]
    shown = diagnosis(trace=TraceFinding(claim=Claim.COLLECTIVE, sentence="a sum"))
    assert written(of_ranks(3), shown, determinism={"threads": 2})[0] == FIXED_ORDER


def test_a_message_that_nobody_waits_for_is_no_order_of_sums() -> None:
    begun = URANDOM.model_copy(
        update={
            "kind": SuspectKind.THREAD,
            "call": "torch.distributed.all_reduce",
            "possible": True,
        }
    )
    found = diagnosis(EventKind.GRADIENTS, suspects=(begun,))
    assert with_tried(found, tried(Setting.FIXED_COLLECTIVES)).cause_class is None


@pytest.mark.parametrize(("runs", "differing"), [(2, 3), (4, 2), (4, 0)])
def test_too_few_runs_prove_nothing(runs: int, differing: int) -> None:
    few = tried(Setting.ONE_THREAD, runs=runs, differing=differing)
    told = with_tried(diagnosis(), few)
    assert (told.cause_class, told.remedy) == (None, "Look here.")
    assert told.tried == few


@pytest.mark.parametrize("setting", [Setting.TORCH_FILL, Setting.HEAP_FILL])
def test_memory_is_blamed_only_where_the_result_follows_its_fill(setting: Setting) -> None:
    follows = with_tried(diagnosis(), tried(setting, follows=True))
    assert follows.cause_class is CauseClass.UNINITIALISED_MEMORY
    assert follows.remedy == (
        "Write memory before it is read: zeros or full instead of empty. A fill only hides this. "
        "If that is not it: look here."
    )
    for unseen in (False, None):
        told = with_tried(diagnosis(), tried(setting, follows=unseen))
        assert (told.cause_class, told.remedy) == (None, "Look here.")


def test_a_line_that_only_sets_the_pace_of_workers_is_acquitted() -> None:
    blamed = diagnosis(suspects=(URANDOM,), cause_class=CauseClass.RANDOM_STATE)
    told = with_tried(blamed, tried(Setting.ONE_WORKER))
    assert (told.likely, told.cause_class) == ((), CauseClass.THREAD_RACE)
    assert told.suspects == (URANDOM.model_copy(update={"possible": True}),)
    assert told.remedy.startswith("Take results of a pool in submission order")


def test_the_line_that_workers_race_for_stays_the_likely_one() -> None:
    race = Suspect(place="train.py:9", kind=SuspectKind.COMPLETION, call="imap_unordered", step=1)
    blamed = diagnosis(suspects=(URANDOM, race), cause_class=CauseClass.DATA_ORDER)
    told = with_tried(blamed, tried(Setting.ONE_WORKER))
    assert (told.likely, told.cause_class) == ((race,), CauseClass.DATA_ORDER)
    assert told.suspects == (race, URANDOM.model_copy(update={"possible": True}))


def test_an_operator_that_a_thread_disturbs_is_not_blamed() -> None:
    blamed = diagnosis(cause_class=CauseClass.OPERATOR)
    assert with_tried(blamed, tried(Setting.ONE_WORKER)).cause_class is CauseClass.THREAD_RACE
    # within an operator threads are its own matter
    assert with_tried(blamed, tried(Setting.ONE_THREAD)).cause_class is CauseClass.OPERATOR


def test_of_two_settings_that_help_none_is_certain() -> None:
    one = TriedSetting(setting=Setting.ONE_THREAD, written="a", runs=4, agree=True)
    other = TriedSetting(setting=Setting.RESTORE, written="b", runs=4, agree=True)
    both = TriedSettings(tried=(other, one), pairs=3, differing=3)
    assert not any(map(both.is_certain, both.tried))
    assert with_tried(diagnosis(), both).cause_class is None


def test_of_two_fills_the_one_that_shows_counts() -> None:
    hidden = TriedSetting(setting=Setting.TORCH_FILL, written="a", runs=4, agree=True)
    shows = TriedSetting(setting=Setting.HEAP_FILL, written="b", runs=4, agree=True, follows=True)
    both = TriedSettings(tried=(hidden, shows), pairs=3, differing=3)
    assert both.helping == shows
    assert with_tried(diagnosis(), both).cause_class is CauseClass.UNINITIALISED_MEMORY


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6))
def test_a_setting_that_does_nothing_looks_certain_in_four_of_a_hundred_at_most(
    weights: list[float],
) -> None:
    shares = [weight / sum(weights) for weight in weights]
    differ = 1 - sum(share**2 for share in shares)
    assert differ**CERTAIN_CONTROLS * sum(share**CERTAIN_RUNS for share in shares) < 0.04


@each_row(
    ("pairs", "differing", "needed"),
    [(3, 3, 4), (2, 2, 6), (1, 1, 18), (4, 3, 6), (5, 3, 8), (3, 0, MAX_RUNS + 1)],
)
def test_the_rarer_a_fault_strikes_the_more_equal_runs_are_needed(
    pairs: int, differing: int, needed: int
) -> None:
    assert runs_needed(pairs, differing) == needed


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 6), st.integers(2, 12))
def test_no_spread_of_results_makes_it_likelier_than_is_said(
    weights: list[int], pairs: int, runs: int
) -> None:
    shares = [weight / sum(weights) for weight in weights]
    same = sum(share**2 for share in shares)
    equal_runs = sum(share**runs for share in shares)
    for differing in range(1, pairs + 1):
        so = comb(pairs, differing) * (1 - same) ** differing * same ** (pairs - differing)
        assert so * equal_runs <= chance_of(pairs, differing, runs) + 1e-12


def test_a_setting_that_chance_may_explain_helps_nobody() -> None:
    one = TriedSetting(setting=Setting.ONE_THREAD, written="it", runs=4, agree=True)
    for differing, helping in ((3, one), (2, None), (0, None)):
        found = TriedSettings(tried=(one,), pairs=3, differing=differing)
        assert found.helping == helping
        assert (chance_of(3, differing, 4) <= MOST_CHANCE) is (helping is not None)
