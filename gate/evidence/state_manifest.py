"""The manifest of a state by itself: its bound, its files, and whether its roots fit.

Apart from `saved_state.py`, which parses files, so that the process that holds the key can ask
without a parser in reach.
"""

from __future__ import annotations

from typing import Final

from gate.checkpoint.canonical import ALGORITHM
from gate.checkpoint.digest import CAPTURED_LEAF, SAVED_LEAF, roots_below, roots_of_listed
from gate.evidence.run_evidence import CheckpointManifest, EvidenceSet, RunEvidence
from gate.evidence.state_roots import StateName, StateRoots
from gate.text.members import MODEL_FOLDER, STATE_MEMBER
from gate.training.runs import FIRST_STRICT

MAX_STATE_BYTES = 64 * 1024**3
# of the evidence: the files that the script saved, below the run's name
SAVED_FOLDER: Final = f"{FIRST_STRICT}/{MODEL_FOLDER}/"


def roots_fit(claimed: CheckpointManifest) -> bool:
    """Whether a manifest from elsewhere has the roots of its own leaves."""
    roots = roots_of_listed(claimed.tensors)
    return (claimed.algorithm, claimed.root, claimed.parts) == (ALGORITHM, roots.whole, roots.parts)


def state_roots(run: RunEvidence, evidence: EvidenceSet) -> tuple[StateRoots, ...]:
    """The roots of each state of a run, as a digest of its own file gives them."""
    states = (
        (StateName.CAPTURED, CAPTURED_LEAF, STATE_MEMBER),
        (StateName.SAVED, SAVED_LEAF, saved_member(evidence)),
    )
    return tuple(
        StateRoots(
            name=name, member=member, algorithm=ALGORITHM, root=roots.whole, parts=roots.parts
        )
        for name, prefix, member in states
        if (roots := roots_below(run.checkpoint.tensors, prefix)) is not None
    )


def saved_member(evidence: EvidenceSet) -> str:
    """Where the package has what the script saved; empty where it has not."""
    if evidence.saved is None or evidence.saved.left_out:
        return ""
    if evidence.saved.is_folder:
        return MODEL_FOLDER
    name = next(kept.name for kept in evidence.kept if kept.name.startswith(SAVED_FOLDER))
    return f"{MODEL_FOLDER}/{name.removeprefix(SAVED_FOLDER)}"
