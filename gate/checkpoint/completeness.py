"""Find which parts of a training a checkpoint contains, and what an exact resume would lack.

A part is recognised by its shape first and by its name second, because scripts choose the names. An
optimizer has `param_groups`. A scheduler has `last_epoch` beside a counter of calls. A GradScaler
has a `growth_factor`. The random state of torch is 5,056 bytes on the CPU and 16 on a GPU. Python's
is 625 integers after a version. NumPy's contains the name of its bit generator.

What a training needs is known from its own run (`Need`). A file that is looked at alone only shows
what every training needs, and what the file itself proves to have existed. A part is never reported
as missing if that is uncertain.
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
from gate.text.phrases import joined


class Part(StrEnum):
    """A part of a training's state that carries over to the next step, as reports call it."""

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
# every training has these parts; only its run shows which others it has
ALWAYS: Final = (Part.MODEL, Part.OPTIMIZER, Part.PROGRESS, Part.TORCH)
MAX_PLACES: Final = 5

# sizes of torch.get_rng_state(); torch before 1.0 had the second one
TORCH_BYTES: Final = frozenset((5056, 5048))
# size of torch.cuda.get_rng_state(): seed and offset
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
# Words that show a limit or an interval: `max_steps` and `save_every_steps` are no counters.
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
# Tokenizer files and model cards are saved beside a state, and no training resumes from them.
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
    """The parts that were recognised in a checkpoint.

    `places` maps a part to its paths, each of them the outermost path that contains the part.
    `slots` maps a key of an optimizer's state, such as the key of a moment, to the number of
    parameters that have it. `numbered` is true if the optimizer's state is stored by parameter
    number, as torch optimizers save it. `due` are keys that the settings of the optimizer's groups
    require. `scheduled` is true if a scheduler has set the learning rate of a group. `numbers` are
    the values of all counters. `ranks` are the ranks that file names mention.

    `unread` are files of unknown content. `odd` maps a part to places of an unknown shape, for
    random states and optimizers. Either may hide a part that seems to be missing.
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
        """Return the places of a part, or an empty tuple if it was not found."""
        return self.places.get(part, ())


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """A part that this training needs, and how many of it.

    `owner` names what each of several belongs to, such as a rank. `slots` are the keys that the
    run's optimizers kept, as in `Contents`. `numbers` apply to a position: the checkpoint has the
    position if it contains one of these counters. `why` is a clause that says what uses the part,
    at `file` and `line`.
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
    """A part that is missing, or that may be missing if `known` is false.

    `what` is the text for a report; it names the part, and how many of it are missing.
    """

    part: Part
    what: str
    known: bool = True
    why: str = ""
    file: str = ""
    line: int = 0


class _Sorting:
    """Collects what is recognised during one walk over the leaves of a checkpoint."""

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
        # path of a mapping -> those of its keys that identify a scheduler or a scaler
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
        # 16 bytes under a key with a dot are a parameter, because names of parameters have dots
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
            # A rate may be a tensor without a readable number; then only its key counts.
            self.group_settings[key] = max(number or 0.0, self.group_settings.get(key, 0.0))
            return
        # the empty state of an optimizer that has not stepped
        if isinstance(leaf, ValueLeaf) and leaf.kind.startswith("empty"):
            return
        self._add(Part.OPTIMIZER, _until(path, ("/state{", "/state/")) or _first_keys(path))
        numbered = IN_A_STATE.search(path)
        if numbered is not None:
            self.numbered = True
            self.slots.setdefault(numbered[2], set()).add(path[: numbered.end(1)])
        else:
            # the state is stored by the parameter's name, which may be one key or several
            below = KEYS.findall(path.partition("/state")[2] or path)
            for slot in {key.rpartition(".")[2], *below}:
                self.slots.setdefault(slot, set()).add(path)
        if key.rpartition(".")[2] == "step":
            self._count(leaf)

    def _of_model(self, leaf: TensorLeaf) -> None:
        words = _words(leaf.path)
        plain = "." not in _last(leaf.path)
        if leaf.dtype in INTEGERS and plain and words & LOADER_WORDS and not words & MODEL_WORDS:
            # Integers under a loader's word, with no key above that says what they are: this is an
            # order of samples, although `part_of` takes any unnamed tensor for the model.
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
        # A seed is a plain number. It says where a generator started, not where it is now.
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
        """Recognise schedulers, scalers, counters, positions and averages by the leaf's key."""
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
        # Adam counts its steps in a float tensor, so a tensor may be of any type
        whole = isinstance(leaf, TensorLeaf) or leaf.kind == "int"
        if whole and number is not None and number == int(number) >= 0:
            self.numbers.add(int(number))

    def _add(self, part: Part, place: str) -> None:
        self.places[part].setdefault(place, None)

    def end(self, name: str) -> Contents:
        """Return the contents, after deciding what only all leaves together can show."""
        for place, keys in self._keys.items():
            # the members of a chained scheduler are part of the chain, and are not counted again
            if "last_epoch" in keys and len(keys) > 1 and "/_schedulers[" not in place:
                self._add(Part.SCHEDULER, place)
            if "growth_factor" in keys and "scale" in keys:
                self._add(Part.SCALER, place)
        for place, count in self._integers.items():
            if count == PYTHON_INTEGERS:
                self._add(Part.PYTHON, place)
        # groups without a state: an optimizer that keeps nothing for its parameters
        if not self.slots and self.groups:
            for place in self.groups:
                self._add(Part.OPTIMIZER, place)
        # Without groups and without a known key, this layout is not understood. No moment may then
        # be reported as missing.
        if self.slots and not self.groups and not _KNOWN_SLOTS & set(self.slots):
            self.odd[OPTIMIZER] |= self.places[Part.OPTIMIZER]
        # a recognised state of NumPy or Python consists of several leaves, and none of them is odd
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
        """Take the count of steps from Adam, a scheduler or the file's name if nothing has it."""
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
    """Yield the keys that an optimizer with these settings keeps for each parameter it updates."""
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
    """Return the words of all keys in a path, except keys with a dot (names of parameters)."""
    keys = (key for key in KEYS.findall(path) if "." not in key)
    return frozenset[str]().union(*map(_words_of, keys))


