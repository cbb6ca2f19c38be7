"""What a training goes on from besides weights and optimizer: generators, schedulers, batches.

Whether a checkpoint holds enough to go on from is judged elsewhere; here is noted what this process
used. A generator counts once it was drawn from between two steps. A DataLoader that begins draws a
number for its workers from torch's generator, also where nothing is shuffled: alone that is no use.
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

from ..user_code import CodeLine, caller_of, calling_frame, unseen_by_warnings, users_frame
from .observer import Generators

MAX_SCHEDULERS: Final = 20
MAX_SAVES: Final = 20
MAX_SAMPLERS: Final = 100
MAX_NAME: Final = 100
MAX_PATH: Final = 200
# How a loader comes to the order of its samples: as they stand, drawn from torch's generator or
# from one of its own, by the number of the epoch, or in a way that is not known.
PLAIN, OF_TORCH, OWN, BY_EPOCH, UNKNOWN = "plain", "torch", "own", "epoch", "unknown"
# on an iterator of a DataLoader
_EPOCH: Final = "_repro_gate_epoch"


class Epoch:
    """One iterator of a DataLoader: how its order comes about, and how far it is."""

    __slots__ = ("ended", "number", "order", "reseeded", "yielded")

    def __init__(self, order: str, number: int, *, reseeded: bool) -> None:
        self.order = order
        self.number = number
        self.reseeded = reseeded
        self.yielded = 0
        self.ended = False


class Loaders:
    """The DataLoaders of one process; that of the last step is the one that trains."""

    def __init__(self) -> None:
        self.own_drawn = False
        self._begun: dict[int, BegunEpoch] = {}
        self._last: weakref.ref[Any] | None = None
        self._trained: weakref.ref[Any] | None = None

    def begin(self, iterator: Any, loader: Any) -> None:
        """An iterator was made: an epoch begins."""
        sampler = _sampler_of(loader)
        order, generator = _order_of(sampler, loader)
        before = self._begun.get(id(sampler))
        if before is not None and before.sampler() is not sampler:
            before = None
        begun = _begun(sampler, 1 if before is None else before.number + 1, generator)
        # given a seed for this epoch: another one, or the same again
        reseeded = before is not None and (
            begun.seed != before.seed or (order == OWN and begun.state == before.state)
        )
        self.own_drawn = self.own_drawn or (order == OWN and begun.number > 1 and not reseeded)
        if len(self._begun) < MAX_SAMPLERS or id(sampler) in self._begun:
            self._begun[id(sampler)] = begun
        setattr(iterator, _EPOCH, Epoch(order, begun.number, reseeded=reseeded))

    def yielded(self, iterator: Any) -> None:
        """It has given a batch."""
        epoch: Epoch | None = getattr(iterator, _EPOCH, None)
        if epoch is not None:
            epoch.yielded = iterator._num_yielded  # noqa: SLF001 - torch has no other name for it
            epoch.ended = False
            self._last = weakref.ref(iterator)

    def after_step(self) -> None:
        """The batches of the last loader led to a step."""
        self._trained = self._last

    def place(self) -> dict[str, object] | None:
        """How far the loader that trains is; None without one, or between two epochs of it."""
        iterator = self._trained() if self._trained is not None else None
        epoch: Epoch | None = getattr(iterator, _EPOCH, None)
        if iterator is None or epoch is None or epoch.ended:
            return None
        try:
            length = len(iterator)
        except (TypeError, NotImplementedError):
            length = 0
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
    """Where a sampler's last epoch began: its number, and the seed and state of its generator."""

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
    """What gives the order of single samples, below what puts them into batches."""
    batches = loader._index_sampler  # noqa: SLF001 - whichever of two samplers is in use
    return getattr(batches, "sampler", batches)


def _order_of(sampler: Any, loader: Any) -> tuple[str, Any]:
    if hasattr(sampler, "set_epoch") or hasattr(loader.batch_sampler, "set_epoch"):
        return BY_EPOCH, None
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


class Scheduler:
    """A scheduler of torch's, and the line that made it.

    `given`: that line says where the schedule begins, so that it is a function of the step.
    """

    def __init__(self, scheduler: LRScheduler, place: CodeLine, *, given: bool) -> None:
        self.scheduler = weakref.ref(scheduler)
        self.kind = type(scheduler).__name__
        self.place = place
        self.given = given


