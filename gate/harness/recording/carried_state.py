"""State that a resume needs besides weights and optimizer: generators, schedulers, batches.

This module only records what the process used. Whether a checkpoint contains enough for an exact
resume is judged elsewhere. A generator counts as used if its state changed between two steps. When
a DataLoader's epoch begins it draws a seed for its workers from torch's generator, even without
shuffling; that draw alone does not count.
"""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LRScheduler, ReduceLROnPlateau
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..sources.recorded import SCHEDULE, SOURCES, SourceRecord
from ..user_code import CodeLine, caller_of, calling_frame, unseen_by_warnings, users_frame
from .observer import Generators

MAX_SCHEDULERS: Final = 20
MAX_SAVES: Final = 20
MAX_SAMPLERS: Final = 100
MAX_NAME: Final = 100
MAX_PATH: Final = 200
# How a loader gets the order of its samples: as they are, drawn from torch's generator or from one
# of its own, by the number of the epoch, or unknown.
PLAIN, OF_TORCH, OWN, BY_EPOCH, UNKNOWN = "plain", "torch", "own", "epoch", "unknown"
# attribute that the harness sets on an iterator of a DataLoader
_EPOCH: Final = "_repro_gate_epoch"


class Epoch:
    """An iterator of a DataLoader: where its order comes from, how many batches it yielded."""

    __slots__ = ("ended", "number", "order", "reseeded", "yielded")

    def __init__(self, order: str, number: int, *, reseeded: bool) -> None:
        self.order = order
        self.number = number
        self.reseeded = reseeded
        self.yielded = 0
        self.ended = False


class Loaders:
    """The DataLoaders of one process; the one that led to the last step is the one that trains."""

    def __init__(self) -> None:
        self.own_drawn = False
        self._begun: dict[int, BegunEpoch] = {}
        self._last: weakref.ref[Any] | None = None
        self._trained: weakref.ref[Any] | None = None

    def begin(self, iterator: Any, loader: Any) -> None:
        """Note that a DataLoader made an iterator, which begins an epoch."""
        sampler = _sampler_of(loader)
        order, generator = _order_of(sampler, loader)
        before = self._begun.get(id(sampler))
        # the `id` may be that of a sampler that is gone
        if before is not None and before.sampler() is not sampler:
            before = None
        begun = _begun(sampler, 1 if before is None else before.number + 1, generator)
        # The script seeded the generator for this epoch: with another seed, or with the same one
        # again.
        reseeded = before is not None and (
            begun.seed != before.seed or (order == OWN and begun.state == before.state)
        )
        self.own_drawn = self.own_drawn or (order == OWN and begun.number > 1 and not reseeded)
        if len(self._begun) < MAX_SAMPLERS or id(sampler) in self._begun:
            self._begun[id(sampler)] = begun
        setattr(iterator, _EPOCH, Epoch(order, begun.number, reseeded=reseeded))

    def yielded(self, iterator: Any) -> None:
        """Note that the iterator has yielded a batch."""
        epoch: Epoch | None = getattr(iterator, _EPOCH, None)
        if epoch is not None:
            epoch.yielded = iterator._num_yielded  # noqa: SLF001 - torch has no other name for it
            epoch.ended = False
            self._last = weakref.ref(iterator)

    def after_step(self) -> None:
        """Take the loader that yielded last for the one that trains: its batches led to a step."""
        self._trained = self._last

    def place(self) -> dict[str, object] | None:
        """Return how far the training loader is; None without one, or between two of its epochs."""
        iterator = self._trained() if self._trained is not None else None
        epoch: Epoch | None = getattr(iterator, _EPOCH, None)
        if iterator is None or epoch is None or epoch.ended:
            return None
        try:
            length = len(iterator)
        except (TypeError, NotImplementedError):
            length = 0
        # all batches are out, although the iterator has not been asked for one more
        if length and epoch.yielded >= length:
            return None
        return {
            "batches": epoch.yielded,
            "length": length,
            "order": epoch.order,
            "epoch": epoch.number,
            "reseeded": epoch.reseeded,
        }


