"""Which parts of a training a checkpoint holds, and what an exact resume of it would lack.

A part is known by its shape before its name, since a script calls it what it likes: an optimizer
has `param_groups`, a scheduler `last_epoch` beside a counter of calls, a GradScaler a
`growth_factor`. The random state of torch is 5,056 bytes on the CPU and 16 on a GPU, that of Python
625 integers behind a version, that of NumPy the name of its bit generator.

What a training needs is asked of its own run (`Need`); of a file alone only what every training
needs, and what the file itself shows that there was. Whatever cannot be told is never missing.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Final

from gate.checkpoint.leaves import RAW_DTYPE, Leaf, StateContent, TensorLeaf, ValueLeaf
from gate.checkpoint.parts import (
    KEYS,
    MODEL,
    MODEL_WORDS,
    OPTIMIZER,
    RANDOM,
    SETTINGS_WORDS,
    WORDS,
    part_of,
)


class Part(StrEnum):
    """What a training has that goes on from one step to the next, as a report calls it."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    SCALER = "GradScaler"
    AVERAGE = "average of the weights"
    PROGRESS = "step or epoch"
    TORCH = "random state of torch"
    CUDA = "random state of CUDA"
    NUMPY = "random state of NumPy"
    PYTHON = "random state of Python"
    LOADER = "position of the DataLoader"
    LOADER_RANDOM = "random state of the DataLoader's generator"


RANDOM_PARTS: Final = frozenset(
    (Part.TORCH, Part.CUDA, Part.NUMPY, Part.PYTHON, Part.LOADER_RANDOM)
)
# What every training has; what else there may be, only the run knows.
ALWAYS: Final = (Part.MODEL, Part.OPTIMIZER, Part.PROGRESS, Part.TORCH)
MAX_PLACES: Final = 5

# torch.get_rng_state(), and the same of releases before 1.0
TORCH_BYTES: Final = frozenset((5056, 5048))
# torch.cuda.get_rng_state(): seed and offset
CUDA_BYTES: Final = 16
PYTHON_INTEGERS: Final = 625
NUMPY_GENERATORS: Final = frozenset((b"MT19937", b"PCG64", b"PCG64DXSM", b"Philox", b"SFC64"))
FLOATS: Final = frozenset(("F16", "BF16", "F32", "F64", "F8_E5M2", "F8_E4M3", "C64", "C128"))
INTEGERS: Final = frozenset(("I64", "I32", "I16", "U8", "U32", "U64"))
COUNTED_BITS: Final = 63

