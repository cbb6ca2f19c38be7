"""Turn the first divergence into a class of cause: a sentence, a remedy and perhaps a guess.

Each kind of event has two forms. Two runs of one commit (`REPEAT`) differ because of something that
the gate does not pin, so the sentence stays neutral. A commit that differs from its baseline
(`DRIFT`) was most likely changed on purpose, so the sentence says what the change did. Planted
faults in tests/diagnosis validate the classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gate.comparison.differences import (
    Comparison,
    Event,
    EventKind,
    TensorChange,
    WorkChange,
    WorkKind,
)
from gate.evidence.step_columns import LAST_WEIGHTS, PARAMETERS, optimizer_of

MODEL = "model/"
OF_AN_OPTIMIZER = "/optimizer/"
LOSS = "the loss "
LOSSES = "losses and "
A_GENERATOR = "a random generator"
GENERATORS = {
    "random.python": "Python's generator",
    "random.numpy": "NumPy's generator",
    "random.torch": "torch's generator",
    "random.cuda": "CUDA's generator",
}
BACKWARD = "backward"
# The fingerprint nearest to the loss comes first: what a model is called with may differ although
# the loader's batch is equal.
SEEN_INPUTS = ("input", "batch")
TENSORS_SHOWN = 3
# The kinds of event that an optimizer's update can change within its own step.
UPDATED = frozenset((EventKind.PARAMETERS, EventKind.OPTIMIZER, EventKind.METRIC))
# Settings of a run (batch size, accumulation) change these; the model's code does not.
WORK = frozenset((EventKind.SAMPLES, EventKind.ROWS, EventKind.PASSES, EventKind.TURNS))
# Only settings of a run decide these.
OF_THE_RUN = WORK | {EventKind.STEPS}
# A data set with a different number of samples changes these from the first step on.
DATA = frozenset((EventKind.RANDOM, EventKind.BATCH, EventKind.INPUT))


@dataclass(frozen=True, kw_only=True, slots=True)
class CauseQuestion:
    """The question to answer: why two runs of one commit differ, or why a commit left its baseline.

    `drift` is True for the second question. `one_cpu_thread` says that strict runs used one CPU
    thread: there torch's operators leave hardly any order open, so the script is suspected first.
    """

    drift: bool
    one_cpu_thread: bool = False


@dataclass(frozen=True, slots=True)
class Cause:
    """A class of cause: what happened, where to look, and what may be responsible.

    `guess` is appended to the sentence until two traced runs show the actual cause.
    """

    sentence: str
    remedy: str
    guess: str = ""

    @property
    def with_guess(self) -> str:
        """The sentence, followed by the guess where there is one."""
        return f"{self.sentence}: {self.guess}" if self.guess else self.sentence


REPEAT = {
    EventKind.STEPS: Cause(
        "the runs did not take the same number of optimizer steps",
        "Look for a stopping rule that depends on time, or on a metric that differs.",
    ),
    EventKind.SAMPLES: Cause(
        "the runs do not read the same number of samples in a step",
        "Look for a batch size that depends on time, on free memory or on the number of files.",
    ),
    EventKind.ROWS: Cause(
        "the runs do not give the model inputs of the same first dimension in a step",
        "Look for a batch size that depends on time, on free memory or on the number of files.",
    ),
    EventKind.TURNS: Cause(
        "the optimizers do not take turns alike in the two runs",
        "Look for a schedule of updates that depends on time, on memory or on a metric.",
    ),
    EventKind.PASSES: Cause(
        "the runs do not make the same number of backward passes in a step",
        "Look for accumulation or a stopping rule that depends on time, on memory or on a metric.",
    ),
    EventKind.STRUCTURE: Cause(
        "the optimizer was given different parameters, or the same ones in a different order",
        "Sort what parameters are collected from: sets, id(), hash order, directory listings.",
    ),
    EventKind.INITIAL: Cause(
        "the same model starts from different weights",
        "Look for a generator seeded from the time, torch.seed(), np.random.default_rng() without "
        "a seed, and for a checkpoint that is loaded.",
        "from an unseeded random source, or from a different file",
    ),
    EventKind.RANDOM: Cause(
        "the state of a random generator differs: the runs drew from it, or seeded it, differently",
        "Look for seeds from the time, and for draws that depend on time, on threads, on files or "
        "on the order of a set.",
    ),
    EventKind.BATCH: Cause(
        "weights and global random states are equal, but the data loader returns a different batch",
        "Look for np.random.default_rng() without a seed, os.urandom, unsorted directories and "
        "sets in datasets, samplers and transforms.",
    ),
    EventKind.INPUT: Cause(
        "weights and global random states are equal, but the model is called with different input",
        "Look for generators without a seed, os.urandom, uuid, unsorted directories, sets and "
        "threads in any sampling, splitting or shuffling that the script does.",
    ),
    EventKind.WEIGHTS: Cause(
        "the update is equal, but after it the script writes other values into the weights",
        "Look at clamping, averaging and noise on weights by hand, and at what they are computed "
        "from.",
    ),
    EventKind.OPTIMIZER: Cause(
        "the updated parameters are equal, but the optimizer's state is not, so the next update "
        "will differ",
        "Look for hooks and callbacks that write into optimizer.state, and for a state that is "
        "loaded.",
    ),
    EventKind.METRIC: Cause(
        "losses and weights are equal so far, but a metric that the script writes is not",
        "Look at how this metric is computed: time, memory and speed differ in every run; leave "
        "such a metric out of the file.",
    ),
    EventKind.METRIC_MISSING: Cause(
        "a metric was written in only one run, or at different steps",
        "Look for logging that depends on time or chance. A compared metric must be written in "
        "every run.",
    ),
    EventKind.STATE: Cause(
        "every observed step is equal, but the state at the end is not",
        "Look at what runs after the last step: averaging, evaluation, writing the file.",
    ),
}
DRIFT = {
    EventKind.STEPS: Cause(
        "the training takes a different number of optimizer steps than in the baseline",
        "Look at changes to the number of samples, the batch size, the epochs and stopping rules.",
    ),
    EventKind.SAMPLES: Cause(
        "a step reads a different number of samples than in the baseline",
        "Look at changes to the batch size, to the number of samples and to accumulation.",
    ),
    EventKind.ROWS: Cause(
        "the model's input has a different first dimension than in the baseline",
        "Look at changes to the batch size, and to how batches are cut.",
    ),
    EventKind.TURNS: Cause(
        "the optimizers take turns in a different order than in the baseline",
        "Look at changes to how many updates each model gets before the other.",
    ),
    EventKind.PASSES: Cause(
        "a step makes a different number of backward passes than in the baseline",
        "Look at changes to gradient accumulation, and to which losses are differentiated.",
    ),
    EventKind.STRUCTURE: Cause(
        "the optimizer's parameters are not the baseline's in number, name, type, shape, freezing "
        "or order",
        "Look at changes to the model's layers, their dtype, to what is frozen, and to parameter "
        "groups.",
    ),
    EventKind.INITIAL: Cause(
        "the training starts from different weights than in the baseline",
        "Look at changes to the initialisation, to seeds, to the order in which layers are made "
        "(each draws random numbers), and to a checkpoint that is loaded.",
    ),
    EventKind.RANDOM: Cause(
        f"{A_GENERATOR} is not in the baseline's state",
        "Look at changes to dropout, augmentation, shuffling and seeds, and at any new random "
        "draw.",
        guess="it is drawn from or seeded differently",
    ),
    EventKind.BATCH: Cause(
        "weights and random states equal the baseline's, but the data loader returns a different "
        "batch",
        "Look at changes to data, their order, their preprocessing and the batch size.",
    ),
    EventKind.INPUT: Cause(
        "weights and random states equal the baseline's, but the model is called with different "
        "input",
        "Look at changes to data, their order, their preprocessing and the batch size.",
    ),
    EventKind.WEIGHTS: Cause(
        "the update equals the baseline's, but after it the script writes other values into the "
        "weights",
        "Look at changes to clamping, averaging and noise on weights by hand.",
    ),
    EventKind.LOSS: Cause(
        "the forward pass computes a different loss, although everything recorded before it equals "
        "the baseline",
        "Look at changes to the model, the loss function, its precision, and to input that does "
        "not come from a data loader.",
    ),
    EventKind.BACKWARD: Cause(
        "the loss equals the baseline's, but the gradients after backward do not",
        "Look at changes to the backward pass, to what is detached or frozen, to accumulation, and "
        "to where gradients are set to zero.",
    ),
    EventKind.GRADIENTS: Cause(
        "the loss equals the baseline's, but the gradients before the update do not",
        "Look at changes to the backward pass, to clipping, scaling and accumulation, and to where "
        "gradients are set to zero.",
    ),
    EventKind.PARAMETERS: Cause(
        "the gradients equal the baseline's, but the updated parameters do not: the update "
        "itself changed",
        "Look at changes to the optimizer, its settings and its schedule.",
    ),
    EventKind.OPTIMIZER: Cause(
        "the updated parameters equal the baseline's, but the optimizer's state does not",
        "Look at changes to the optimizer, its settings and its schedule.",
    ),
    EventKind.METRIC: Cause(
        "losses and weights equal the baseline's so far, but a metric that the script writes "
        "does not",
        "Look at changes to how this metric is computed, and to what an evaluation uses besides "
        "the weights, such as buffers.",
    ),
    EventKind.METRIC_MISSING: Cause(
        "a different set of metrics is written than in the baseline, or at different steps",
        "Look at changes to logging.",
    ),
    EventKind.STATE: Cause(
        "every observed step equals the baseline's, but the state at the end does not",
        "Look at changes to buffers, to settings of the optimizer, and to what runs after the last "
        "step.",
    ),
}
# Sentences for a comparison whose earlier fingerprints are missing. They state what differs and
# claim nothing about earlier steps, because those were not recorded.
UNRECORDED = {
    EventKind.BATCH: "the data loader returns a different batch",
    EventKind.INPUT: "the model is called with different input",
    EventKind.WEIGHTS: "a backward pass uses different weights",
    EventKind.LOSS: "the loss of step {step} differs",
    EventKind.METRIC: "a metric that the script writes differs",
}
# These need no qualification when steps are missing: their sentence makes no claim about other
# steps, or they belong to no step.
OF_ITSELF = OF_THE_RUN | {EventKind.STRUCTURE, EventKind.INITIAL, EventKind.STATE}
AND_DATA = {
    EventKind.RANDOM: "a different random state is seen",
    EventKind.BATCH: "the data loader returns different batches",
    EventKind.INPUT: "the model is called with different input",
}
UPDATE = Cause(
    "the gradients are equal, but the updated parameters are not: the update itself differs",
    "Look at learning-rate schedules that depend on time or on a metric, and at averaging and "
    "clipping of weights.",
)
OPERATOR_REMEDY = (
    "Look for scatter, index_add or interpolation in the model, and for custom kernels that torch "
    "cannot see."
)
# In strict mode on one CPU thread torch leaves no order open, so operators are named last.
OWN_SOURCE_REMEDY = (
    "Look for the script's own generators, the time, hash order, files, threads and memory that "
    "is read before it is written. On one CPU thread torch's own operators are deterministic; "
    "custom kernels may not be."
)


REORDERED = Cause(
    "every observed step is equal, but the state at the end holds the same tensors in a different "
    "order, such as that of a set",
    "Sort what the optimizer's parameters are collected from: sets, id(), hash order, names of "
    "files.",
)


BETWEEN_PASSES = (
    "the first backward pass of step {step} uses {which} weights, but the last one does not"
)
BETWEEN_PASSES_REMEDY = (
    "Look at the optimizer's closure, at a perturbation of the weights such as SAM's, and at the "
    "loss of the first pass."
)


def reordered(comparison: Comparison) -> bool:
    """Return whether the end states hold the same tensors under each other's names.

    True only if at least two tensors differ and both sides have the same multiset of digests.
    """
    before, after = (
        sorted(getattr(delta, side) for delta in comparison.tensors)
        for side in ("expected", "observed")
    )
    return len(before) > 1 and before == after


def cause_of(first: Event, comparison: Comparison, question: CauseQuestion) -> Cause:
    """Return the class of cause that `first`, the first divergence of `comparison`, points to.

    Quantities that were not observed on both sides cannot be ruled out. The sentence then leaves
    them open and claims no cause.
    """
    if between_passes(first):
        cause = _moved(first, question)
    elif starts_later(first, comparison):
        cause = _given_weights(first, question)
    else:
        cause = _cause_of(first, comparison, question)
    begin = comparison.unrecorded_from
    if begin is not None and first.kind not in OF_ITSELF:
        said = UNRECORDED.get(first.kind)
        sentence = cause.with_guess if said is None else said.format(step=first.step)
        return replace(cause, sentence=f"{sentence}{last_recorded(begin)}", guess="")
    if comparison.loss_unrecorded and cause.sentence.startswith(LOSSES):
        return replace(cause, sentence=cause.sentence.removeprefix(LOSSES))
    if first.step is None or not cause.sentence.startswith(LOSS):
        return cause
    # The report shows the difference of a metric beside this sentence, often of a later step.
    # Without its own step the sentence would seem to be about that number.
    of_step = cause.sentence.removeprefix(LOSS)
    if comparison.loss_unrecorded and first.kind is not EventKind.LOSS:
        return replace(
            cause, sentence=f"in step {first.step} all that is recorded before {of_step}"
        )
    return replace(cause, sentence=f"{LOSS}of step {first.step} {of_step}")


def last_recorded(begin: int) -> str:
    """Return the end of a sentence for fingerprints that are missing from step `begin` on."""
    return f", and the last fingerprints before it are those of step {begin - 1}"


def _cause_of(first: Event, comparison: Comparison, question: CauseQuestion) -> Cause:
    if question.drift:
        return _drift(first, comparison)
    if first.kind is EventKind.STATE and reordered(comparison):
        return REORDERED
    if first.kind is EventKind.LOSS:
        return _loss(first, comparison, question)
    if first.kind in {EventKind.BACKWARD, EventKind.GRADIENTS}:
        return _gradients(first, comparison, question)
    if first.kind is EventKind.PARAMETERS:
        return _parameters(comparison, question)
    return REPEAT[first.kind]


def starts_later(first: Event, comparison: Comparison) -> bool:
    """Return whether the initial weights may be of an optimizer that starts after others stepped.

    Earlier updates by those optimizers may already be in its weights, so such a difference does not
    prove a different initialisation. Often many optimizers share one fingerprint. Then any event of
    a later optimizer is enough.
    """
    if first.kind is not EventKind.INITIAL:
        return False
    names = [event.name for event in comparison.events]
    together = f"{PARAMETERS}.0" not in comparison.compared_fingerprints
    return optimizer_of(first.name) > 0 or (together and any(map(optimizer_of, names)))


def _given_weights(first: Event, question: CauseQuestion) -> Cause:
    number = optimizer_of(first.name)
    which = f"optimizer {number}" if number else "at least one of the optimizers"
    where = "than in the baseline" if question.drift else "in the two runs"
    sentence = f"{which} is given different weights to start from {where}"
    return Cause(sentence, (DRIFT if question.drift else REPEAT)[first.kind].remedy)


def between_passes(first: Event) -> bool:
    """Return whether the weights differ at a step's last backward pass but not at its first."""
    return first.kind is EventKind.WEIGHTS and first.name.startswith(LAST_WEIGHTS)


