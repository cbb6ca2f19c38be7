"""Check what a package contains: recompute its states' roots, and compare a model file with them.

Both questions parse checkpoints, which are untrusted bytes. `repro-gate verify` asks the first one
after the seal was verified; a model file that a user names is compared with the sealed state by
`check_model`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from gate.checkpoint.digest import LeafDigest, StateDigest, digest_state, roots_of
from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.formats.formats import open_state
from gate.checkpoint.leaves import RAW_DTYPE, Leaf, ValueLeaf
from gate.checkpoint.parts import (
    DEFAULT_EXCLUSIONS,
    MODEL,
    OPTIMIZER,
    RANDOM,
    Exclusion,
    without_excluded,
)
from gate.checkpoint.tensor_hashing import ALGORITHM
from gate.errors import AttestationError
from gate.evidence.run_evidence import StateName, StateRoots, States
from gate.package.model_signing import Beside, CheckedPart, ModelCheck, PartMatch
from gate.package.open_members import MAX_BYTES
from gate.package.saved_states import PackagedStates, open_package
from gate.system.files.port import Files
from gate.text.untrusted_text import safe_line, short_text

SHOWN: Final = 3
# Kinds of leaves that make a reader import something, with the verb for a message: an object's
# constructor is called, a name is only imported.
OBJECT: Final = "object"
CODE: Final = {OBJECT: "calls", "name": "imports"}
NUMBERS: Final = frozenset(
    ("none", "bool", "int", "float", "empty map", "empty sequence", "empty set")
)
# STEP matches where a step of a leaf's path begins. PART_OF_OBJECT matches a step such as `/~args`,
# which is something that an object is made from.
STEP: Final = re.compile(r"[/\[{<]")
PART_OF_OBJECT: Final = re.compile(r"/~[a-z]")
# What an optimizer keeps for each parameter is below `state`, both in the gate's capture and in
# torch's own state_dict.
KEPT_STATE: Final = re.compile(r"/state(?=[/{])")
NAME: Final = re.compile(r"[A-Za-z_]\w*")
Kept = Counter[tuple[str, bytes]]
OTHER_HINT: Final = "The seal and the package do not belong together; do not use this package."


def check_states(package: Path, states: States, files: Files) -> tuple[StateName, ...]:
    """Recompute the root of each packed state and return the names of these states, in seal order.

    A state that the package does not hold (`member` is empty) is skipped, because nothing can be
    recomputed. Raises `AttestationError` when a root differs from the sealed one, and
    `EvidenceError` when a state cannot be read.
    """
    packed = tuple(state for state in states if state.member)
    with open_package(files, package) as opened:
        for state in packed:
            if state.algorithm != ALGORITHM:
                raise AttestationError(
                    f"the seal names a digest of {safe_line(state.algorithm)}, this version "
                    f"makes {ALGORITHM}",
                    hint="Verify it with the repro-gate version that made it.",
                )
            _check(state, _digested(opened, state))
    return tuple(state.name for state in packed)


def _digested(opened: PackagedStates, state: StateRoots) -> StateDigest:
    if state.name is StateName.CAPTURED:
        # No exclusions: the root of a captured state covers everything that the harness captured.
        return digest_state(opened.captured(), exclusions=(), max_bytes=MAX_BYTES)
    content = opened.saved(state.member)
    return digest_state(content, exclusions=opened.saved_exclusions(), max_bytes=MAX_BYTES)


def _check(state: StateRoots, digested: StateDigest) -> None:
    if (digested.roots.whole, digested.roots.parts) == (state.root, state.parts):
        return
    parts = [name for name, root in digested.roots.parts.items() if state.parts.get(name) != root]
    raise AttestationError(
        f"{safe_line(state.member)} does not hold the {state.name} state that was sealed "
        f"({', '.join(parts) or 'root'} differs)",
        hint=OTHER_HINT,
        details=(f"sealed: {state.root}", f"found:  {digested.roots.whole}"),
    )


def check_model(model: Path, package: Path, files: Files) -> ModelCheck:
    """Compare a model file, or a folder, with the states in a package whose seal was verified.

    Tensors are compared by type, shape and bytes. Their names may be below other keys than in the
    package (`state_dict`, `module.`), provided that all of them share the same prefix. Everything
    else in the file must be in a sealed state at the same place; the result lists what is not.
    Raises `EvidenceError` for a file that cannot be read.
    """
    shown = safe_line(str(model))
    # Without exclusions: an excluded key could hold an object, which runs code when it is loaded.
    with open_state(
        files, model, shown, max_bytes=MAX_BYTES, unknown=UnknownContent.BYTES
    ) as content:
        digested = digest_state(content, exclusions=(), max_bytes=MAX_BYTES)
    with open_package(files, package) as opened:
        sealed = [digest_state(opened.captured(), exclusions=(), max_bytes=MAX_BYTES)]
        rules: Sequence[Exclusion] = DEFAULT_EXCLUSIONS
        if opened.saved_member:
            sealed.append(digest_state(opened.saved(), exclusions=(), max_bytes=MAX_BYTES))
            rules = opened.saved_exclusions()
    beyond, values = _beside(content.leaves, digested, _sealed_leaves(sealed), rules)
    printed = {leaf.path for leaf in without_excluded(content.leaves, DEFAULT_EXCLUSIONS)[0]}
    return ModelCheck(
        shown=shown,
        # the root that `repro-gate digest` prints, which leaves the default exclusions out
        root=roots_of(leaf for leaf in digested.leaves if leaf.path in printed).whole,
        identical=any(state.roots == digested.roots for state in sealed),
        parts=(_model(sealed, digested), _optimizer(sealed, digested)),
        beyond=beyond,
        values=values,
        notes=content.notes,
    )


def _tensors(state: StateDigest, part: str) -> tuple[LeafDigest, ...]:
    return tuple(leaf for leaf in state.leaves if leaf.part == part and leaf.shape is not None)


def _model(sealed: Sequence[StateDigest], digested: StateDigest) -> CheckedPart:
    """Compare the model with the captured and the saved state; return the better match.

    The two may differ legitimately: a script may save an average of its weights, or weights in
    another type.
    """
    own = _named(_tensors(digested, MODEL))
    states = [_named(_tensors(state, MODEL)) for state in sealed]
    # A package need not contain a saved model: without one, only the capture is compared.
    return _best(_compared(MODEL, state, own) for state in (states[0], *filter(None, states[1:])))


def _best(parts: Iterable[CheckedPart]) -> CheckedPart:
    return max(parts, key=lambda part: (part.answer is PartMatch.EQUAL, part.equal))


def _named(leaves: Iterable[LeafDigest]) -> dict[str, LeafDigest]:
    """Map names to leaves; a name is the leaf's path without the prefix that all paths share."""
    paths = {leaf.path: leaf for leaf in leaves}
    if len(paths) == 1:
        # With a single path the shared prefix would be the whole path, so keep its last step.
        return {path.rpartition("/")[2]: leaf for path, leaf in paths.items()}
    # The prefix shared by the first and the last path in sorted order is shared by all of them.
    ends = zip(min(paths, default=""), max(paths, default=""), strict=False)
    common = "".join(end for end, _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    start = max(common.rfind(end) for end in "/.") + 1
    return {path[start:]: leaf for path, leaf in paths.items()}


def _compared(
    name: str, sealed: dict[str, LeafDigest], digested: dict[str, LeafDigest]
) -> CheckedPart:
    if not digested:
        return CheckedPart(name=name, answer=PartMatch.ABSENT, sealed=len(sealed), equal=0)
    own = {key: leaf.digest for key, leaf in digested.items()}
    differing = [key for key, leaf in sealed.items() if own.get(key, leaf.digest) != leaf.digest]
    # A missing tensor counts even if another tensor has its bytes: equal bytes do not prove that
    # two weights are tied.
    missing = sorted(sealed.keys() - digested.keys())
    further = len(digested.keys() - sealed.keys())
    same = not (differing or missing or further) and bool(sealed)
    return CheckedPart(
        name=name,
        answer=PartMatch.EQUAL if same else PartMatch.DIFFERENT,
        sealed=len(sealed),
        equal=len(sealed) - len(differing) - len(missing),
        differing=tuple(map(short_text, sorted(differing)[:SHOWN])),
        missing=tuple(map(short_text, missing[:SHOWN])),
        further=further,
    )


def _optimizer(sealed: Sequence[StateDigest], digested: StateDigest) -> CheckedPart:
    """Compare the optimizer's tensors by last name and content, and return the better match.

    Places are ignored, because each framework numbers the parameters of this state differently.
    """
    own = _counted(digested)
    return _best(_compared_optimizer(_counted(state), own) for state in sealed)


def _compared_optimizer(sealed: Kept, own: Kept) -> CheckedPart:
    total = sealed.total()
    if not own:
        return CheckedPart(name=OPTIMIZER, answer=PartMatch.ABSENT, sealed=total, equal=0)
    return CheckedPart(
        name=OPTIMIZER,
        answer=PartMatch.EQUAL if sealed == own else PartMatch.DIFFERENT,
        sealed=total,
        equal=(sealed & own).total(),
        further=(own - sealed).total(),
    )


def _counted(state: StateDigest) -> Kept:
    return Counter((_last_name(leaf.path), leaf.digest) for leaf in _kept_tensors(state))


def _last_name(path: str) -> str:
    """Return `exp_avg` for `/optimizer/state{0}/exp_avg`.

    Two moments of one parameter have the same shape, so without the name they could be swapped
    unnoticed.
    """
    return str(NAME.findall(path)[-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class _SealedLeaves:
    """All leaves of the sealed states: (path, digest) pairs, paths, and digests of random states.

    A leaf in a file of a saved folder is listed twice: with the file name in its path and without.
    """

    leaves: frozenset[tuple[str, bytes]]
    places: frozenset[str]
    random: frozenset[bytes]


def _sealed_leaves(states: Sequence[StateDigest]) -> _SealedLeaves:
    leaves = [leaf for state in states for leaf in state.leaves]
    return _SealedLeaves(
        leaves=frozenset(
            (place, leaf.digest) for leaf in leaves for place in _places(leaf.path) if place
        ),
        places=frozenset(leaf.path for leaf in leaves),
        random=frozenset(leaf.digest for leaf in leaves if leaf.part == RANDOM),
    )


def _places(path: str) -> tuple[str, str]:
    """Return the path, and the path without its first step or empty if it has only one."""
    step = STEP.search(path, 1)
    return path, path[step.start() :] if step else ""


def _beside(
    leaves: Sequence[Leaf],
    digested: StateDigest,
    sealed: _SealedLeaves,
    rules: Sequence[Exclusion],
) -> tuple[Beside, Beside]:
    """Return the leaves that no sealed state has, as (may matter when loaded, plain values).

    Tensors of the model and the optimizer are left out, because `CheckedPart` covers them. A leaf
    may matter for two reasons: an object runs code when it is loaded, and weights below a key such
    as `best` may be the ones that somebody loads. A plain value (a number, a text, a time) does
    neither.
    """
    kept = {leaf.path for leaf in without_excluded(leaves, rules)[0]}
    objects = {leaf.path for leaf in digested.leaves if leaf.kind == OBJECT}
    beyond: list[LeafDigest] = []
    values: list[LeafDigest] = []
    for leaf in _unsealed(digested, sealed):
        plain = leaf.path not in kept or _is_plain_number(leaf, sealed, objects)
        plain = plain and leaf.shape is None and leaf.kind not in CODE
        (values if plain else beyond).append(leaf)
    # leaves that run code first, because only the first `SHOWN` are named
    beyond.sort(key=lambda leaf: leaf.kind not in CODE)
    data = {leaf.path: leaf.data for leaf in leaves if isinstance(leaf, ValueLeaf)}
    return _beside_of(beyond, data, sealed), _beside_of(values, data, sealed)


def _unsealed(digested: StateDigest, sealed: _SealedLeaves) -> Iterator[LeafDigest]:
    """Yield the leaves that no sealed state has at the same place, except model and optimizer."""
    # The comparison of model and optimizer already answers for these tensors.
    asked = {leaf.path for leaf in (*_tensors(digested, MODEL), *_kept_tensors(digested))}
    common = _common_steps([leaf.path for leaf in digested.leaves])
    for leaf in digested.leaves:
        places = {(leaf.path, leaf.digest), (leaf.path[common:], leaf.digest)}
        # A random state may be saved anywhere in the file, so only its bytes count.
        random = leaf.part == RANDOM and leaf.shape is not None and leaf.digest in sealed.random
        if leaf.path not in asked and not random and sealed.leaves.isdisjoint(places):
            yield leaf


def _common_steps(paths: Sequence[str]) -> int:
    """Return the length of the leading steps that all paths share, not counting any last step."""
    # the same shortcut as in `_named`
    ends = zip(min(paths, default=""), max(paths, default=""), strict=False)
    common = "".join(end for end, _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    return max((step.start() for step in STEP.finditer(common)), default=0)


def _is_plain_number(leaf: LeafDigest, sealed: _SealedLeaves, objects: set[str]) -> bool:
    """Whether a leaf is a value that cannot change a loaded model.

    False if the sealed states have a different value at its place, or if the leaf belongs to a
    model or an object. Text is plain only in an optimizer or a random state, which use it to name
    their parts.
    """
    above = objects and any(
        leaf.path[: step.start()] in objects for step in STEP.finditer(leaf.path)
    )
    if above or PART_OF_OBJECT.search(leaf.path):
        return False
    if leaf.part == MODEL or leaf.path in sealed.places:
        return False
    return leaf.kind in NUMBERS or (leaf.kind == "text" and leaf.part in {OPTIMIZER, RANDOM})


def _beside_of(
    leaves: Sequence[LeafDigest], data: Mapping[str, bytes], sealed: _SealedLeaves
) -> Beside:
    first = tuple(_told_leaf(leaf, data, sealed) for leaf in leaves[:SHOWN])
    return Beside(count=len(leaves), first=first)


def _told_leaf(leaf: LeafDigest, data: Mapping[str, bytes], sealed: _SealedLeaves) -> str:
    """Describe a leaf, for example `'/extra' calls 'timeit.timeit' when it is loaded`."""
    shown = short_text(leaf.path)
    if leaf.kind in CODE:
        name = data[leaf.path].decode("utf-8", "replace").replace(":", ".")
        return f"{shown} {CODE[leaf.kind]} {short_text(name)} when it is loaded"
    if leaf.kind == RAW_DTYPE:
        return f"file {shown}"
    text = f"{'tensor' if leaf.shape is not None else leaf.kind} {shown}"
    return f"{text}, another than that of the sealed run" if leaf.path in sealed.places else text


def _kept_tensors(state: StateDigest) -> Iterator[LeafDigest]:
    return (leaf for leaf in _tensors(state, OPTIMIZER) if KEPT_STATE.search(leaf.path))