AVERAGE_WORDS: Final = frozenset({
    "average", "averaged", "averaging", "avg", "ema", "shadow", "swa",
})  # fmt: skip
PROGRESS_WORDS: Final = frozenset({
    "batches", "epoch", "epochs", "it", "iter", "iters", "iteration", "iterations", "step", "steps",
    "update", "updates",
})  # fmt: skip
# `max_steps` is how far it is meant to go, `save_every_steps` is no counter either
LIMIT_WORDS: Final = frozenset({
    "best", "decay", "eval", "every", "interval", "limit", "log", "logging", "max", "patience",
    "per", "save", "size", "target", "warmup",
})  # fmt: skip
LOADER_WORDS: Final = frozenset({
    "batch", "batches", "consumed", "cursor", "dataloader", "dataloaders", "dl", "idx", "index",
    "indices", "loader", "loaders", "offset", "order", "perm", "permutation", "position", "sampler",
    "samplers", "samples", "seen", "yielded",
})  # fmt: skip
GENERATOR_WORDS: Final = frozenset(("dataloader", "generator", "loader", "sampler", "shuffle"))
# Beside a state lie texts of a tokenizer and of a card, which no training goes on from.
TEXT_SUFFIXES: Final = frozenset({
    ".csv", ".html", ".jinja", ".log", ".md", ".model", ".png", ".py", ".txt", ".yaml", ".yml",
})  # fmt: skip
LAST_KEY: Final = re.compile(r"/([^/\[{<]*)(?:[\[{<][^/]*)?\Z")
POSITION: Final = re.compile(r"(?P<above>.*)\[1\]\[(?P<position>[0-9]{1,3})\]\Z", re.DOTALL)
IN_A_STATE: Final = re.compile(r"/state(\{[^}]*\})/([^/\[{<]*)")
RANK_OF_FILE: Final = re.compile(r"(?:^|/)(?:rng_state|random_states)_([0-9]{1,6})(?=/|\[|\Z)")
NUMBER: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What was recognised: `places` are paths by part, each the outermost that holds the part.

    `slots` counts what an optimizer keeps for a parameter, by its key, such as that of a moment;
    `numbered` says that parameters stand there by number, as every torch optimizer saves them.
    `due` are keys that the groups' own settings ask for, `scheduled` that a scheduler has set
    their rate. `numbers` are all counters; `unread` are files of unknown content, `odd` places of
    a random or an optimizer's state of an unknown shape.
    """

    places: Mapping[Part, tuple[str, ...]]
    slots: Mapping[str, int] = field(default_factory=dict)
    numbered: bool = False
    due: frozenset[str] = frozenset()
    scheduled: bool = False
    numbers: frozenset[int] = frozenset()
    ranks: frozenset[int] = frozenset()
    unread: tuple[str, ...] = ()
    odd: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of(self, part: Part) -> tuple[str, ...]:
        """Where it is; empty where it is not."""
        return self.places.get(part, ())


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """A part that this training needs: how many of it, and what is known of its use.

    `owner` is what each of several belongs to.
    `slots` are what the run's optimizers kept, as in `Contents`. A position may also be known from
    one of the `numbers`. `why` says what uses it, as a clause; `file` and `line` are the line.
    """

    part: Part
    count: int = 1
    owner: str = "rank"
    slots: Mapping[str, int] = field(default_factory=dict)
    numbers: frozenset[int] = frozenset()
    why: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lack:
    """A part that is not there, or of which that is not `known`; `what` is the part as a text."""

    part: Part
    what: str
    known: bool = True
    why: str = ""
    file: str = ""
    line: int = 0


class _Sorting:
    """All that is found on one walk over the leaves."""

    def __init__(self) -> None:
        self.places: dict[Part, dict[str, None]] = {part: {} for part in Part}
        self.slots: dict[str, set[str]] = {}
        self.numbered = False
        self.groups: dict[str, None] = {}
        self.group_settings: dict[str, float] = {}
        self.numbers: set[int] = set()
        self.ranks: set[int] = set()
        self.unread: list[str] = []
        self.odd: dict[str, dict[str, None]] = {RANDOM: {}, OPTIMIZER: {}}
        # of a mapping: the telling keys that are in it
        self._keys: dict[str, set[str]] = {}
        self._integers: Counter[str] = Counter()

    def take(self, leaf: Leaf) -> None:
        if isinstance(leaf, TensorLeaf):
            self._tensor(leaf)
        else:
            self._value(leaf)

    def _tensor(self, leaf: TensorLeaf) -> None:
        path, dtype, shape, _ = leaf
        if dtype == RAW_DTYPE:
            if not _is_text(path):
                self.unread.append(path)
            return
        part = part_of(path, dtype, tensor=True)
        if dtype == "U8" and len(shape) == 1 and self._random_bytes(path, part, shape[0]):
            return
        if part == OPTIMIZER:
            self._of_optimizer(leaf)
        elif _words(path) & AVERAGE_WORDS or _has_key(path, "n_averaged"):
            self._add(Part.AVERAGE, _outermost(path, AVERAGE_WORDS))
        elif part == MODEL:
            self._of_model(leaf)
        elif part == RANDOM:
            self._of_random(leaf)
        else:
            self._other(leaf, leaf.path)

    def _random_bytes(self, path: str, part: str, size: int) -> bool:
        if size in TORCH_BYTES:
            words = _words(path)
            self._add(Part.LOADER_RANDOM if words & GENERATOR_WORDS else Part.TORCH, path)
            return True
        # a parameter's name has a dot
        if size == CUDA_BYTES and part != OPTIMIZER and "." not in _last(path):
            self._add(Part.CUDA, path)
            return True
        return False

    def _of_optimizer(self, leaf: Leaf) -> None:
        path = leaf.path
        key = _last(path)
        if "/param_groups" in path:
            self.groups.setdefault(path.partition("/param_groups")[0], None)
            number = _number(leaf)
            # a tensor as a rate is no number to look at
            self.group_settings[key] = max(number or 0.0, self.group_settings.get(key, 0.0))
            return
        if isinstance(leaf, ValueLeaf) and leaf.kind.startswith("empty"):
            return
        self._add(Part.OPTIMIZER, _until(path, ("/state{", "/state/")) or _first_keys(path))
        numbered = IN_A_STATE.search(path)
        if numbered is not None:
            self.numbered = True
            self.slots.setdefault(numbered[2], set()).add(path[: numbered.end(1)])
        else:
            # by the parameter's name, as one key or as several
            below = KEYS.findall(path.partition("/state")[2] or path)
            for slot in {key.rpartition(".")[2], *below}:
                self.slots.setdefault(slot, set()).add(path)
        if key.rpartition(".")[2] == "step":
            self._count(leaf)

    def _of_model(self, leaf: TensorLeaf) -> None:
        words = _words(leaf.path)
        plain = "." not in _last(leaf.path)
        if leaf.dtype in INTEGERS and plain and words & LOADER_WORDS and not words & MODEL_WORDS:
            # an order of samples that stands by itself: no key above says what it is
            self._add(Part.LOADER, leaf.path)
        elif (
            leaf.dtype in INTEGERS
            and plain
            and words & PROGRESS_WORDS
            and _number(leaf) is not None
        ):
            self._other(leaf, leaf.path)
        elif leaf.dtype in FLOATS:
            self._add(Part.MODEL, _first_keys(leaf.path))

    def _of_random(self, leaf: Leaf) -> None:
        # the number that a generator was seeded with is not where it has come to
        if isinstance(leaf, TensorLeaf) or leaf.kind in {"bytes", "object"}:
            self.odd[RANDOM][leaf.path] = None

    def _value(self, leaf: ValueLeaf) -> None:
        path, kind, data = leaf
        if kind == "int" and path.endswith("]"):
            match = POSITION.fullmatch(path)
            if match is not None:
                self._integers[match["above"]] += 1
                return
        if kind == "text" and data in NUMPY_GENERATORS:
            self._add(Part.NUMPY, path.removesuffix("[0]").removesuffix("/bit_generator"))
            return
        part = part_of(path, kind, tensor=False)
        if part == OPTIMIZER:
            self._of_optimizer(leaf)
            return
        if part == RANDOM:
            self._of_random(leaf)
        self._other(leaf, path)

    def _other(self, leaf: Leaf, path: str) -> None:
        """What neighbouring keys and counters show."""
        above, _, last = path.rpartition("/")
        key = LAST_KEY.search(path)
        if key is None:
            return
        if key[1] in _TELLING:
            self._keys.setdefault(above, set()).add(key[1])
        words = _words_of(key[1])
        every = _words(path)
        if every & SETTINGS_WORDS:
            return
        if every & LOADER_WORDS and not words & LIMIT_WORDS:
            self._add(Part.LOADER, _outermost(path, LOADER_WORDS))
        if last == key[1]:
            self._count(leaf)
            if words & PROGRESS_WORDS and not words & LIMIT_WORDS and _number(leaf) is not None:
                self._add(Part.PROGRESS, path)
        if every & AVERAGE_WORDS and isinstance(leaf, TensorLeaf):
            self._add(Part.AVERAGE, _outermost(path, AVERAGE_WORDS))

    def _count(self, leaf: Leaf) -> None:
        number = _number(leaf)
        # Adam's count of steps is a tensor of floats
        whole = isinstance(leaf, TensorLeaf) or leaf.kind == "int"
        if whole and number is not None and number == int(number) >= 0:
            self.numbers.add(int(number))

    def _add(self, part: Part, place: str) -> None:
        self.places[part].setdefault(place, None)

    def end(self, name: str) -> Contents:
        """What the parts are that only all leaves together tell."""
        for place, keys in self._keys.items():
            # those inside a chain of schedulers are the chain's
            if "last_epoch" in keys and len(keys) > 1 and "/_schedulers[" not in place:
                self._add(Part.SCHEDULER, place)
            if "growth_factor" in keys and "scale" in keys:
                self._add(Part.SCALER, place)
        for place, count in self._integers.items():
            if count == PYTHON_INTEGERS:
                self._add(Part.PYTHON, place)
        if not self.slots and self.groups:
            for place in self.groups:
                self._add(Part.OPTIMIZER, place)
        if self.slots and not self.groups and not _KNOWN_SLOTS & set(self.slots):
            self.odd[OPTIMIZER] |= self.places[Part.OPTIMIZER]
        known = tuple(
            f"{place}{below}"
            for part in (Part.NUMPY, Part.PYTHON)
            for place in self.places[part]
            for below in "[/"
        )
        for place in [path for path in self.odd[RANDOM] if known and path.startswith(known)]:
            del self.odd[RANDOM][place]
        self._derive_progress(name)
        self.ranks.update(
            int(match[1])
            for part in RANDOM_PARTS
            for place in self.places[part]
            for match in [RANK_OF_FILE.search(place)]
            if match
        )
        return Contents(
            places={part: tuple(places) for part, places in self.places.items() if places},
            slots={slot: len(places) for slot, places in self.slots.items()},
            numbered=self.numbered,
            due=frozenset(_due(self.group_settings)),
            scheduled="initial_lr" in self.group_settings,
            numbers=frozenset(self.numbers),
            ranks=frozenset(self.ranks),
            unread=tuple(self.unread),
            odd={part: tuple(places) for part, places in self.odd.items() if places},
        )

    def _derive_progress(self, name: str) -> None:
        """A count of steps is one wherever it stands: in Adam, in a scheduler, in a file's name."""
        self.numbers.update(map(int, NUMBER.findall(name)))
        if self.places[Part.PROGRESS]:
            return
        for place in self.places[Part.SCHEDULER]:
            self._add(Part.PROGRESS, f"{place}/last_epoch")
        if self.slots.get("step"):
            self._add(Part.PROGRESS, next(iter(self.places[Part.OPTIMIZER]), "") + "/state")
        if NUMBER.search(name):
            self._add(Part.PROGRESS, name)