def _moved(first: Event, question: CauseQuestion) -> Cause:
    which = "the baseline's" if question.drift else "equal"
    return Cause(BETWEEN_PASSES.format(step=first.step, which=which), BETWEEN_PASSES_REMEDY)


def work_words(change: WorkChange) -> str:
    """Return a clause such as `each step reads 48 samples instead of 64`."""
    which = "each step" if change.every else f"step {change.step}"
    after, before = f"{change.after:,}", f"{change.before:,}"
    single = change.after == 1
    if change.kind is WorkKind.ROWS:
        return (
            f"{which} gives the model {after} row{'' if single else 's'} of input (its first "
            f"dimension) instead of {before}"
        )
    if change.kind is WorkKind.TURNS:
        return (
            f"optimizer {change.optimizer} makes its step {change.step} after {after} "
            f"step{'' if single else 's'} of optimizer 0 instead of {before}"
        )
    if change.kind is WorkKind.SAMPLES:
        return f"{which} reads {after} sample{'' if single else 's'} instead of {before}"
    return f"{which} makes {after} backward pass{'' if single else 'es'} instead of {before}"


def _drift(first: Event, comparison: Comparison) -> Cause:
    of_the_run = _of_the_run(first, comparison)
    if of_the_run is not None:
        return of_the_run
    if first.kind is EventKind.STATE:
        tensors = _model_tensors(comparison)
        if tensors:
            return Cause(
                "every observed step equals the baseline's; only these tensors of the model "
                f"differ at the end: {tensors}",
                "Look at what writes to them after the last step, and at what updates buffers, "
                "such as the momentum of a normalisation.",
            )
    if first.kind is EventKind.GRADIENTS and BACKWARD in comparison.compared_fingerprints:
        return Cause(
            "backward returns the baseline's gradients, but they are different before the update",
            "Look at changes to what is done to gradients by hand: clipping, scaling, noise.",
        )
    # Gradients were not observed on both sides, so the sentence must leave backward and update
    # open.
    if first.kind is EventKind.PARAMETERS and "gradients" not in comparison.compared_fingerprints:
        return Cause(
            "the loss equals the baseline's, but the updated parameters do not: backward or the "
            "update changed",
            DRIFT[EventKind.PARAMETERS].remedy,
        )
    if first.kind is EventKind.LOSS and not comparison.compared_fingerprints:
        return Cause(
            "the loss differs, and the baseline records nothing before it",
            DRIFT[EventKind.LOSS].remedy,
        )
    cause = DRIFT[first.kind]
    named = GENERATORS.get(first.name, A_GENERATOR)
    return replace(cause, sentence=cause.sentence.replace(A_GENERATOR, named))


