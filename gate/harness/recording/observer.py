"""Digests of what flows through a step, by fingerprint, within a budget of time.

Fingerprints form three groups. Each group has a sampling interval, always a power of two: with an
interval of n it is observed at steps 1, 1 + n, 1 + 2 n, ... and at the last step that the gate
asked for. So sampling intervals are nested. If two runs use different intervals, the denser run
observes every step that the sparser one does. Both observe the first and the last step.

The intervals depend on measured time, which is never the same twice. So every run calibrates for
itself, and the gate compares the steps that both runs observed. No run gets another run's
intervals, since a number that one run chose would be a channel from it to the next. A run observes
all of its first steps, until they have taken `CALIBRATION_SECONDS` together. The first step does
not count: it pays for cold caches and for what a device loads at first use. At steps 2, 4, 8, ...
the run then takes the smallest sampling intervals for which

    seconds of an observation * observations / steps <= budget / 4 * seconds of a step

The rest of the budget is for one-time work and for the first `FIRST_STEPS` steps, where most
divergences begin. They are all observed, as far as that rest or the free seconds allow. A run of
fewer than `LONG_STEPS` steps may spend its free seconds on any of its steps: a smoke training is
short, and what it can show is worth more than a second.

Only modules that have been imported are asked: a generator of a module that is not imported cannot
have been drawn from. No generator state is on a device: CUDA's is a seed and an offset, kept on the
host.

The fingerprints, in the order in which one causes the next: `structure`, `initial`, `random.*`,
`batch`, `input`, `weights.*`, (the loss, which the recorder writes), `backward`, `gradients`,
`parameters`, `optimizer`. Each digest is sensitive to positions: a shuffled batch or two swapped
weights give another digest.
"""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch.optim import Optimizer

from .. import cuda
from ..output import Problems
from ..plain_tensors import gradient, structure, use_bytes
from ..tensor_digests import (
    HostCopies,
    StartedDigest,
    finish_all,
    nested_digest,
    start_parameters,
    start_value,
)
from .gradients import Returned, Versions, gradient_versions, versions_of
from .state import TensorOrder, named_tensors, optimized_parameters
from .time_and_memory import StepClock

RANDOM: Final = "random"
BATCH: Final = "batch"
TENSORS: Final = "tensors"
GROUPS: Final = (RANDOM, BATCH, TENSORS)
CALIBRATION_STEPS: Final = 3
CALIBRATION_SECONDS: Final = 0.02
# On the host only. With a device, observing all of them would leave a short run without any
# undisturbed step.
FIRST_STEPS: Final = 10
LONG_STEPS: Final = 100
# share of the budget for regular observation over the whole run
STEADY_SHARE: Final = 0.25
# share of the regular observation for random states and for batches each: they explain less than
# tensors do
SMALL_SHARE: Final = 0.5
# Recent steps only, so that a training that becomes slower is measured again. An odd number, so
# that the median is one of the values.
REMEMBERED: Final = 33
LEAST_ON_A_DEVICE: Final = 4
# look again after a quarter of the steps so far: few looks in a run of any length
LOOK_AGAIN_AFTER: Final = 4