_TELLING: Final = frozenset({
    "_last_lr", "_step_count", "base_lrs", "growth_factor", "last_epoch", "num_bad_epochs", "scale",
})  # fmt: skip
_KNOWN_SLOTS: Final = frozenset({
    "acc_delta", "exp_avg", "exp_avg_sq", "exp_avg_sq_col", "exp_avg_sq_row", "exp_inf", "grad_avg",
    "max_exp_avg_sq", "momentum_buffer", "square_avg", "state1", "state2", "step", "sum",
})  # fmt: skip


def _due(settings: Mapping[str, float]) -> Iterable[str]:
    """What an optimizer with these settings keeps for each parameter once it has stepped."""
    if settings.get("momentum", 0.0) > 0:
        yield "momentum_buffer"
    if "betas" in settings:
        yield "exp_avg"


def _number(leaf: Leaf) -> float | None:
    if isinstance(leaf, ValueLeaf):
        if leaf.kind == "int" and len(leaf.data) <= (COUNTED_BITS + 8) // 8:
            return int.from_bytes(leaf.data, "little", signed=True)
        return _float(leaf.data, "F64") if leaf.kind == "float" else None
    if leaf.shape not in {(), (1,)}:
        return None
    data = b"".join(bytes(piece) for piece in leaf.source.pieces(16))
    if leaf.dtype in INTEGERS:
        return int.from_bytes(data, "little", signed=leaf.dtype.startswith("I"))
    return _float(data, leaf.dtype) if leaf.dtype in {"F32", "F64"} else None


