"""Explain why a resumed run gives a different result: name the state that it lacks.

There are three sources of evidence:

- the captured state of both runs at the border, value by value;
- the input and random draws of the next steps, against the same steps of the uninterrupted run;
- the first steps of the uninterrupted run: state equal to theirs was created again, not restored.

A cause is named only where one of these shows it. If several are shown, all are named, in the order
in which one would explain the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gate.comparison.differences import Comparison, EventKind
from gate.comparison.resumed_results import fingerprint, learning_rate
from gate.diagnosis.causes import GENERATORS
from gate.diagnosis.diagnosis import (
    MAX_CAUSES,
    CauseClass,
    Diagnosis,
    ResumeCause,
    ResumeCauseKind,
    ResumeResult,
    ResumeState,
)
from gate.diagnosis.killed_saves import diagnose_torn
from gate.evidence.observations import Boundary
from gate.evidence.run_evidence import RunEvidence
from gate.text.phrases import count, joined
from gate.text.untrusted_text import plain_text

SHOWN: Final = 2
DIFFERS: Final = "Differs from what was saved"
OPTIMIZER_NUMBER: Final = re.compile(r"(?:^|/)optimizer/([0-9]{1,6})(?:/|\Z)")
ORDINALS: Final = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
)  # fmt: skip

# The names are those of torch's own optimizers.
MOMENTS: Final = {
    "exp_avg": "the first moment (exp_avg)",
    "exp_avg_sq": "the second moment (exp_avg_sq)",
    "momentum_buffer": "the momentum (momentum_buffer)",
    "square_avg": "the running average of squares (square_avg)",
    "sum": "the sum of squares (sum)",
    "step": "the step count (step)",
}
REMEDIES: Final = {
    ResumeCauseKind.IGNORED: "Load the checkpoint before the first step, and check the path that "
    "the resume command names.",
    ResumeCauseKind.WEIGHTS: "Save and load the whole `state_dict()` of the model, its buffers "
    "included, at full precision.",
    ResumeCauseKind.OPTIMIZER: "Save `optimizer.state_dict()`, and load it after the optimizer is "
    "made.",
    ResumeCauseKind.LOSS_SCALE: "Save `scaler.state_dict()`, and load it.",
    ResumeCauseKind.SCHEDULE: "Save `scheduler.state_dict()`, and load it after the optimizer's.",
    ResumeCauseKind.SAMPLER: "Save how far the data was read, and continue from there: the "
    "sampler's "
    "state, or the number of batches to skip.",
    ResumeCauseKind.REPEATED: "Save the number of the next step, or begin the loop at the step "
    "after the saved one; where a sampler counts, save its place after the step.",
    ResumeCauseKind.RANDOM: "Save the state of each generator, and restore it last, after "
    "everything that draws while the run is set up.",
    ResumeCauseKind.AVERAGE: "Save the averaged weights and their count, and load them.",
}


def causes_of(
    whole: RunEvidence,
    interrupted: RunEvidence,
    resumed: RunEvidence,
    compared: Comparison,
    step: int,
) -> tuple[ResumeCause, ...]:
    """Return all causes that the evidence shows; () where the two results are equal.

    `compared` is the resumed run against `whole`, the uninterrupted one. `step` is the saved step.
    """
    if not compared.differs:
        return ()
    ignored = tuple(_ignored(whole, interrupted, resumed, step))
    if ignored:
        return ignored
    restarted = any(_starts_over(whole, resumed, name, step) for name in GENERATORS)
    causes = (
        *_standing(interrupted, resumed, step),
        *_schedule(whole, interrupted, resumed, compared, step),
        *_sampler(whole, resumed, step, restarted=restarted),
        *_random(whole, interrupted, resumed, step),
        *_average(compared),
    )
    if not _weights_alone(interrupted, resumed):
        # Buffers such as running means change with each batch. If data or draws differ, they follow
        # from that, and only buffers differ here. So the weights are no cause of their own.
        data = {ResumeCauseKind.SAMPLER, ResumeCauseKind.REPEATED}
        moved = {*data, ResumeCauseKind.RANDOM}
        given = fingerprint(resumed, "input", 1) == fingerprint(whole, "input", step + 1)
        if not given or moved & {cause.kind for cause in causes}:
            causes = tuple(cause for cause in causes if cause.kind is not ResumeCauseKind.WEIGHTS)
    order = list(ResumeCauseKind)
    if restarted:
        # A restarted generator draws the first batches again, so the sampler follows from it.
        order.append(order.pop(order.index(ResumeCauseKind.SAMPLER)))
    return tuple(sorted(causes, key=lambda cause: order.index(cause.kind)))[:MAX_CAUSES]


def _weights_alone(interrupted: RunEvidence, resumed: RunEvidence) -> bool:
    """Return whether a weight differs at the border, rather than only a buffer."""
    return any(
        not before.parameters or before.parameters != after.parameters
        for before, after in _border(interrupted, resumed)
    )


def saved_at(whole: RunEvidence, resumed: RunEvidence) -> int | None:
    """Return the step of the uninterrupted run after which its weights equal the resumed run's.

    0 stands for the initial weights. None where no step fits, or several ranks or optimizers leave
    it open.
    """
    begun = fingerprint(resumed, "initial", 1)
    if begun and begun == fingerprint(whole, "initial", 1):
        return 0
    if len(resumed.boundaries) != 1 or not resumed.boundaries[0].parameters:
        return None
    held = resumed.boundaries[0].parameters
    return next((digest.step for digest in whole.steps.observed if digest.parameters == held), None)


def diagnose_resume(result: ResumeResult) -> Diagnosis | None:
    """Diagnose a resume that differs, or a kill that leaves nothing to resume from; else None."""
    if result.state is ResumeState.DIFFERS and result.compared is not None:
        return diagnose_difference(result.causes, result.compared, result.step)
    return None if result.torn is None else diagnose_torn(result, result.torn)


def diagnose_difference(
    causes: tuple[ResumeCause, ...], compared: Comparison, step: int
) -> Diagnosis:
    """Diagnose a resume that differs, by its first causes, or by where the two results diverge."""
    first = compared.first
    kind = EventKind.STATE if first is None else first.kind
    subject = "" if first is None else first.name
    if not causes:
        return Diagnosis(
            first_step=compared.first_step,
            kind=kind,
            subject=subject,
            cause=f"what differs first after the resume is {_where(compared)}",
            remedy="Compare what the script saves with what it uses: docs/resume.md has the list.",
            cause_class=CauseClass.RESUME,
        )
    shown = " and ".join(cause.sentence for cause in causes[:SHOWN])
    more = len(causes) - SHOWN
    rest = tuple(line for cause in causes for line in cause.evidence)
    return Diagnosis(
        first_step=step + 1,
        kind=kind,
        subject=subject,
        cause=f"{shown}; {more} more below" if more > 0 else shown,
        remedy=" ".join(dict.fromkeys(REMEDIES[cause.kind] for cause in causes[:SHOWN])),
        cause_class=CauseClass.RESUME,
        details=" ".join(f"{line}." for line in rest),
    )


def _where(compared: Comparison) -> str:
    first = compared.first
    if first is None:
        return "not known"
    at = "at the end" if first.step is None else f"at step {first.step}"
    return f"{plain_text(first.name)}, {at}"


def _ignored(
    whole: RunEvidence, interrupted: RunEvidence, resumed: RunEvidence, step: int
) -> Iterator[ResumeCause]:
    """Yield a cause if the run starts with the weights of step 0: it loaded no checkpoint."""
    if saved_at(whole, resumed) != 0 or step == 0:
        return
    held = {boundary.parameters for boundary in interrupted.boundaries}
    if held & {boundary.parameters for boundary in resumed.boundaries} - {""}:
        # A training that changes no weight has these weights in its checkpoint too.
        return
    yield ResumeCause(
        kind=ResumeCauseKind.IGNORED,
        sentence="the resumed run starts over from step 0: it ignores the checkpoint",
        evidence=(
            f"Step {step + 1} of the resumed run begins with the weights that step 1 began with",
        ),
    )


def _standing(interrupted: RunEvidence, resumed: RunEvidence, step: int) -> Iterator[ResumeCause]:
    """Compare the resumed run's state at the border with the interrupted run's."""
    pairs = _border(interrupted, resumed)
    for before, after in pairs:
        rank = before.rank if len(pairs) > 1 else None
        yield from _of_rank(_weights(before, after, step), rank)
        yield from _of_rank(_moments(before, after), rank)
        yield from _of_rank(_scale(before, after, step), rank)


def _of_rank(causes: Iterable[ResumeCause], rank: int | None) -> Iterator[ResumeCause]:
    for cause in causes:
        if rank is None:
            yield cause
        else:
            sentence = f"rank {rank}: {cause.sentence}"
            yield cause.model_copy(update={"rank": rank, "sentence": sentence})


def _border(
    interrupted: RunEvidence, resumed: RunEvidence
) -> tuple[tuple[Boundary, Boundary], ...]:
    """Return the state before and after the border for each rank.

    A rank is left out if the resumed run lacks one of the interrupted run's optimizers.
    """
    after = {boundary.rank: boundary for boundary in resumed.boundaries}
    return tuple(
        (boundary, after[boundary.rank])
        for boundary in interrupted.boundaries
        if boundary.rank in after and boundary.optimizers <= after[boundary.rank].optimizers
    )


def _weights(before: Boundary, after: Boundary, step: int) -> Iterator[ResumeCause]:
    if not before.before_update:
        # The interrupted run's buffers have not seen the batch that the resumed run's have.
        return
    names = [
        name
        for name, digest in sorted(before.digests.items())
        if name.startswith(("model/", "parameter/")) and after.digests.get(name, digest) != digest
    ]
    if names:
        yield ResumeCause(
            kind=ResumeCauseKind.WEIGHTS,
            sentence=f"{count(len(names), 'tensor')} of the model {_is(names)} not what "
            f"{_it(names)} {_was(names)} after step {step}",
            evidence=_listed(DIFFERS, names),
        )


def _moments(before: Boundary, after: Boundary) -> Iterator[ResumeCause]:
    """Yield one cause for each kind of optimizer value and each way in which it is wrong."""
    wrong: dict[str, dict[tuple[str, str], list[str]]] = {}
    for name, digest in sorted(before.digests.items()):
        owner, state, place = name.partition("/state/")
        if not name.startswith("optimizer/") or not state:
            continue
        # The name of the value follows the parameter's number.
        key = place.partition("/")[2] or place
        how = ""
        if name not in after.digests:
            how = "missing"
        elif after.digests[name] != digest:
            how = "zero" if name in after.zero or after.number(name) == 0 else "another"
        if how:
            wrong.setdefault(owner, {}).setdefault((how, key), []).append(name)
    for owner, values in wrong.items():
        which = _which(owner, before.optimizers)
        held = any(name.startswith(f"{owner}/state/") for name in after.digests)
        yield from _wrong_moments(f"the {which}optimizer", values, held=held)


def _wrong_moments(
    optimizer: str, wrong: dict[tuple[str, str], list[str]], *, held: bool
) -> Iterator[ResumeCause]:
    missing = {key: names for (how, key), names in wrong.items() if how == "missing"}
    if missing:
        kinds = joined([_moment(key) for key in missing])
        yield ResumeCause(
            kind=ResumeCauseKind.OPTIMIZER,
            sentence=f"{optimizer} lacks {kinds}"
            if held
            else f"{optimizer} starts without its state: {kinds} {_is(list(missing))} missing",
            evidence=_listed("Missing", [name for names in missing.values() for name in names]),
        )
    ways = {"zero": ("is zero", "Zero"), "another": ("is not what it was", DIFFERS)}
    for how, (words, evidence) in ways.items():
        for (kind, key), names in wrong.items():
            if kind == how:
                yield ResumeCause(
                    kind=ResumeCauseKind.OPTIMIZER,
                    sentence=f"{optimizer}'s {_moment(key).removeprefix('the ')} {words}",
                    evidence=_listed(evidence, names),
                )


def _which(name: str, optimizers: int) -> str:
    """Return an ordinal and a space, such as `second `, for one of several optimizers; else "".

    Optimizers are numbered in the order of their first steps.
    """
    match = OPTIMIZER_NUMBER.search(name)
    if match is None or optimizers <= 1:
        return ""
    number = int(match[1])
    # Beyond the tenth, only the evidence shows the number.
    return f"{ORDINALS[number]} " if number < len(ORDINALS) else ""


def _scale(before: Boundary, after: Boundary, step: int) -> Iterator[ResumeCause]:
    for name, digest in sorted(before.digests.items()):
        if not name.startswith("scaler/") or after.digests.get(name, digest) == digest:
            continue
        then, now = before.number(name), after.number(name)
        if then is None or now is None:
            continue
        what = name.rpartition("/")[2].strip("_").replace("_", " ")
        what = "loss scale" if what == "scale" else f"loss scaler's {plain_text(what)}"
        yield ResumeCause(
            kind=ResumeCauseKind.LOSS_SCALE,
            sentence=f"the {what} is {now:g} instead of {then:g} at step {step + 1}",
            evidence=_listed(DIFFERS, [name]),
        )


def _schedule(
    whole: RunEvidence,
    interrupted: RunEvidence,
    resumed: RunEvidence,
    compared: Comparison,
    step: int,
) -> Iterator[ResumeCause]:
    """Yield the first learning rate after the border that differs, else the one at the end."""
    first = learning_rate(whole.given, 1)
    # A restored optimizer contains the right learning rate. A scheduler that was not restored
    # changes it only later, so all later steps are checked.
    for at in range(step + 1, len(whole.steps) + 1):
        expected, given = learning_rate(whole.given, at), learning_rate(resumed.given, at - step)
        if at == step + 1 and not expected:
            expected, given = _rates(interrupted.boundaries), _rates(resumed.boundaries)
            first = {name.removeprefix("state/"): word for name, word in first.items()}
        names = [name for name in expected if name in given and _other(given[name], expected[name])]
        if names:
            yield _other_rate(at, names, given, expected, first)
            return
    moved = [
        optimizer_setting
        for optimizer_setting in compared.optimizer_settings
        if optimizer_setting.name == "lr" and optimizer_setting.after and optimizer_setting.before
    ]
    for change in moved[:1]:
        yield ResumeCause(
            kind=ResumeCauseKind.SCHEDULE,
            sentence=f"the learning rate at the end is {_short(change.after)} instead of "
            f"{_short(change.before)}",
        )


def _other_rate(
    at: int,
    names: list[str],
    given: dict[str, str],
    expected: dict[str, str],
    first: dict[str, str],
) -> ResumeCause:
    name = names[0]
    now, then = _short(given[name]), _short(expected[name])
    again = name in first and not _other(given[name], first[name])
    words = "the schedule restarts at step 0: the" if again else "the"
    of_step = f", that of step 1, instead of {then}" if again else f" instead of {then}"
    owners = {match[1] for match in map(OPTIMIZER_NUMBER.search, expected) if match is not None}
    which = _which(name, len(owners))
    owner = f"{which}optimizer's " if which else ""
    return ResumeCause(
        kind=ResumeCauseKind.SCHEDULE,
        sentence=f"{words} {owner}learning rate of step {at} is {now}{of_step}",
        evidence=_listed("Other learning rates", names),
    )


def _rates(boundaries: tuple[Boundary, ...]) -> dict[str, str]:
    numbers = boundaries[0].numbers if boundaries else {}
    return {
        name: repr(float.fromhex(text))
        for name, text in numbers.items()
        if name.startswith("optimizer/") and "/group/" in name and name.endswith("/lr")
    }


def _other(left: str, right: str) -> bool:
    return float(left) != float(right)


def _sampler(
    whole: RunEvidence, resumed: RunEvidence, step: int, *, restarted: bool
) -> Iterator[ResumeCause]:
    """Yield a cause if the first batch after the border belongs to another step of the whole run.

    `restarted`: a generator draws its first numbers, and so the first batches, again.
    """
    for name in ("input", "batch"):
        now = fingerprint(resumed, name, 1)
        expected = fingerprint(whole, name, step + 1)
        if not now or not expected or now == expected:
            if now and now == expected:
                # The model got the right data. A loader may go through earlier batches to get
                # there.
                return
            continue
        same = [
            digest.step for digest in whole.steps.observed if digest.fingerprints.get(name) == now
        ]
        if not same:
            continue
        again = f"batch {step + 1} is batch {same[0]}'s"
        kind = ResumeCauseKind.SAMPLER
        if restarted:
            again += ", which may follow from it"
        elif step in same and _a_step_late(whole, resumed, name, step):
            kind = ResumeCauseKind.REPEATED
            again = (
                f"the resumed run repeats the data of step {step}, and is a step late from then on"
            )
            if same[0] == 1:
                again += ", or the sampler starts at sample 0"
        elif same[0] == 1:
            again = f"the sampler starts at sample 0: {again}"
        yield ResumeCause(
            kind=kind,
            sentence=again,
            evidence=(
                f"The {name} of step {step + 1} after the resume is that of step {same[0]} without",
            ),
        )
        return


def _a_step_late(whole: RunEvidence, resumed: RunEvidence, name: str, step: int) -> bool:
    """Return whether every known batch after the border is the previous step's, at least twice.

    A loop that starts at the number of the saved step does that. So does a sampler whose position
    was saved before the step.
    """
    steps = {digest.step: digest.fingerprints.get(name, "") for digest in whole.steps.observed}
    pairs = [
        (own.fingerprints.get(name), steps.get(step + own.step - 1))
        for own in resumed.steps.observed
    ]
    known = [(now, before) for now, before in pairs if now and before]
    return len(known) > 1 and all(now == before for now, before in known)


def _random(
    whole: RunEvidence, interrupted: RunEvidence, resumed: RunEvidence, step: int
) -> Iterator[ResumeCause]:
    for name, words in GENERATORS.items():
        now, expected = fingerprint(resumed, name, 1), fingerprint(whole, name, step + 1)
        if not now or not expected or now == expected or not _drawn_from(whole, name, step):
            continue
        ranks = _ranks_that_differ(interrupted, resumed, name)
        rank = ranks[0] if len(ranks) == 1 and len(resumed.boundaries) > 1 else None
        again = _starts_over(whole, resumed, name, step)
        evidence = [
            f"Its state after step {step + 1} is "
            + ("the one after step 1" if again else "another than in the uninterrupted run")
        ]
        evidence += _mask(whole, resumed, name, step)
        yield ResumeCause(
            kind=ResumeCauseKind.RANDOM,
            sentence=_not_restored(words, step, again=again)
            if rank is None
            else _of_one_rank(words, rank, _read_from_another(interrupted, resumed, name, rank)),
            evidence=tuple(evidence),
            rank=rank,
        )


def _starts_over(whole: RunEvidence, resumed: RunEvidence, name: str, step: int) -> bool:
    """Return whether a generator that the training draws from has its state of step 1 again."""
    now, expected = fingerprint(resumed, name, 1), fingerprint(whole, name, step + 1)
    first = fingerprint(whole, name, 1)
    return bool(now) and now == first != expected and _drawn_from(whole, name, step)


def _not_restored(words: str, step: int, *, again: bool) -> str:
    if again:
        return f"{words} was not restored"
    return (
        f"{words} is in another state after step {step + 1}: not restored, or drawn from after that"
    )


def _of_one_rank(words: str, rank: int, other: int | None) -> str:
    if other is not None:
        return f"{words} of rank {rank} has the state of rank {other}"
    return f"{words} of rank {rank} was not restored"


def _mask(whole: RunEvidence, resumed: RunEvidence, name: str, step: int) -> list[str]:
    """Return a sentence if different draws in the forward pass changed the loss; else []."""
    given = fingerprint(resumed, "input", 1)
    same = bool(given) and given == fingerprint(whole, "input", step + 1)
    lost = _loss(resumed, 1) != _loss(whole, step + 1)
    if name not in {"random.torch", "random.cuda"} or not same or not lost:
        return []
    sentence = (
        f"The input of step {step + 1} is equal and its loss is not: what the model draws, such as "
        "a "
        "dropout mask, is different"
    )
    return [sentence]


def _loss(run: RunEvidence, step: int) -> float | None:
    loss = next((series for series in run.metrics if series.name == "loss"), None)
    pairs = () if loss is None else loss.points.pairs()
    return next((value for own, value in pairs if own == step), None)


def _drawn_from(whole: RunEvidence, name: str, step: int) -> bool:
    """Return whether the training draws from a generator after a step, as far as observed."""
    states = {
        digest.fingerprints[name]
        for digest in whole.steps.observed
        if digest.step >= max(1, step) and name in digest.fingerprints
    }
    return len(states) > 1


def _ranks_that_differ(
    interrupted: RunEvidence, resumed: RunEvidence, name: str
) -> tuple[int, ...]:
    return tuple(
        before.rank
        for before, after in _border(interrupted, resumed)
        if before.before_update and before.random.get(name) != after.random.get(name)
    )


def _read_from_another(
    interrupted: RunEvidence, resumed: RunEvidence, name: str, rank: int | None
) -> int | None:
    """Return the rank whose saved state this rank has now, else None."""
    after = {boundary.rank: boundary.random.get(name) for boundary in resumed.boundaries}
    if rank is None or not after.get(rank):
        return None
    others = (boundary for boundary in interrupted.boundaries if boundary.rank != rank)
    return next(
        (
            carried_rank.rank
            for carried_rank in others
            if carried_rank.random.get(name) == after[rank]
        ),
        None,
    )


def _average(compared: Comparison) -> Iterator[ResumeCause]:
    """Yield a cause if averaged weights differ at the end, but the weights they average do not."""
    names = [delta.name for delta in compared.tensors]
    averages = [name for name in names if _is_average(name)]
    if averages and len(averages) == len(names) and not compared.step_faults:
        yield ResumeCause(
            kind=ResumeCauseKind.AVERAGE,
            sentence="the moving average of the weights was not restored",
            evidence=_listed("Differs at the end", averages),
        )


def _is_average(name: str) -> bool:
    words = name.lower().replace(".", "/").replace("_", "/").split("/")
    return bool({"average", "ema", "swa", "shadow"}.intersection(words))


def _listed(what: str, names: list[str]) -> tuple[str, ...]:
    shown = ", ".join(plain_text(name)[:80] for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (f"{what}: {shown}{more}",)


def _moment(key: str) -> str:
    return MOMENTS.get(key, plain_text(key)[:60])


def _is(names: list[str]) -> str:
    return "are" if len(names) > 1 else "is"


def _was(names: list[str]) -> str:
    return "were" if len(names) > 1 else "was"


def _it(names: list[str]) -> str:
    return "they" if len(names) > 1 else "it"


def _short(word: str) -> str:
    return f"{float(word):.6g}"