def _has_key(path: str, key: str) -> bool:
    return path.endswith(f"/{key}")


def _outermost(path: str, words: frozenset[str]) -> str:
    """Return the path down to the first key that contains one of the words."""
    for match in KEYS.finditer(path):
        if _words_of(match[1]) & words:
            return path[: match.end()]
    return path


def _first_keys(path: str) -> str:
    """Return the path without its last key, which is the name of a parameter."""
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
    """Return what a checkpoint contains; raises `EvidenceError` if a counter cannot be read."""
    sorting = _Sorting()
    for leaf in content.leaves:
        sorting.take(leaf)
    return sorting.end(PurePosixPath(content.shown).name)


def needs_of_file(contents: Contents) -> tuple[Need, ...]:
    """Return the parts that every training needs, and those that the file shows to have existed."""
    needs = [Need(part=part) for part in ALWAYS]
    if contents.due:
        asked = dict.fromkeys(sorted(contents.due), 1)
        needs[ALWAYS.index(Part.OPTIMIZER)] = Need(part=Part.OPTIMIZER, slots=asked)
    if contents.scheduled:
        why = "the optimizer's groups have an initial_lr, which only a scheduler writes"
        needs.append(Need(part=Part.SCHEDULER, why=why))
    # file names such as `rng_state_3` show how many ranks saved a state
    absent = sorted(set(range(max(contents.ranks, default=0) + 1)) - contents.ranks)
    if contents.ranks and absent:
        count = max(contents.ranks) + 1
        needs = [replace(need, count=count) if need.part is Part.TORCH else need for need in needs]
    return tuple(needs)


def lacks(contents: Contents, needs: Iterable[Need]) -> tuple[Lack, ...]:
    """Return the needs that the checkpoint does not meet, in the order of the needs.

    A lack that is uncertain has `known` set to False.
    """
    every = tuple(needs)
    counts = Counter({need.part: need.count for need in every})
    if any(need.part is Part.LOADER and not need.numbers for need in every):
        # The position of this loader is not known from a counter. A generator state under the
        # loader's name then restores the start of its order, so one more of these is needed.
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
        # A generator state beyond those that are needed may be the start of this epoch's order.
        states = (Part.TORCH, Part.LOADER_RANDOM)
        saved += sum(len(contents.of(state)) - counts[state] for state in states) >= 0
    for left, right in ((Part.LOADER_RANDOM, Part.TORCH), (Part.TORCH, Part.LOADER_RANDOM)):
        if part is left:
            # Both are states of a torch generator and look the same. What one part has beyond its
            # own need may therefore belong to the other.
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
    """Yield the moments that are missing in the checkpoint, for all parameters or for some."""
    if OPTIMIZER in contents.odd:
        return
    none = [slot for slot in need.slots if not contents.slots.get(slot)]
    if none:
        yield _lack(contents, need, f"{need.part.value}'s {joined(none)}")
        return
    if not contents.numbered:
        # an entry stored by name may contain the state of several parameters, so counts say nothing
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
    """Return the lack, uncertain if a file or value of an unknown shape may contain the part."""
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
    # the file alone cannot show whether the training had this part, such as a scaler
    ABSENT = "not saved"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One part in the review of a file: its state, its places and a note."""

    part: Part
    state: State
    places: tuple[str, ...] = ()
    note: str = ""


def review(contents: Contents) -> tuple[Row, ...]:
    """Return a row for every part, in the order of `Part`, for a file that is looked at alone."""
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