def _float(data: bytes, dtype: str) -> float | None:
    value: float = struct.unpack("<f" if dtype == "F32" else "<d", data)[0]
    return value if math.isfinite(value) else None


def _last(path: str) -> str:
    match = LAST_KEY.search(path)
    return match[1] if match is not None else ""


@lru_cache(maxsize=4096)
def _words_of(key: str) -> frozenset[str]:
    return frozenset(word.lower() for word in WORDS.findall(key))


def _words(path: str) -> frozenset[str]:
    """The words of all keys; a parameter's name, which has dots, is passed over."""
    keys = (key for key in KEYS.findall(path) if "." not in key)
    return frozenset[str]().union(*map(_words_of, keys))


def _has_key(path: str, key: str) -> bool:
    return path.endswith(f"/{key}")


def _outermost(path: str, words: frozenset[str]) -> str:
    """The path down to the first key with one of the words."""
    for match in KEYS.finditer(path):
        if _words_of(match[1]) & words:
            return path[: match.end()]
    return path


def _first_keys(path: str) -> str:
    """What a part is shown as: the keys above a parameter's own name."""
    above, _, last = path.rpartition("/")
    return above if "." in last or above else path


def _until(path: str, marks: tuple[str, ...]) -> str:
    places = [place for mark in marks if (place := path.find(mark)) > 0]
    return path[: min(places)] if places else ""


