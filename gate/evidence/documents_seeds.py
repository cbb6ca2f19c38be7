"""The document `seeds.json`: seeds and what else fixed the random state, for a person.

It is made from the evidence and read by nobody who judges.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from gate.evidence.overrides import Override
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.evidence.seeds import SeedResults
from gate.system.facts import FactText, ShortText
from gate.text.records_document import Document, Timestamp

SEEDS_SCHEMA: Final = "repro-gate.seeds/1"
SEEDS_NAME: Final = "seeds.json"
# as the harness calls what it seeds in each process, and the variable of Python's own hashes
SEEDED: Final = "seed_"
HASH_SEED: Final = "PYTHONHASHSEED"
MAX_SEEDED: Final = 1000


class ProcessSeeds(Document):
    """What one process of the first strict run attested: each generator with its seed."""

    rank: int = Field(ge=0, le=1_000_000)
    pid: int
    generators: Annotated[dict[ShortText, FactText], Field(max_length=20)]
    hash_seed: ShortText = ""


class SeedsDocument(Document):
    """The file `seeds.json`.

    `processes` says what the gate seeded, `by_the_script` what the training's own code did after
    it, and `further` what the training gave with other seeds, where the policy asked for those.
    """

    schema_version: Literal["repro-gate.seeds/1"] = SEEDS_SCHEMA
    commit: str
    created_at: Timestamp
    processes: Annotated[tuple[ProcessSeeds, ...], Field(max_length=MAX_SEEDED)]
    by_the_script: Annotated[tuple[Override, ...], Field(max_length=MAX_SEEDED)] = ()
    further: SeedResults = ()


def seeds_document(evidence: EvidenceSet) -> SeedsDocument:
    """Of the first run of the commit; the second strict one had the same seeds."""
    run = evidence.runs[0]
    return SeedsDocument(
        commit=evidence.commit,
        created_at=evidence.created_at,
        processes=_processes(run)[:MAX_SEEDED],
        by_the_script=tuple(one for one in run.overrides if one.seeds)[:MAX_SEEDED],
        further=tuple(one.result for one in evidence.seeded),
    )


def _processes(run: RunEvidence) -> tuple[ProcessSeeds, ...]:
    return tuple(
        ProcessSeeds(
            rank=process.rank,
            pid=process.pid,
            generators={
                name.removeprefix(SEEDED): text
                for name, text in process.applied.items()
                if name.startswith(SEEDED)
            },
            hash_seed=process.variables.get(HASH_SEED, "")[:200],
        )
        for process in run.processes
    )