class CarriedState:
    """All of it in one process."""

    def __init__(self, generators: Generators, tree: str) -> None:
        self.loaders = Loaders()
        self._generators = generators
        self._tree = os.path.realpath(tree or os.getcwd())  # noqa: PTH109 - as text
        self._schedulers: list[Scheduler] = []
        self._alive: list[LRScheduler] = []
        self._saves: dict[str, dict[str, object]] = {}
        self._known = True

    def noting(self) -> Noting:
        """What cannot be found out is not told, and no problem of the run: nothing rests on it."""
        return Noting(self)

    def give_up(self) -> None:
        """Something went wrong: half of the facts would make a part look unused."""
        self._known = False

    def after_step(self) -> None:
        """Keep what has led to a step: a script's function may have ended when all is reported."""
        self.loaders.after_step()
        # first let go of, so that what the script has dropped is no longer there
        self._alive.clear()
        self._alive += [
            alive for scheduler in self._schedulers if (alive := scheduler.scheduler()) is not None
        ]

    def note_scheduler(self, scheduler: LRScheduler, frame: FrameType, *, given: bool) -> None:
        """Remember one that is being made."""
        if len(self._schedulers) < MAX_SCHEDULERS:
            self._schedulers.append(Scheduler(scheduler, caller_of(frame).place, given=given))

    def note_position(self, scheduler: LRScheduler) -> None:
        """The script says itself where the schedule is."""
        for scheduler_ in self._schedulers:
            scheduler_.given = scheduler_.given or scheduler_.scheduler() is scheduler

    def begin_loader(self, iterator: Any, loader: Any, before: torch.Tensor) -> None:
        """An epoch begins; what this drew from torch's generator was for its workers alone."""
        self._generators.pass_over(before, torch.get_rng_state())
        self.loaders.begin(iterator, loader)

    def note_save(self, target: object, frame: FrameType, step: int, *, in_place: bool) -> None:
        """Remember how far the training was when it saved to this place last.

        `in_place`: what lay there before was written over.
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
            # a file that lay there before the training is none of its own
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
        """What is reported of this process; schedulers only of optimizers that stepped.

        `lines_of` finds the lines that draw from these generators.
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
        # a run that is not observed does not know its generators
        return states if self._known and self._generators.states else None

    def _outer_schedulers(self, optimizers: list[Optimizer]) -> list[Scheduler]:
        """Those that are alive, and that no other one steps for the script."""
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


class Noting:
    """The context of `CarriedState.noting`."""

    __slots__ = ("_carried",)

    def __init__(self, carried: CarriedState) -> None:
        self._carried = carried

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: object
    ) -> bool:
        """Give up on an `Exception`; anything else ends the program as it would without."""
        if isinstance(error, Exception):
            self._carried.give_up()
            return True
        return False


Carried = Callable[[], CarriedState | None]
Write = Callable[[Any], None]
# writes to a target for the script, whose frame it is given
Save = Callable[[Write, Any, FrameType], None]


def install(carried: Carried, step: Callable[[], int], save_by: Callable[[], Save | None]) -> None:
    """Note from now on what is made, iterated over and saved; `carried` gives this process's.

    `save_by` gives what saves in torch's place, None in almost every run.
    """
    _hook_schedulers(carried)
    _hook_loaders(carried)
    _hook_saving(carried, step, save_by)


def _hook_schedulers(carried: Carried) -> None:
    # not around `__init__`: each class has one of its own, and some call no other
    def new(kind: type[LRScheduler], *args: Any, **kwargs: Any) -> LRScheduler:
        scheduler: LRScheduler = object.__new__(kind)
        state = carried()
        # a copy is made without arguments
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
    """Whether the call says where the schedule begins; a library's own -1 says nothing."""
    bound = inspect.signature(kind).bind(*args, **kwargs).arguments
    if "last_epoch" not in bound:
        return False
    return bound["last_epoch"] != -1 or users_frame(frame, frozenset()) is not None


def _hook_steps_of(kind: Any, carried: Carried) -> None:
    plain_step: Any = kind.step

    @functools.wraps(plain_step)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        # the last argument of each is the epoch; a plateau's metric is none
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
                in_place = before is not None and before == _file_at(f)
                state.note_save(f, calling_frame(1), step(), in_place=in_place)

    hooked: Any = unseen_by_warnings(save)
    torch.save = torch.serialization.save = hooked


def _file_at(target: object) -> tuple[int, int] | None:
    """Which file a path leads to; None where there is none, or the target is no path."""
    if not isinstance(target, str | os.PathLike):
        return None
    try:
        status = os.stat(target)  # noqa: PTH116 - a script may give bytes in its path
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