class Schedule:
    """Chooses the sampling interval of each group of fingerprints.

    `budget` is the fraction of a step's time that observation may take. `free_seconds` may be spent
    on observation in the whole run, no matter how long its steps take.
    """

    def __init__(
        self,
        budget: float,
        last_step: int,
        free_seconds: float = 0.0,
    ) -> None:
        self.sampling_intervals = dict.fromkeys(GROUPS, 1)
        self._budget = budget
        self._free_seconds = free_seconds / last_step if last_step < LONG_STEPS else 0.0
        self._free_in_all = self._first_seconds = free_seconds
        self._calibration_seconds = max(CALIBRATION_SECONDS, free_seconds / 4)
        self._last_step = last_step
        self._costs: dict[str, deque[float]] = {group: deque(maxlen=REMEMBERED) for group in GROUPS}
        self._always: deque[float] = deque(maxlen=REMEMBERED)
        self._steps: deque[float] = deque(maxlen=REMEMBERED)
        self._calibrated = 0.0
        self._decided = False
        self._least = 1

    def leave_steps_alone(self) -> None:
        """Observe at most every fourth step, once the sampling intervals are chosen.

        A device works beside the host, so nobody can measure by how much observation delays a step.
        So some steps must have an undisturbed time: they and the step before are not observed.
        """
        self._least = LEAST_ON_A_DEVICE

    def due(self, group: str, step: int) -> bool:
        """Whether this group of fingerprints is observed at this step."""
        if step in (1, self._last_step):
            # the first and the last step are observed by every run, so two runs always share them
            return True
        if not self._decided:
            # until the costs are known every step is observed, unless that alone takes too long
            return self._calibrated < self._calibration_seconds
        # on a device `leave_steps_alone` has raised the least interval: no step is favoured there
        if step <= FIRST_STEPS and self._least == 1:
            expected = self._calibrated + _median(self._costs[group])
            if expected <= self._first_seconds:
                return True
        # count from 1, so that intervals of powers of two nest and the runs share the sparser one's
        # steps
        return (step - 1) % self.sampling_intervals[group] == 0

    def close_step(
        self,
        step: int,
        step_seconds: float | None,
        observe_seconds: float,
        group_seconds: Mapping[str, float],
    ) -> None:
        """Note what a step and its observation took; choose the intervals again at powers of two.

        `step_seconds` is None if unknown. `group_seconds` divides the observation's time among the
        groups. The call may come while a later step is in progress, since a device's times arrive
        late.
        """
        if step == 1:
            # the first step fills caches and loads kernels: its cost would make all later steps
            # sparse
            return
        if step_seconds is not None:
            self._steps.append(step_seconds)
        spent = sum(group_seconds.values())
        # costs that no interval can avoid: structure, copies to the host, the step's own line
        self._always.append(observe_seconds - spent)
        for group, seconds in group_seconds.items():
            self._costs[group].append(seconds)
        self._calibrated += spent
        calibrating = not self._decided and step < CALIBRATION_STEPS
        if calibrating and self._calibrated < self._calibration_seconds:
            return
        # Often while little is known, rarely later: choosing at every step would follow the noise
        # of the clock.
        power_of_two = step & (step - 1) == 0
        if self._steps and (power_of_two or not self._decided):
            self._decide()

    def _decide(self) -> None:
        budget = self._budget * _median(self._steps)
        allowance = max(STEADY_SHARE * budget, self._free_seconds)
        rest = (1 - STEADY_SHARE) * budget * self._last_step
        self._first_seconds = max(self._free_in_all, rest)
        left = allowance - _median(self._always)
        # the two cheap groups first, each within its share; tensors get all that is left
        for group in (RANDOM, BATCH):
            cost = _median(self._costs[group])
            sampling_interval = self._smallest(cost, min(left, allowance * SMALL_SHARE))
            self.sampling_intervals[group] = sampling_interval
            left -= cost * self._observations(sampling_interval) / self._last_step
        self.sampling_intervals[TENSORS] = self._smallest(_median(self._costs[TENSORS]), left)
        self._decided = True

    def _smallest(self, cost: float, allowance: float) -> int:
        """Return the smallest interval at which the mean cost a step stays within the allowance."""
        sampling_interval = self._least
        # an interval as long as the training still leaves its first and last step
        while sampling_interval < self._last_step:
            if cost * self._observations(sampling_interval) / self._last_step <= allowance:
                break
            sampling_interval *= 2
        return sampling_interval

    def _observations(self, sampling_interval: int) -> int:
        regular = (self._last_step - 1) // sampling_interval + 1
        # the last step is observed even if the interval does not lead to it
        return regular + ((self._last_step - 1) % sampling_interval != 0)