class BegunEpoch(NamedTuple):
    """The start of a sampler's last epoch: its number, and the generator's seed and state."""

    sampler: Callable[[], object]
    number: int
    seed: int
    state: bytes


def _begun(sampler: Any, number: int, generator: torch.Generator | None) -> BegunEpoch:
    if generator is None:
        return BegunEpoch(weakref.ref(sampler), number, torch.initial_seed(), b"")
    state = generator.get_state().numpy().tobytes()
    return BegunEpoch(weakref.ref(sampler), number, generator.initial_seed(), state)


def _sampler_of(loader: Any) -> Any:
    """Return the sampler of single samples, below the one that forms batches."""
    batches = loader._index_sampler  # noqa: SLF001 - whichever of two samplers is in use
    return getattr(batches, "sampler", batches)


def _order_of(sampler: Any, loader: Any) -> tuple[str, Any]:
    if hasattr(sampler, "set_epoch") or hasattr(loader.batch_sampler, "set_epoch"):
        return BY_EPOCH, None
    # exact types here and below: a subclass may change the order
    if type(sampler) is torch.utils.data.SequentialSampler:
        return PLAIN, None
    draws = (
        torch.utils.data.RandomSampler,
        torch.utils.data.SubsetRandomSampler,
        torch.utils.data.WeightedRandomSampler,
    )
    if type(sampler) not in draws:
        return UNKNOWN, None
    generator = sampler.generator
    if generator is None or generator is torch.default_generator:
        return OF_TORCH, None
    return (OWN, generator) if generator.device.type == "cpu" else (UNKNOWN, None)


class RateScheduler:
    """A scheduler of torch and the line that created it.

    `given` is true if the script says where the schedule begins, so that the schedule is a function
    of the step.
    """

    def __init__(self, scheduler: LRScheduler, place: CodeLine, *, given: bool) -> None:
        self.scheduler = weakref.ref(scheduler)
        self.kind = type(scheduler).__name__
        self.place = place
        self.given = given