def _is_text(path: str) -> bool:
    name = PurePosixPath(path)
    return name.suffix in TEXT_SUFFIXES or any(
        word in path for word in ("tokenizer", "tfevents", "vocab", "merges", "LICENSE", "README")
    )


def contents_of(content: StateContent) -> Contents:
    """What a checkpoint holds; raises `EvidenceError` where a counter's bytes cannot be read."""
    sorting = _Sorting()
    for leaf in content.leaves:
        sorting.take(leaf)
    return sorting.end(PurePosixPath(content.shown).name)


def needs_of_file(contents: Contents) -> tuple[Need, ...]:
    """What any training needs, and what a file shows by itself that there was."""
    needs = [Need(part=part) for part in ALWAYS]
    if contents.due:
        asked = dict.fromkeys(sorted(contents.due), 1)
        needs[ALWAYS.index(Part.OPTIMIZER)] = Need(part=Part.OPTIMIZER, slots=asked)
    if contents.scheduled:
        why = "the optimizer's groups have an initial_lr, which only a scheduler writes"
        needs.append(Need(part=Part.SCHEDULER, why=why))
    absent = sorted(set(range(max(contents.ranks, default=0) + 1)) - contents.ranks)
    if contents.ranks and absent:
        count = max(contents.ranks) + 1
        needs = [replace(need, count=count) if need.part is Part.TORCH else need for need in needs]
    return tuple(needs)


def lacks(contents: Contents, needs: Iterable[Need]) -> tuple[Lack, ...]:
    """What of the needs is not met, in their order; what cannot be told says so."""
    every = tuple(needs)
    counts = Counter({need.part: need.count for need in every})
    if any(need.part is Part.LOADER and not need.numbers for need in every):
        # a state of torch's generator that bears the loader's name is where its order began
        counts[Part.LOADER_RANDOM] += 1
    return tuple(lack for need in every for lack in _lacks_of(contents, need, counts))