def _of_the_run(first: Event, comparison: Comparison) -> Cause | None:
    """Return the cause if settings of the run explain the difference, else None.

    They are checked before the model: other batch sizes change every later quantity.
    """
    if first.kind in WORK:
        changes = _without_rows_of_passes(
            [change for change in comparison.work if change.step == first.step]
        )
        # One more batch in each pass changes samples and passes. Either may be what the author
        # changed, so the sentence names both.
        sentence = (
            ", and ".join(map(work_words, _each_kind_once(changes))) or DRIFT[first.kind].sentence
        )
        kind = EventKind(changes[0].kind) if changes else first.kind
        return Cause(sentence, DRIFT[kind].remedy)
    steps = comparison.steps_expected, comparison.steps_observed
    if first.kind in DATA and steps[0] != steps[1]:
        return Cause(
            f"the training takes {steps[1]:,} steps instead of {steps[0]:,}, and "
            f"{AND_DATA[first.kind]} from step {first.step} on",
            DRIFT[EventKind.STEPS].remedy,
        )
    return None


def _each_kind_once(changes: list[WorkChange]) -> list[WorkChange]:
    """Keep the first change of each kind: nobody reads ten sentences on ten optimizers' turns."""
    kinds = [change.kind for change in changes]
    return [change for place, change in enumerate(changes) if change.kind not in kinds[:place]]


