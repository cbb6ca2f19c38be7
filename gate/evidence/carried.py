"""What a training goes on from, and what the checkpoint of its settings lacks of it.

The harness tells what was used; which of it a resume needs is decided here, by parts of the
checkpoint alone. Nothing of a verdict rests on it: it is advice.
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
# which generators a seeding function sets
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
    """What the checkpoint of the settings lacks of what the ranks used.

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
    # a plain gradient step with a constant rate keeps nothing
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
    """What the optimizers keep, and for how many parameters; shards are not counted."""
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
            # ranks that draw alike can go on from one state
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
    # the order of this epoch cannot be drawn again from a state in its middle
    numbers = {saved.step, loader.batches} if again or not drawn else set[int]()
    return Need(
        part=Part.LOADER,
        numbers=frozenset(numbers),
        why=f"it was saved after batch {loader.batches:,}{of} of an epoch",
    )


def _seeded_again(overrides: Iterable[Override]) -> Iterator[str]:
    """Generators that the script seeds on its way: where they are decides nothing for long."""
    for override in overrides:
        again = override.kind is OverrideKind.RESEED and override.scope is not SeedScope.PRIVATE
        if again and override.step > 1 and not override.importing:
            yield from next(
                (names for start, names in SEEDS if override.name.startswith(start)), ()
            )


def _overwritten(carried: Carried, saved: SavedAt) -> bool:
    """Whether a kill inside the save leaves nothing; files in turn leave the older one."""
    place = saved.file, saved.line
    same = [save for save in carried.saves if (save.file, save.line) == place]
    return saved.in_place and len(same) == 1


def _saved_at(carried: Carried | None, checkpoint: str) -> SavedAt | None:
    """The save that left the checkpoint; of what went through memory the last one."""
    if carried is None:
        return None
    inside = f"/{checkpoint.strip('/')}"
    own = [
        save
        for save in carried.saves
        # a file beside it that is renamed has its name and more
        if inside in f"/{save.path}" or not save.path
    ]
    return max(own, key=lambda boundary: boundary.step, default=None)
