"""How a package was made, out of the evidence: what its provenance says beside the verdict."""

from __future__ import annotations

from gate.evidence.documents import cluster_document
from gate.evidence.overrides import Override
from gate.evidence.run_evidence import EvidenceSet
from gate.package.sealed_provenance import MAX_OVERRIDES, MAX_SEEDS, Making, OverrideSeen
from gate.verdict.request import GateRequest


def making_of(evidence: EvidenceSet, request: GateRequest) -> Making:
    """Of the first run of the commit; the second strict one was asked for the same."""
    run = evidence.runs[0]
    further = {one.result.seed for one in evidence.seeded}
    seed = request.settings.train.seed
    return Making(
        settings=request.settings.model_dump(mode="json"),
        seeds=(seed, *sorted(further - {seed}))[:MAX_SEEDS],
        overrides=tuple(_seen(one) for one in run.overrides[:MAX_OVERRIDES]),
        overridden=max(run.overridden, len(run.overrides)),
        cluster=cluster_document(evidence).model_dump(mode="json"),
        # one that could not be read was not packed either
        locks=tuple((lock.path, lock.sha256) for lock in evidence.locks if lock.sha256),
    )


def _seen(override: Override) -> OverrideSeen:
    return OverrideSeen(
        kind=override.kind,
        name=override.name,
        before=override.before,
        after=override.after,
        file=override.file,
        line=override.line,
        rank=override.rank,
    )