class CarriedState:
    """Records the carried state of one process."""

    def __init__(self, generators: Generators, tree: str) -> None:
        self.loaders = Loaders()
        self._generators = generators
        self._tree = os.path.realpath(tree or os.getcwd())  # noqa: PTH109 - as text
        self._schedulers: list[RateScheduler] = []
        self._alive: list[LRScheduler] = []
        self._saves: dict[str, dict[str, object]] = {}
        self._known = True

    def noting(self) -> GivingUp:
        """Return a context that ignores errors: no verdict rests on this record."""
        return GivingUp(self)

    def give_up(self) -> None:
        """Record nothing at all: half of the facts would make used state look unused."""
        self._known = False

    def after_step(self) -> None:
        """Keep schedulers alive until the next step.

        The script's function may have returned, and its schedulers may be gone, when the record is
        written.
        """
        self.loaders.after_step()
        # Clear first, so that a scheduler which the script has dropped is really gone.
        self._alive.clear()
        self._alive += [
            alive for scheduler in self._schedulers if (alive := scheduler.scheduler()) is not None
        ]

    def note_scheduler(self, scheduler: LRScheduler, frame: FrameType, *, given: bool) -> None:
        """Remember a scheduler that is being created."""
        place = caller_of(frame).place
        if len(self._schedulers) < MAX_SCHEDULERS:
            self._schedulers.append(RateScheduler(scheduler, place, given=given))
        SOURCES.report(SourceRecord(SCHEDULE, type(scheduler).__name__, place, []))

    def note_position(self, scheduler: LRScheduler) -> None:
        """Note that the script itself says where this scheduler's schedule is."""
        for scheduler_ in self._schedulers:
            scheduler_.given = scheduler_.given or scheduler_.scheduler() is scheduler

    def begin_loader(self, iterator: Any, loader: Any, before: torch.Tensor) -> None:
        """Note that an epoch begins; its draw from torch's generator only seeds workers."""
        self._generators.pass_over(before, torch.get_rng_state())
        self.loaders.begin(iterator, loader)

    def note_save(self, target: object, frame: FrameType, step: int, *, in_place: bool) -> None:
        """Remember how far the training was at its latest save to this target.

        `in_place` is true if the save overwrote the file that was there.
        """
        path = self._path_of(target)
        known = self._saves.get(path)
        if known is None and len(self._saves) >= MAX_SAVES:
            return
        place = caller_of(frame).place
        self._saves[path] = {
            "path": path,
            "step": step,
            "file": place.file[-MAX_PATH:],
            "line": place.line,
            "loader": self.loaders.place(),
            # the first save does not count: a file from before the training is no checkpoint of
            # this one
            "in_place": known is not None and (in_place or bool(known["in_place"])),
        }

    def _path_of(self, target: object) -> str:
        named = getattr(target, "name", target)
        if not isinstance(named, str | os.PathLike):
            return ""
        path = os.path.relpath(os.path.realpath(os.fsdecode(named)), self._tree)
        return path[-MAX_PATH:]

    def record(
        self, optimizers: list[Optimizer], lines_of: Callable[[set[str]], dict[str, CodeLine]]
    ) -> dict[str, object] | None:
        """Return the record for the summary, with schedulers only of optimizers that stepped.

        `lines_of` finds the lines that draw from the generators of the given names.
        """
        states: dict[str, object] = {}
        with self.noting():
            states = {
                "drawn": sorted(self._generators.drawn),
                "lines": {
                    name: {"file": place.file[-MAX_PATH:], "line": place.line}
                    for name, place in lines_of(self._generators.drawn).items()
                },
                "states": self._generators.states,
                "devices_drawn": len(self._generators.devices_drawn),
                "own_generator": self.loaders.own_drawn,
                "schedulers": [
                    {
                        "kind": outer_scheduler.kind[:MAX_NAME],
                        "given": outer_scheduler.given,
                        "file": outer_scheduler.place.file[-MAX_PATH:],
                        "line": outer_scheduler.place.line,
                    }
                    for outer_scheduler in self._outer_schedulers(optimizers)
                ],
                "saves": list(self._saves.values()),
            }
        # without observation the generators' states are unknown, so the record would be incomplete
        return states if self._known and self._generators.states else None

    def _outer_schedulers(self, optimizers: list[Optimizer]) -> list[RateScheduler]:
        """Return the schedulers that are alive and that no other scheduler contains."""
        alive = [(held, held.scheduler()) for held in self._schedulers]
        inner = [
            part for _, scheduler in alive for part in getattr(scheduler, "_schedulers", None) or ()
        ]
        return [
            held
            for held, scheduler in alive
            if scheduler is not None
            and not any(part is scheduler for part in inner)
            and any(getattr(scheduler, "optimizer", None) is known for known in optimizers)
        ]


