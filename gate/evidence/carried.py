"""Decide what the script's checkpoint lacks for an exact resume of this training.

The harness reports what the training used. This module decides which parts a resume needs, and
finds them in the checkpoint alone. The result is advice; no verdict depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gate.checkpoint.completeness import Contents, Need, Part, lacks
from gate.evidence.observations import (
    MAX_LACK_WORDS,
    MAX_LACKS,
    Carried,
    CheckpointLack,
    LoaderPlace,
    Override,
    OverrideKind,
    Resumability,
    SavedAt,
    SeedScope,
)
from gate.text.untrusted_text import plain_text

RANDOM: Final[dict[str, Part]] = {
    "torch": Part.TORCH,
    "cuda": Part.CUDA,
    "numpy": Part.NUMPY,
    "python": Part.PYTHON,
}
# the generators that a seeding function sets, by the beginning of its name
SEEDS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("random.", ("python",)),
    ("numpy.", ("numpy",)),
    ("torch.cuda.", ("cuda",)),
    ("torch.", ("torch", "cuda")),
)
KEPT: Final = re.compile(r"state/optimizer/([0-9]+/state/[0-9]+)/([^/\[{<]+)")
MODEL_OR_AVERAGE: Final = "model or the average of its weights"
SCALER, AVERAGE = "state/scaler/", "state/average/"


def resumability(
    contents: Contents,
    checkpoint: str,
    carried: Mapping[int, Carried | None],
    captured: Iterable[str],
    overrides: Iterable[Override],
) -> Resumability:
    """Return what the checkpoint of the settings lacks, compared with what the ranks used.

    `captured` are the names of rank 0's state as the harness captured it.
    """
    known = {rank: rank_state for rank, rank_state in carried.items() if rank_state is not None}
    saved = _saved_at(known.get(0), checkpoint)
    needs = _needs(known, tuple(captured), tuple(overrides), saved, ranks=len(carried))
    lacking = lacks(contents, needs)
    model_alone = set(contents.places) <= {Part.MODEL, Part.AVERAGE}
    return Resumability(
        lacks=tuple(
            CheckpointLack(
                part=lack.part.value,
                # plain tensors may be either
                what=MODEL_OR_AVERAGE
                if model_alone and lack.part is Part.AVERAGE
                else _words(lack.what),
                known=lack.known,
                why=_words(lack.why),
                file=lack.file,
                line=lack.line,
            )
            for lack in lacking[:MAX_LACKS]
        ),
        model_alone=model_alone,
        overwritten=saved is not None and _overwritten(known[0], saved),
        file="" if saved is None else plain_text(saved.file)[:200],
        line=0 if saved is None else saved.line,
    )


def _words(text: str) -> str:
    return plain_text(text)[:MAX_LACK_WORDS]


def _needs(
    carried: Mapping[int, Carried],
    captured: tuple[str, ...],
    overrides: tuple[Override, ...],
    saved: SavedAt | None,
    *,
    ranks: int,
) -> Iterator[Need]:
    first = carried.get(0)
    schedulers = () if first is None else first.schedulers
    yield Need(part=Part.MODEL)
    slots = _slots(captured, every=ranks == 1)
    # plain SGD with a constant rate keeps no state
    if slots or schedulers:
        yield Need(part=Part.OPTIMIZER, slots=slots)
    moving = [scheduler for scheduler in schedulers if not scheduler.given]
    if moving:
        yield Need(
            part=Part.SCHEDULER,
            count=len(moving),
            why=f"{plain_text(moving[0].kind)} sets the rate",
            file=plain_text(moving[0].file)[:200],
            line=moving[0].line,
        )
    if any(name.startswith(SCALER) for name in captured):
        yield Need(part=Part.SCALER)
    if any(name.startswith(AVERAGE) for name in captured):
        yield Need(part=Part.AVERAGE)
    yield Need(part=Part.PROGRESS)
    seeded = frozenset(_seeded_again(overrides))
    yield from _random(carried, seeded, every=len(carried) == ranks)
    if first is not None and first.own_generator:
        yield Need(part=Part.LOADER_RANDOM, why="it draws the order of the next epoch")
    if saved is not None and saved.loader is not None:
        yield _position(saved, saved.loader, seeded)


def _slots(captured: Iterable[str], *, every: bool) -> dict[str, int]:
    """Return the keys that the optimizers keep, and for how many parameters.

    Without `every` the count is 1: a rank of several may have only shards, which cannot be counted.
    """
    kept: dict[str, set[str]] = {}
    for match in filter(None, map(KEPT.match, captured)):
        kept.setdefault(match[2], set()).add(match[1])
    return {slot: len(places) if every else 1 for slot, places in sorted(kept.items())}


def _random(
    carried: Mapping[int, Carried], seeded: frozenset[str], *, every: bool
) -> Iterator[Need]:
    for name, part in RANDOM.items():
        states = {
            rank_state.states.get(name, "")
            for rank_state in carried.values()
            if name in rank_state.drawn
        }
        if states and name not in seeded:
            # Ranks with equal states can all resume from one saved state. If some rank reported
            # nothing, only one state is known to be needed.
            count, owner = len(states) if every else 1, "rank"
            devices = max(rank_state.devices_drawn for rank_state in carried.values())
            if part is Part.CUDA and devices > count:
                count, owner = devices, "device"
            why = f"each {owner} draws numbers of its own" if count > 1 else "it is drawn from"
            lines = (rank_state.lines.get(name) for rank_state in carried.values())  # type: ignore[call-overload]
            line = next(filter(None, lines), None)
            yield Need(
                part=part,
                count=count,
                owner=owner,
                why=why,
                file="" if line is None else plain_text(line.file)[:200],
                line=0 if line is None else line.line,
            )


def _position(saved: SavedAt, loader: LoaderPlace, seeded: frozenset[str]) -> Need:
    of = f" of {loader.length:,}" if loader.length else ""
    drawn = loader.order in {"torch", "own"}
    again = loader.reseeded or loader.epoch == 1 or (loader.order == "torch" and "torch" in seeded)
    # A generator's state in the middle of an epoch cannot redraw the order of that epoch. A counter
    # is then not enough, unless the script seeds the generator, so that a resumed run draws the
    # order again.
    numbers = {saved.step, loader.batches} if again or not drawn else set[int]()
    return Need(
        part=Part.LOADER,
        numbers=frozenset(numbers),
        why=f"it was saved after batch {loader.batches:,}{of} of an epoch",
    )


def _seeded_again(overrides: Iterable[Override]) -> Iterator[str]:
    """Yield the generators that the script seeds again during the training.

    A resumed run seeds them again too, so their saved state would soon be overwritten.
    """
    for override in overrides:
        again = override.kind is OverrideKind.RESEED and override.scope is not SeedScope.PRIVATE
        if again and override.step > 1 and not override.importing:
            yield from next(
                (names for start, names in SEEDS if override.name.startswith(start)), ()
            )


def _overwritten(carried: Carried, saved: SavedAt) -> bool:
    """Return whether a kill inside the save could leave no complete checkpoint.

    A script that alternates between several files still has the older one.
    """
    place = saved.file, saved.line
    same = [save for save in carried.saves if (save.file, save.line) == place]
    return saved.in_place and len(same) == 1


def _saved_at(carried: Carried | None, checkpoint: str) -> SavedAt | None:
    """Return the save that left the checkpoint, the last one if several may have.

    A save without a path went to an object in memory, which the script may have written itself.
    """
    if carried is None:
        return None
    inside = f"/{checkpoint.strip('/')}"
    own = [
        save
        for save in carried.saves
        # a temporary file that is renamed afterwards has the checkpoint's name as a part of its own
        if inside in f"/{save.path}" or not save.path
    ]
    return max(own, key=lambda boundary: boundary.step, default=None)