def _median(values: deque[float]) -> float:
    # not the mean: one step that waited for a disk would outweigh all others
    return sorted(values)[len(values) // 2] if values else 0.0


OF_GENERATORS: Final = "random."


def random_states(problems: Problems) -> dict[str, str]:
    """Return `random.<generator>` to `algorithm:hex` for each generator in use."""
    states = {}
    for name, (in_use, read) in GENERATORS.items():
        if in_use():
            with problems.noting(f"reading the random state of {name}"):
                states[f"{OF_GENERATORS}{name}"] = read()
    return states


def _python() -> str:
    """Return Python's own hash of the generator's 625 integers.

    No hash seed changes the hash of integers. The hash is sensitive to positions (xxHash rounds
    since Python 3.8) and twenty times as fast as writing the integers out.
    """
    state: Any = sys.modules["random"].getstate()
    version, integers, deviate = state
    # Before Python 3.12 the hash of None is its address, so it differs between processes.
    kept = () if deviate is None else (deviate,)
    return f"tuple64:{hash((version, *integers, *kept)) % 2**64:016x}"


def _numpy() -> str:
    return nested_digest(sys.modules["numpy.random"].get_state(legacy=False), lambda _: None)


def _torch() -> str:
    return _of_states([torch.get_rng_state()])


def _cuda() -> str:
    return _of_states([generator.get_state() for generator in cuda.generators()])


def states_of_devices() -> list[bytes]:
    """Return the generator state of each GPU, 16 bytes each; empty with fewer than two GPUs."""
    generators = cuda.generators() if cuda.in_use() else ()
    several = len(generators) > 1
    return [generator.get_state().numpy().tobytes() for generator in generators] if several else []


def _of_states(states: list[torch.Tensor]) -> str:
    hasher = hashlib.sha256()
    for state in states:
        use_bytes(state, hasher.update)
    return f"sha256:{hasher.hexdigest()}"


# for each generator: whether the process can have drawn from it, and a digest of its state
GENERATORS: Final[dict[str, tuple[Callable[[], bool], Callable[[], str]]]] = {
    "python": (lambda: "random" in sys.modules, _python),
    "numpy": (lambda: "numpy.random" in sys.modules, _numpy),
    "torch": (lambda: True, _torch),
    "cuda": (cuda.in_use, _cuda),
}


class Generators:
    """Which of the common generators the training draws from, found by comparing their states."""

    def __init__(self) -> None:
        self.drawn: set[str] = set()
        self.states: dict[str, str] = {}
        self.devices_drawn: set[int] = set()
        self._devices: dict[int, bytes] = {}
        self._next_step = 1

    def due(self, step: int) -> bool:
        """Whether to look after this step, even if its random states are no fingerprint.

        In a long run few steps have fingerprints. Draws between them, or late, would be missed.
        """
        return step >= self._next_step

    def look(self, states: dict[str, str], devices: Sequence[bytes] = (), *, step: int = 0) -> None:
        """Compare with the last look; `states` are fingerprints, `devices` states of GPUs."""
        self._next_step = max(self._next_step, step + 1 + step // LOOK_AGAIN_AFTER)
        for index, held in enumerate(devices):
            if self._devices.get(index, held) != held:
                self.devices_drawn.add(index)
            self._devices[index] = held
        for fingerprint, state in states.items():
            name = fingerprint.removeprefix(OF_GENERATORS)
            if self.states.get(name, state) != state:
                self.drawn.add(name)
            self.states[name] = state

    def pass_over(self, before: torch.Tensor, after: torch.Tensor) -> None:
        """Ignore what happened between these two states of torch's generator."""
        known = self.states.get("torch")
        if known is not None:
            if known != _of_states([before]):
                self.drawn.add("torch")
            self.states["torch"] = _of_states([after])


_NO_COPIES: Final = HostCopies(())


class StepObservation(NamedTuple):
    """What was seen of a step: known fingerprints, and digests of values still on a device.

    `batches`, `inputs` and `started` take their values from `copies`, in that order.
    `gradients_kept` is true if nothing changed the gradients after backward returned them.
    """

    fingerprints: dict[str, str]
    gradients_kept: bool
    batches: tuple[StartedDigest, ...]
    inputs: tuple[StartedDigest, ...]
    started: dict[str, StartedDigest]
    copies: HostCopies

    def finish(self) -> tuple[str | None, dict[str, str]]:
        """Return the digest of the parameters, None if not observed, and the other fingerprints.

        Call it once, when the device has computed the values.
        """
        values = iter(
            finish_all((*self.batches, *self.inputs, *self.started.values()), self.copies)
        )
        fingerprints = dict(self.fingerprints)
        for name, several in (("batch", self.batches), ("input", self.inputs)):
            if several:
                fingerprints[name] = _joined([next(values) for _ in several])
        fingerprints |= dict(zip(self.started, values, strict=True))
        if self.gradients_kept and "backward" in fingerprints:
            fingerprints["gradients"] = fingerprints["backward"]
        return fingerprints.pop("parameters", None), fingerprints


class Observer:
    """Observes the step in progress in one process, without waiting for a device.

    Observation happens in three places: when a batch is drawn and before the update, both inside
    the step's time, and after the update. Each is a span on the `clock`.
    """

    def __init__(self, schedule: Schedule, problems: Problems, clock: StepClock) -> None:
        self.schedule = schedule
        self._problems = problems
        self._clock = clock
        self._batches: list[StartedDigest] = []
        self._inputs: list[StartedDigest] = []
        self._returned: dict[int, Returned] = {}
        # by `id` of the optimizer: its digests since the last update, and the versions of its
        # weights
        self._used_weights: dict[int, dict[str, StartedDigest]] = {}
        self._versions: dict[int, Versions | None] = {}
        self._gradients_kept = False
        self._left_a_batch_out = False
        self._structures: dict[int, tuple[int, ...]] = {}
        self._started: dict[str, StartedDigest] = {}
        self._fingerprints: dict[str, str] = {}
        self.generators = Generators()

    def note_batch(self, value: object, step: int) -> None:
        """Digest a batch that a DataLoader yields for the coming step `step`."""
        if not self.schedule.due(BATCH, step):
            self._left_a_batch_out = True
        else:
            with self._spending(BATCH), self._problems.noting("observing a batch"):
                self._batches.append(start_value(value, self._problems.leave_out))

    def drop_batches(self) -> None:
        """Forget the batches drawn so far: nobody knows for which step they were drawn."""
        self._batches = []

    def note_input(self, arguments: object, step: int) -> None:
        """Digest the arguments of the model's call for the coming step `step`."""
        if not self.schedule.due(BATCH, step):
            self._left_a_batch_out = True
        else:
            with self._spending(BATCH), self._problems.noting("observing an input"):
                self._inputs.append(start_value(arguments, self._problems.leave_out))

    def look_at_weights(
        self, optimizers: Sequence[tuple[Optimizer, int]], order: TensorOrder, *, first_pass: bool
    ) -> None:
        """Digest the weights that a backward pass used: a script may write to them between updates.

        The weights of the very first pass are the initial ones. What a script does to them later in
        the first step, as SAM does, does not change the start. If something writes to the weights
        before a later pass of a step, as a closure of LBFGS does, `weights.last` is taken. The last
        such pass counts.
        """
        due = [pair for pair in optimizers if self.schedule.due(TENSORS, pair[1])]
        # an empty span would count as an observation that cost nothing
        if not due:
            return
        with self._spending(TENSORS), self._problems.noting("observing the weights"):
            for optimizer, step in due:
                self._look_at_weights(optimizer, step, order, first_pass=first_pass)

    def _look_at_weights(
        self, optimizer: Optimizer, step: int, order: TensorOrder, *, first_pass: bool
    ) -> None:
        parameters, number = order.parameters(optimizer), id(optimizer)
        used = self._used_weights.setdefault(number, {})
        begins = number not in self._versions
        versions, before = versions_of(parameters), self._versions.get(number)
        self._versions[number] = versions
        # the versions decide: a pass with untouched weights needs no digest of its own
        if first_pass and begins and step == 1:
            name = "initial"
        elif first_pass and step > 1 and "weights.first" not in used:
            name = "weights.first"
        elif not first_pass and before is not None and versions not in (None, before):
            name = "weights.last"
        else:
            return
        used[name] = self._digest(name, _numbered(parameters))

    def after_backward(self, optimizer: Optimizer, step: int, order: TensorOrder) -> None:
        """Digest the gradients that backward has just returned, unless they are unchanged.

        `before` looks at the versions again. If they changed since, the script itself changed the
        gradients.
        """
        if not self.schedule.due(TENSORS, step):
            return
        with self._spending(TENSORS), self._problems.noting("observing the backward pass"):
            parameters = order.parameters(optimizer)
            versions = gradient_versions(parameters)
            known = self._returned.get(id(optimizer))
            if known is None or versions is None or known.versions != versions:
                started = self._digest("backward", _numbered(map(gradient, parameters)))
                self._returned[id(optimizer)] = Returned(started, versions)

    def look_at_structure(
        self, number: int, optimizer: Optimizer, step: int, order: TensorOrder
    ) -> None:
        """Fingerprint the structure when it changes, and the initial values at step 1."""
        # A script may replace parameters or add groups. Comparing identities costs next to nothing.
        identities = tuple(map(id, optimized_parameters(optimizer)))
        if self._structures.get(number) != identities:
            with self._problems.noting("observing the structure"), torch.no_grad():
                self._structures[number] = identities
                self._fingerprints["structure"] = structure_digest(optimizer, order)
                if step == 1:
                    self._start_initial(optimizer, order.parameters(optimizer))

    def _start_initial(self, optimizer: Optimizer, parameters: list[torch.Tensor]) -> None:
        if "initial" not in self._used_weights.get(id(optimizer), ()):
            self._start("initial", _numbered(parameters))
            self._versions[id(optimizer)] = versions_of(parameters)

    def before(self, optimizer: Optimizer, step: int, order: TensorOrder) -> None:
        """Digest the gradients that the update will use."""
        if self.schedule.due(TENSORS, step):
            with self._spending(TENSORS), self._problems.noting("observing the gradients"):
                self._start_gradients(optimizer, order.parameters(optimizer), step)

    def _start_gradients(
        self, optimizer: Optimizer, parameters: list[torch.Tensor], step: int
    ) -> None:
        returned = self._returned.pop(id(optimizer), None)
        if returned is not None and not returned.digest.saw_nothing:
            self._started["backward"] = returned.digest
            # step 1 learns the order of the parameters between the two looks, so the versions taken
            # by the two cannot be compared
            known = step > 1 and returned.versions is not None
            self._gradients_kept = known and returned.versions == gradient_versions(parameters)
        if not self._gradients_kept:
            self._start("gradients", _numbered(map(gradient, parameters)))

    def unobserved(self, step: int) -> list[str]:
        """Return the groups that are left out at this step; call it before `after`."""
        left_out = [group for group in (RANDOM, TENSORS) if not self.schedule.due(group, step)]
        return [*left_out, BATCH] if self._left_a_batch_out else left_out

    def after(self, optimizer: Optimizer, step: int, order: TensorOrder) -> StepObservation:
        """Digest what the update left, and start copying all of the step's digests to the host."""
        fingerprints, started = self._fingerprints, self._started
        used = self._used_weights.pop(id(optimizer), {})
        started |= {name: record for name, record in used.items() if not record.saw_nothing}
        batches, inputs, kept = tuple(self._batches), tuple(self._inputs), self._gradients_kept
        try:
            if self.schedule.due(RANDOM, step):
                with self._spending(RANDOM):
                    states = random_states(self._problems)
                    self.generators.look(states, states_of_devices(), step=step)
                    fingerprints |= states
            elif self.generators.due(step):
                # only to learn whether the generators are used: no fingerprint of this step
                with self._spending(""):
                    self.generators.look(
                        random_states(self._problems), states_of_devices(), step=step
                    )
            tensors = self.schedule.due(TENSORS, step)
            copies = _NO_COPIES
            if tensors or batches or inputs or started:
                with self._spending(TENSORS if tensors else ""):
                    if tensors:
                        self._start_results(optimizer, order.parameters(optimizer))
                    flowing = (*batches, *inputs, *started.values())
                    copies = HostCopies(flowing, self._clock.devices)
            return StepObservation(fingerprints, kept, batches, inputs, started, copies)
        finally:
            # even after an error, nothing seen in this step may be counted to the next one
            self._batches, self._inputs, self._started, self._fingerprints = [], [], {}, {}
            self._left_a_batch_out = self._gradients_kept = False

    def _start_results(self, optimizer: Optimizer, parameters: list[torch.Tensor]) -> None:
        self._started["parameters"] = start_parameters(parameters, self._problems.leave_out)
        self._start("optimizer", _state(optimizer, parameters, self._problems))

    def _start(self, fingerprint: str, tensors: Iterable[tuple[str, torch.Tensor | None]]) -> None:
        started = self._digest(fingerprint, tensors)
        if not started.saw_nothing:
            self._started[fingerprint] = started

    def _digest(
        self, fingerprint: str, tensors: Iterable[tuple[str, torch.Tensor | None]]
    ) -> StartedDigest:
        return StartedDigest(tensors, fingerprint, self._problems.leave_out, fast=True)

    @contextmanager
    def _spending(self, group: str) -> Iterator[None]:
        with self._clock.span(group), torch.no_grad():
            yield


def _joined(digests: list[str]) -> str:
    """Return one digest over several digests in their order."""
    joined = hashlib.sha256("\n".join(digests).encode("ascii")).hexdigest()
    return f"sha256:{joined}"


def structure_digest(optimizer: Optimizer, order: TensorOrder) -> str:
    """Return `sha256:hex` over each group's parameters: name, type, shape, needs gradient."""
    lines = (
        f"{position} {order.name(parameter)} {structure(parameter)}\n"
        for position, parameters in enumerate(order.groups(optimizer))
        for parameter in parameters
    )
    text = "".join(lines).encode("utf-8", "backslashreplace")
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def _numbered(
    tensors: Iterable[torch.Tensor | None],
) -> Iterator[tuple[str, torch.Tensor | None]]:
    return ((str(index), tensor) for index, tensor in enumerate(tensors))


def _state(
    optimizer: Optimizer, parameters: Sequence[torch.Tensor], problems: Problems
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the optimizer's state of each parameter in order, by sorted keys."""
    for index, parameter in enumerate(parameters):
        state = optimizer.state.get(parameter, {})
        for key in sorted(state, key=str):
            yield from named_tensors(f"{index}/{key}", state[key], problems)
