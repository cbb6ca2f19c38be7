"""What lies in a package, recomputed: the roots that its seal names, and a model file beside it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from gate.checkpoint.digest import LeafDigest, StateDigest, digest_state
from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.formats.formats import open_state
from gate.checkpoint.parts import MODEL, OPTIMIZER, OTHER
from gate.checkpoint.tensor_hashing import ALGORITHM
from gate.errors import AttestationError
from gate.evidence.run_evidence import StateName, StateRoots, States
from gate.package.model_signing import CheckedPart, ModelCheck, PartMatch
from gate.package.open_members import MAX_BYTES
from gate.package.saved_states import PackagedStates, open_package
from gate.system.files.port import Files
from gate.text.untrusted_text import safe_line, short_text

SHOWN: Final = 3
# elements of a matrix that may be another one's
LEAST_TIED: Final = 1024
# what an optimizer keeps of a parameter, in the gate's capture and in torch's own state_dict
KEPT_STATE: Final = re.compile(r"/state(?=[/{])")
NAME: Final = re.compile(r"[A-Za-z_]\w*")
OTHER_HINT: Final = "The seal and the package do not belong together; do not use this package."


def check_states(package: Path, states: States, files: Files) -> tuple[StateName, ...]:
    """Recompute the root of each packed state; which were, in the order of the seal.

    A state without a place in the package cannot be. Raises `AttestationError` where a root is
    another than the seal names, and `EvidenceError` for a state that cannot be read.
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
        # nothing is left out of what the harness captured
        return digest_state(opened.captured(), exclusions=(), max_bytes=MAX_BYTES)
    content = opened.saved(state.member)
    return digest_state(content, exclusions=opened.saved_exclusions(), max_bytes=MAX_BYTES)


def _check(state: StateRoots, found: StateDigest) -> None:
    if (found.roots.whole, found.roots.parts) == (state.root, state.parts):
        return
    parts = [name for name, root in found.roots.parts.items() if state.parts.get(name) != root]
    raise AttestationError(
        f"{safe_line(state.member)} does not hold the {state.name} state that was sealed "
        f"({', '.join(parts) or 'root'} differs)",
        hint=OTHER_HINT,
        details=(f"sealed: {state.root}", f"found:  {found.roots.whole}"),
    )


def check_model(model: Path, package: Path, files: Files) -> ModelCheck:
    """Compare a model file, or a folder, with the state in a package whose seal was verified.

    Tensors are compared by type, shape and bytes. Their names may stand below other keys
    (`state_dict`, `module.`), as long as one beginning is common to all of them. Raises
    `EvidenceError` for a file that cannot be read.
    """
    shown = safe_line(str(model))
    with open_state(
        files, model, shown, max_bytes=MAX_BYTES, unknown=UnknownContent.BYTES
    ) as content:
        found = digest_state(content, max_bytes=MAX_BYTES)
    with open_package(files, package) as opened:
        captured = digest_state(opened.captured(), exclusions=(), max_bytes=MAX_BYTES)
        saved = None
        if opened.saved_member:
            saved = digest_state(
                opened.saved(), exclusions=opened.saved_exclusions(), max_bytes=MAX_BYTES
            )
    identical = saved is not None and saved.roots == found.roots
    return ModelCheck(
        shown=shown,
        root=found.roots.whole,
        identical=identical or captured.roots == found.roots,
        parts=(
            _model(captured, saved, found),
            _optimizer(captured, found),
            *_others(found, (captured, *([saved] if saved else []))),
        ),
    )


def _tensors(state: StateDigest, part: str) -> tuple[LeafDigest, ...]:
    return tuple(leaf for leaf in state.leaves if leaf.part == part and leaf.shape is not None)


