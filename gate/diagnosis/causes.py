"""What the first stream that differs points to, as a class of cause, and where to look.

The classes were validated with planted faults, one for each stream (tests/streams).
"""

from __future__ import annotations

from dataclasses import dataclass

LOSS_PREFIX = "guest.loss"
ORDER = (
    "structure",
    "initial",
    "random",
    "batch",
    "loss",
    "gradients",
    "parameters",
    "optimizer",
    "metric",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """The first step at which a stream differs; `equal_until` is when it was last seen equal."""

    name: str
    step: int
    equal_until: int | None = None

    @property
    def kind(self) -> str:
        """The class of the stream: `random` for each generator, `metric` for what no guest made."""
        if self.name.startswith(LOSS_PREFIX):
            return "loss"
        kind = self.name.partition(".")[0]
        return kind if kind in ORDER else "metric"

    @property
    def place(self) -> int:
        """The place in the order of causes."""
        return ORDER.index(self.kind)


@dataclass(frozen=True, slots=True)
class Cause:
    """A class of cause: what happened, and where to look."""

    sentence: str
    remedy: str


KNOWN = {
    "structure": Cause(
        "the optimizer was given other parameters, or the same ones in another order",
        "Sort what parameters are collected from: sets, id(), hash order, directory listings.",
    ),
    "initial": Cause(
        "the model is the same and its weights differ before the first step, so they come from a "
        "random source that the seeds do not reach, or from another file",
        "Look for a generator seeded from the time, torch.seed(), np.random.default_rng() without "
        "a seed, and for a checkpoint that is loaded.",
    ),
    "random": Cause(
        "a random generator stands elsewhere: one run drew from it, or seeded it, and the other "
        "did not",
        "Look for seeds from the time, and for draws that depend on time, on threads, on files or "
        "on the order of a set.",
    ),
    "batch": Cause(
        "weights and global random states are equal and the data loader gives another batch: other "
        "samples, another order, or an augmentation with a generator of its own",
        "Look for np.random.default_rng() without a seed, os.urandom, unsorted directories and "
        "sets in datasets, samplers and transforms.",
    ),
    "gradients": Cause(
        "the loss is equal and the gradients are not: a nondeterministic operator in the backward "
        "pass, or one in the forward pass that the rounded loss hides",
        "Look for scatter, index_add or interpolation in the model, and for custom kernels that "
        "torch cannot see.",
    ),
    "optimizer": Cause(
        "the updated parameters are equal and the optimizer's state is not, so the next update "
        "will differ",
        "Look for hooks and callbacks that write into optimizer.state, and for a state that is "
        "loaded.",
    ),
    "metric": Cause(
        "losses and weights are equal, but a metric that the script writes is not",
        "Look at how this metric is computed: time, memory and speed differ in every run; leave "
        "such a metric out of the file.",
    ),
}


def cause_of(first: Event, events: tuple[Event, ...], compared: tuple[str, ...]) -> Cause:
    """What it means that `first` is the first of all `events`.

    `compared` names the streams that were observed on both sides: what was not cannot be excluded.
    """
    if first.kind == "loss":
        return _loss(first, events, compared)
    if first.kind == "parameters":
        return _parameters(compared)
    return KNOWN[first.kind]


def _loss(first: Event, events: tuple[Event, ...], compared: tuple[str, ...]) -> Cause:
    batch_seen, initial_seen = "batch" in compared, "initial" in compared
    if first.step == 1 and not initial_seen:
        return Cause(
            "the very first loss differs: other initial weights or another first batch, so a "
            "random source that the seeds do not reach",
            "Look for np.random.default_rng() without a seed, a generator seeded from the time, "
            "os.urandom, or an order taken from a set or an unsorted directory.",
        )
    weights = [event.equal_until for event in events if event.name == "parameters"]
    until = first.step - 1 if not weights or weights[0] is None else weights[0]
    before = (
        f"the weights were equal up to step {until}" if until else "the first weights are equal"
    )
    if batch_seen:
        return Cause(
            f"{before}, so was the batch, then the loss differs: a nondeterministic operator in "
            "the forward pass, or in the backward pass of a step before",
            "Run the strict mode if this was the default one; then look for custom kernels and "
            "for input that does not come from the data loader.",
        )
    return Cause(
        f"{before}, then the loss differs: another batch, another random draw, or a "
        "nondeterministic operator in the forward pass",
        "Look at data loading and augmentation first, then at custom kernels. A torch DataLoader "
        "would let the guest tell batches apart.",
    )


def _parameters(compared: tuple[str, ...]) -> Cause:
    if "gradients" in compared:
        return Cause(
            "the gradients are equal and the updated parameters are not: the update itself, such "
            "as another learning rate or weight decay, or code that writes into the weights",
            "Look at learning-rate schedules that depend on time or on a metric, and at averaging "
            "and clipping of weights.",
        )
    return Cause(
        "the loss is equal and the updated parameters are not: a nondeterministic operator in the "
        "backward pass, or the optimizer",
        "Look for scatter, index_add or interpolation in the model, and for custom kernels that "
        "torch cannot see.",
    )