def _lacks_of(contents: Contents, need: Need, counts: Counter[Part]) -> Iterator[Lack]:
    part = need.part
    saved = len(contents.of(part))
    if part is Part.OPTIMIZER and saved:
        yield from _slots_lacking(contents, need)
        return
    if part is Part.LOADER and need.numbers & contents.numbers:
        return
    if part is Part.LOADER and not need.numbers:
        # one more state of a generator may be that of the epoch's beginning
        states = (Part.TORCH, Part.LOADER_RANDOM)
        saved += sum(len(contents.of(state)) - counts[state] for state in states) >= 0
    for left, right in ((Part.LOADER_RANDOM, Part.TORCH), (Part.TORCH, Part.LOADER_RANDOM)):
        if part is left:
            # they have one shape: what is more than the other needs may be this one
            saved += max(0, len(contents.of(right)) - counts[right])
    if saved >= need.count:
        return
    what = part.value
    if saved:
        ranks = sorted(set(range(need.count)) - contents.ranks) if contents.ranks else []
        owners = f" {need.owner}s" if part in RANDOM_PARTS else ""
        of = f"{need.count - saved} of {need.count}{owners}"
        of = f"rank {ranks[0]}" if len(ranks) == 1 else of
        what = f"{what} ({of})"
    yield _lack(contents, need, what)


def _slots_lacking(contents: Contents, need: Need) -> Iterator[Lack]:
    """Moments that the optimizers keep and the checkpoint has none of, or of fewer parameters."""
    if OPTIMIZER in contents.odd:
        return
    none = [slot for slot in need.slots if not contents.slots.get(slot)]
    if none:
        yield _lack(contents, need, f"{need.part.value}'s {' and '.join(none)}")
        return
    if not contents.numbered:
        # one entry may hold the parts of many parameters
        return
    fewer = [
        (slot, contents.slots[slot], count)
        for slot, count in need.slots.items()
        if contents.slots[slot] < count
    ]
    if fewer:
        slot, saved, count = fewer[0]
        what = f"{need.part.value}'s {slot} of {count - saved} of {count} parameters"
        yield _lack(contents, need, what)


def _lack(contents: Contents, need: Need, what: str) -> Lack:
    """Nothing is missing that may be in a file, or in a value, of an unknown shape."""
    hidden: tuple[str, ...] = contents.unread
    if need.part in RANDOM_PARTS:
        hidden += contents.odd.get(RANDOM, ())
    why = f"{hidden[0]} has an unknown form" if hidden else need.why
    return Lack(
        part=need.part, what=what, known=not hidden, why=why, file=need.file, line=need.line
    )


class State(StrEnum):
    """What is known of a part of a file that is looked at alone."""

    SAVED = "saved"
    MISSING = "missing"
    UNKNOWN = "unknown"
    # whether a training has a scaler, or draws from NumPy, a file without it cannot say
    ABSENT = "not saved"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A part, what is known of it, where it is, and what else is to be said."""

    part: Part
    state: State
    places: tuple[str, ...] = ()
    note: str = ""


def review(contents: Contents) -> tuple[Row, ...]:
    """Every part of a file that is looked at alone, in the order of `Part`."""
    known_lacks = {lack.part: lack for lack in lacks(contents, needs_of_file(contents))}
    return tuple(_row(contents, part, known_lacks.get(part)) for part in Part)


def _row(contents: Contents, part: Part, lack: Lack | None) -> Row:
    places = contents.of(part)
    shown = places[:MAX_PLACES]
    if lack is not None:
        state = State.MISSING if lack.known else State.UNKNOWN
        note = "; ".join(filter(None, (lack.what if lack.what != part else "", lack.why)))
        return Row(part=part, state=state, places=shown, note=note)
    if places:
        return Row(part=part, state=State.SAVED, places=shown)
    return Row(part=part, state=State.ABSENT, note="needed if the training uses it")