def _model(captured: StateDigest, saved: StateDigest | None, found: StateDigest) -> CheckedPart:
    """Against the capture, or against what the script saved where that fits better.

    A script may save an average of its weights, or weights in another type.
    """
    own = _named(_tensors(found, MODEL))
    against = [_compared(MODEL, _named(_tensors(captured, MODEL)), own)]
    if saved is not None and (tensors := _named(_tensors(saved, MODEL))):
        against.append(_compared(MODEL, tensors, own))
    return max(against, key=lambda part: (part.answer is PartMatch.EQUAL, part.equal))


def _named(leaves: Iterable[LeafDigest]) -> dict[str, LeafDigest]:
    """Leaves by name, without the beginning that all names have in common."""
    paths = {leaf.path: leaf for leaf in leaves}
    if len(paths) == 1:
        # all of a single name would be common
        return {path.rpartition("/")[2]: leaf for path, leaf in paths.items()}
    # what the first and the last in order have in common, all between them have too
    ends = zip(min(paths, default=""), max(paths, default=""), strict=False)
    common = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    start = max(common.rfind(end) for end in "/.") + 1
    return {path[start:]: leaf for path, leaf in paths.items()}


def _compared(
    name: str, sealed: dict[str, LeafDigest], found: dict[str, LeafDigest]
) -> CheckedPart:
    if not found:
        return CheckedPart(name=name, answer=PartMatch.ABSENT, sealed=len(sealed), equal=0)
    own = {key: leaf.digest for key, leaf in found.items()}
    differing = [key for key, leaf in sealed.items() if own.get(key, leaf.digest) != leaf.digest]
    # weights that are tied to others are often saved once
    held = {leaf.digest for key, leaf in sealed.items() if own.get(key) == leaf.digest}
    missing = [
        key
        for key, leaf in sealed.items()
        if key not in found and not (leaf.digest in held and _may_be_tied(leaf))
    ]
    further = len(found.keys() - sealed.keys())
    same = not (differing or missing or further) and bool(sealed)
    return CheckedPart(
        name=name,
        answer=PartMatch.EQUAL if same else PartMatch.DIFFERENT,
        sealed=len(sealed),
        equal=len(sealed) - len(differing) - len(missing),
        differing=tuple(map(short_text, sorted(differing)[:SHOWN])),
        missing=tuple(map(short_text, sorted(missing)[:SHOWN])),
        further=further,
    )


def _may_be_tied(leaf: LeafDigest) -> bool:
    """Two small tensors, or two vectors of zeros, are easily equal and no one weight."""
    shape = leaf.shape or ()
    return len(shape) > 1 and math.prod(shape) >= LEAST_TIED


def _optimizer(captured: StateDigest, found: StateDigest) -> CheckedPart:
    """By content and last name: each framework numbers the places of this state in its own way."""
    sealed, own = (
        Counter((_last_name(leaf.path), leaf.digest) for leaf in _kept_tensors(state))
        for state in (captured, found)
    )
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


def _last_name(path: str) -> str:
    """`exp_avg` of `/optimizer/state{0}/exp_avg`: two moments have one shape and are not one."""
    return str(NAME.findall(path)[-1])


def _others(found: StateDigest, sealed: Sequence[StateDigest]) -> tuple[CheckedPart, ...]:
    """Tensors of the file that no other answer is about, and that the sealed run had nowhere.

    The weights below a key such as `best` may be the ones that somebody loads.
    """
    known = {leaf.digest for state in sealed for leaf in state.leaves}
    asked = {leaf.path for leaf in (*_tensors(found, MODEL), *_kept_tensors(found))}
    further = sum(
        leaf.shape is not None and leaf.path not in asked and leaf.digest not in known
        for leaf in found.leaves
    )
    if not further:
        return ()
    return (
        CheckedPart(name=OTHER, answer=PartMatch.DIFFERENT, sealed=0, equal=0, further=further),
    )


def _kept_tensors(state: StateDigest) -> Iterator[LeafDigest]:
    return (leaf for leaf in _tensors(state, OPTIMIZER) if KEPT_STATE.search(leaf.path))