def _without_rows_of_passes(changes: list[WorkChange]) -> list[WorkChange]:
    """Drop a change of rows that a changed number of backward passes explains.

    Rows are counted over all passes of a step. If each pass has as many rows as before, the change
    of rows only follows from the change of passes.
    """
    by_kind = {change.kind: change for change in changes}
    rows, passes = by_kind.get(WorkKind.ROWS), by_kind.get(WorkKind.PASSES)
    if rows is None or passes is None or rows.before * passes.after != rows.after * passes.before:
        return changes
    return [change for change in changes if change.kind is not WorkKind.ROWS]


def _model_tensors(comparison: Comparison) -> str:
    """Return the names of the model's leaves that differ, or "" if anything else does at the end.

    Parameters can be among them: a script may write to them after the last step.
    """
    changed = [delta.name for delta in comparison.tensors if delta.kind is TensorChange.CHANGED]
    if not changed or not all(MODEL in name for name in changed):
        return ""
    rest = len(changed) - TENSORS_SHOWN
    return ", ".join(changed[:TENSORS_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _loss(first: Event, comparison: Comparison, question: CauseQuestion) -> Cause:
    compared = comparison.compared_fingerprints
    # Nothing was fingerprinted before the first loss. It may come from the weights or from the
    # data.
    if first.step == 1 and "initial" not in compared:
        return Cause(
            "the very first loss differs",
            "Look for np.random.default_rng() without a seed, a generator seeded from the time, "
            "os.urandom, or an order taken from a set or an unsorted directory.",
            "different initial weights or a different first batch, so an unseeded random source",
        )
    # The model's input if it was fingerprinted, else the batch of a DataLoader.
    seen = next((name for name in SEEN_INPUTS if name in compared), "")
    equal = f"weights and {seen}" if seen else "weights"
    differs = f"the loss differs, although the {equal} are equal"
    if question.one_cpu_thread:
        what = "a random draw or input of the script itself"
        what = what if seen else f"the batch, or {what}"
        return Cause(differs, OWN_SOURCE_REMEDY, what)
    operator = "a nondeterministic operator in the forward pass"
    if seen:
        return Cause(
            differs,
            "Look for custom kernels and for input that does not come from the data loader.",
            operator,
        )
    return Cause(
        differs,
        "Look at data loading and augmentation first, then at custom kernels. With a torch "
        "DataLoader the gate could distinguish batches.",
        f"a different batch or random draw, or {operator}",
    )


def _gradients(first: Event, comparison: Comparison, question: CauseQuestion) -> Cause:
    if first.kind is EventKind.GRADIENTS and BACKWARD in comparison.compared_fingerprints:
        return Cause(
            "backward returns equal gradients, but the script changes them differently before the "
            "update",
            "Look for what writes into gradients between backward and the optimizer's step: noise, "
            "clipping, sums over ranks.",
        )
    if question.one_cpu_thread:
        return Cause(
            "the loss is equal, but the gradients are not",
            OWN_SOURCE_REMEDY,
            "the script changes them, or the backward pass",
        )
    return Cause(
        "the loss is equal, but the gradients are not",
        OPERATOR_REMEDY,
        "a nondeterministic operator of the backward or forward pass",
    )


def _parameters(comparison: Comparison, question: CauseQuestion) -> Cause:
    if "gradients" in comparison.compared_fingerprints:
        return UPDATE
    if question.one_cpu_thread:
        return Cause(
            "the loss is equal, but the updated parameters are not",
            OWN_SOURCE_REMEDY,
            "the script changes gradients or weights",
        )
    return Cause(
        "the loss is equal, but the updated parameters are not",
        OPERATOR_REMEDY,
        "a nondeterministic operator in the backward pass, or the optimizer",
    )