class GivingUp:
    """The context of `CarriedState.noting`."""

    __slots__ = ("_carried",)

    def __init__(self, carried: CarriedState) -> None:
        self._carried = carried

    def __enter__(self) -> None:
        """Do nothing; the work is in `__exit__`."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: object
    ) -> bool:
        """Give up on an `Exception`; let `KeyboardInterrupt`, `SystemExit` and the like pass."""
        if isinstance(error, Exception):
            self._carried.give_up()
            return True
        return False


Carried = Callable[[], CarriedState | None]
Write = Callable[[Any], None]
# saves in torch's place: takes the function that writes to a target, the target, and the script's
# frame
Save = Callable[[Write, Any, FrameType], None]


def install(carried: Carried, step: Callable[[], int], save_by: Callable[[], Save | None]) -> None:
    """Hook schedulers, DataLoaders and `torch.save`.

    `carried` returns the record of this process. `save_by` returns the function that saves in
    torch's place; None in almost every run.
    """
    _hook_schedulers(carried)
    _hook_loaders(carried)
    _hook_saving(carried, step, save_by)


def _hook_schedulers(carried: Carried) -> None:
    # Not around `__init__`: each class has its own, and some do not call their parent's.
    def new(kind: type[LRScheduler], *args: Any, **kwargs: Any) -> LRScheduler:
        scheduler: LRScheduler = object.__new__(kind)
        state = carried()
        # `copy` and `pickle` create an object without arguments: such a copy is no new scheduler
        if state is not None and (args or kwargs):
            with state.noting():
                frame = calling_frame(1)
                given = _says_where(kind, frame, args, kwargs)
                state.note_scheduler(scheduler, frame, given=given)
        return scheduler

    LRScheduler.__new__ = new  # type: ignore[method-assign,assignment]
    for kind in (LRScheduler, CosineAnnealingWarmRestarts, ReduceLROnPlateau):
        _hook_steps_of(kind, carried)


def _says_where(
    kind: type[LRScheduler], frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether the call says where the schedule begins; a library's default of -1 does not."""
    bound = inspect.signature(kind).bind(*args, **kwargs).arguments
    if "last_epoch" not in bound:
        return False
    return bound["last_epoch"] != -1 or users_frame(frame, frozenset()) is not None


def _hook_steps_of(kind: Any, carried: Carried) -> None:
    plain_step: Any = kind.step

    @functools.wraps(plain_step)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        # `epoch` is the last positional argument; the one before it is a plateau's metric
        if (args or kwargs) and not torch.compiler.is_compiling():
            state, metrics = carried(), kind is ReduceLROnPlateau
            if state is not None and ("epoch" in kwargs or len(args) > metrics):
                state.note_position(self)
        return plain_step(self, *args, **kwargs)

    kind.step = unseen_by_warnings(step)


def _hook_loaders(carried: Carried) -> None:
    plain_init: Any = _BaseDataLoaderIter.__init__
    plain_next: Any = _BaseDataLoaderIter.__next__

    @functools.wraps(plain_init)
    def init(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        state = carried()
        before = None if state is None else torch.get_rng_state()
        plain_init(self, loader, *args, **kwargs)
        if state is not None and before is not None:
            with state.noting():
                state.begin_loader(self, loader, before)

    @functools.wraps(plain_next)
    def next_batch(self: Any) -> Any:
        try:
            batch = plain_next(self)
        except StopIteration:
            epoch: Epoch | None = getattr(self, _EPOCH, None)
            if epoch is not None:
                epoch.ended = True
            raise
        state = carried()
        if state is not None:
            with state.noting():
                state.loaders.yielded(self)
        return batch

    _BaseDataLoaderIter.__init__ = unseen_by_warnings(init)  # type: ignore[method-assign]
    _BaseDataLoaderIter.__next__ = unseen_by_warnings(next_batch)  # type: ignore[method-assign]


def _hook_saving(
    carried: Carried, step: Callable[[], int], save_by: Callable[[], Save | None]
) -> None:
    plain_save: Any = torch.save

    @functools.wraps(plain_save)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        state = carried()
        before = None if state is None else _file_at(f)
        other = save_by()
        if other is None:
            plain_save(obj, f, *args, **kwargs)
        else:
            other(lambda target: plain_save(obj, target, *args, **kwargs), f, calling_frame(1))
        if state is not None:
            with state.noting():
                # the same inode before and after: the save did not write a new file and rename it
                in_place = before is not None and before == _file_at(f)
                state.note_save(f, calling_frame(1), step(), in_place=in_place)

    hooked: Any = unseen_by_warnings(save)
    torch.save = torch.serialization.save = hooked


def _file_at(target: object) -> tuple[int, int] | None:
    """Return device and inode of the file at a path; None if there is none or it is no path."""
    if not isinstance(target, str | os.PathLike):
        return None
    try:
        status = os.stat(target)  # noqa: PTH116 - a script may give bytes in its path
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
