"""The manifest of a state by itself: its bound, the names in it, and whether its roots fit.

Apart from `saved_state.py`, which parses files, so that the process that holds the key can ask
without a parser in reach.
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Final

from gate.checkpoint.digest import LeafDigest, roots_of
from gate.checkpoint.dtypes import RAW_DTYPE
from gate.checkpoint.hashing.canonical import ALGORITHM
from gate.checkpoint.parts import part_of
from gate.records.observed.evidence import (
    CheckpointManifest,
    EvidenceSet,
    RunEvidence,
    TensorDigest,
)
from gate.records.observed.state_roots import StateName, StateRoots
from gate.records.runs import FIRST_STRICT
from gate.records.sealed.members import MODEL_FOLDER, STATE_MEMBER

MAX_STATE_BYTES = 64 * 1024**3
# what stands before a leaf's own path, by which its part is told
PREFIX = re.compile(r"^(?:state(?:\.rank\d+)?|checkpoint)(?=[^A-Za-z0-9_.-]|\Z)")
CAPTURED = "state"
SAVED = "checkpoint"
# a leaf of either, by what stands before its own path
CAPTURED_LEAF: Final = re.compile(rf"{CAPTURED}(?=[^A-Za-z0-9_.-]|\Z)")
SAVED_LEAF: Final = re.compile(rf"{SAVED}(?=[^A-Za-z0-9_.-]|\Z)")
# of the evidence: the files that the script saved, below the run's name
SAVED_FOLDER: Final = f"{FIRST_STRICT}/{MODEL_FOLDER}/"


def roots_fit(claimed: CheckpointManifest) -> bool:
    """Whether a manifest from elsewhere has the roots of its own leaves."""
    roots = roots_of(_leaf(tensor.name, tensor) for tensor in claimed.tensors)
    return (claimed.algorithm, claimed.root, claimed.parts) == (ALGORITHM, roots.whole, roots.parts)


def state_roots(run: RunEvidence, evidence: EvidenceSet) -> tuple[StateRoots, ...]:
    """The roots of each state of a run, as a digest of its own file gives them.

    In a manifest a prefix tells the states apart, which their files do not have.
    """
    found = (
        _roots_below(run, StateName.CAPTURED, CAPTURED_LEAF, STATE_MEMBER),
        _roots_below(run, StateName.SAVED, SAVED_LEAF, saved_member(evidence)),
    )
    return tuple(one for one in found if one is not None)


def _roots_below(
    run: RunEvidence, name: StateName, prefix: re.Pattern[str], member: str
) -> StateRoots | None:
    leaves = [
        _leaf(prefix.sub("", tensor.name, count=1), tensor)
        for tensor in run.checkpoint.tensors
        if prefix.match(tensor.name)
    ]
    if not leaves:
        return None
    # without the prefix another character decides: `/` sorts before `[`
    roots = roots_of(sorted(leaves, key=attrgetter("path")))
    return StateRoots(
        name=name, member=member, algorithm=ALGORITHM, root=roots.whole, parts=roots.parts
    )


def saved_member(evidence: EvidenceSet) -> str:
    """Where the package has what the script saved; empty where it has not."""
    if evidence.saved is None or evidence.saved.left_out:
        return ""
    if evidence.saved.is_folder:
        return MODEL_FOLDER
    name = next(kept.name for kept in evidence.kept if kept.name.startswith(SAVED_FOLDER))
    return f"{MODEL_FOLDER}/{name.removeprefix(SAVED_FOLDER)}"


def _leaf(path: str, tensor: TensorDigest) -> LeafDigest:
    return LeafDigest(
        path=path,
        part=part_of(
            PREFIX.sub("", tensor.name),
            tensor.dtype,
            tensor=tensor.dtype[:1].isupper() and tensor.dtype != RAW_DTYPE,
        ),
        kind=tensor.dtype,
        shape=tensor.shape,
        size_bytes=0,
        digest=bytes.fromhex(tensor.sha256),
    )
