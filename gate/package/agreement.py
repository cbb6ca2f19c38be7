"""Whether all that is signed and all that is packed says the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from gate.errors import AttestationError
from gate.evidence.state_roots import StateRoots
from gate.isolation.modes import RunIsolation
from gate.package.archive import MAX_KEPT_BYTES
from gate.package.model_signing import check_model_statement, model_folder
from gate.package.opening import CLAIM_HINT
from gate.package.provenance import BASELINE, LOCKS, read_provenance
from gate.package.seal import VERDICT_MEMBER, properties_of, provenance_facts
from gate.package.seal_records import Archive
from gate.package.sealed_provenance import Making, ProvenanceFacts
from gate.package.sealed_statement import StatementFacts
from gate.package.signing import printable, read_object, read_record
from gate.package.statement import utc_time
from gate.package.ustar import SUMS_NAME, sums_text
from gate.text.codec_digests import sha256_hex
from gate.text.json_text import canonical_json
from gate.verdict.verdict import Verdict

CLUSTER_MEMBER: Final = "cluster.json"
# held in memory while a package is read; a state of gigabytes is hashed and let go
KEPT_MEMBERS: Final = frozenset({SUMS_NAME, VERDICT_MEMBER, CLUSTER_MEMBER})
MAX_DIFFERENCES: Final = 5


def check_sums(archive: Archive) -> None:
    """Every file must be the one that `SHA256SUMS` lists; `AttestationError` names what is not."""
    *others, sums = archive.members
    expected = sums_text([(member.name, member.sha256) for member in others])
    if sums.content == expected:
        return
    listed, packed = (sums.content or b"").splitlines(), expected.splitlines()
    wrong = [
        f"listed, but the package differs: {line!r}" for line in sorted(set(listed) - set(packed))
    ]
    wrong += [f"packed, but not listed: {line!r}" for line in sorted(set(packed) - set(listed))]
    raise AttestationError(
        f"{SUMS_NAME} does not match the files of the package",
        hint=CLAIM_HINT,
        details=tuple(printable(line) for line in wrong[:MAX_DIFFERENCES]),
    )


def check_verdict(archive: Archive, facts: StatementFacts) -> None:
    """What people read in `verdict.json` must be what was signed."""
    content = _content(archive, VERDICT_MEMBER)
    if content is None:
        raise AttestationError(f"the package holds no {VERDICT_MEMBER}", hint=CLAIM_HINT)
    verdict = read_record(
        Verdict, content, VERDICT_MEMBER, max_bytes=MAX_KEPT_BYTES, hint=CLAIM_HINT
    )
    claims = {
        "passes": (verdict.passes, True),
        "outcome": (verdict.outcome, facts.outcome),
        "level": (verdict.level, facts.level),
        "strict_runs": (verdict.strict_runs, facts.strict_runs),
        "commit": (verdict.commit, facts.commit),
        "checkpoint_root": (verdict.checkpoint_root, facts.checkpoint_root),
        "states": (verdict.states, facts.states),
        "checkpoint_algorithm": (_algorithms(verdict), {facts.checkpoint_algorithm}),
        "properties": (properties_of(verdict), facts.properties),
        "settings_digest": (verdict.settings_digest, facts.settings_digest),
        "snapshot_digest": (verdict.snapshot_digest, facts.snapshot_digest),
        "isolation": (verdict.isolation, facts.isolation),
        "imported_evidence": (verdict.imported_evidence, facts.imported_evidence),
        "base_branch": (verdict.base_branch, facts.base_branch),
        "base_commit": (verdict.base_commit or "", facts.base_commit),
        "data": (tuple((one.name, one.sha256) for one in verdict.data), facts.data),
        "created_at": (utc_time(verdict.created_at), facts.created_at),
    }
    for name, (found, sealed) in claims.items():
        if found != sealed:
            raise AttestationError(
                f"{VERDICT_MEMBER} says {name} {_shown(found)}, the seal says {_shown(sealed)}",
                hint=CLAIM_HINT,
            )


def _algorithms(verdict: Verdict) -> set[str]:
    """How the states were hashed; in one way, or nothing agrees with it."""
    return {state.algorithm for state in verdict.states}


def _shown(value: object) -> str:
    if isinstance(value, tuple | set):
        named = (f"{one.name} {one.root}" if isinstance(one, StateRoots) else one for one in value)
        return repr(printable(", ".join(map(str, named))))
    text = value.described if isinstance(value, RunIsolation) else str(value)
    return repr(printable(text))


def _content(archive: Archive, name: str) -> bytes | None:
    return next((each.content for each in archive.members if each.name == name), None)


def check_provenance(payload: bytes, facts: StatementFacts, archive: Archive) -> None:
    """The provenance must say what the verdict says, list what is packed, and fit the package.

    Raises `AttestationError` that names the first fact that two places tell differently.
    """
    found = read_provenance(payload)
    members = tuple((member.name, member.sha256) for member in archive.members)
    wanted = provenance_facts(facts, members, found.making)
    for name in (each.name for each in fields(ProvenanceFacts)):
        said, sealed = getattr(found, name), getattr(wanted, name)
        if said != sealed:
            raise AttestationError(
                f"the provenance says {name} {_shown(said)}, verdict and package say "
                f"{_shown(sealed)}",
                hint=CLAIM_HINT,
            )
    _check_making(found.making, facts, archive)


def _check_making(making: Making, facts: StatementFacts, archive: Archive) -> None:
    packed = {member.name: member.sha256 for member in archive.members}
    listed = {f"{LOCKS}{path}": digest for path, digest in making.locks}
    if facts.baseline_digest:
        listed[BASELINE] = facts.baseline_digest
    for name, digest in packed.items():
        if (name == BASELINE or name.startswith(LOCKS)) and listed.get(name) != digest:
            raise AttestationError(
                f"{printable(name)} in the package is not the one that the provenance lists",
                hint=CLAIM_HINT,
            )
    if sha256_hex(canonical_json(making.settings)) != facts.settings_digest:
        raise AttestationError(
            "the provenance lists other settings than the ones that were judged by",
            hint=CLAIM_HINT,
        )
    cluster = _content(archive, CLUSTER_MEMBER)
    if cluster is not None and _text(_object(cluster)) != _text(making.cluster):
        raise AttestationError(
            f"the provenance describes another machine than {CLUSTER_MEMBER}", hint=CLAIM_HINT
        )


def _text(value: Mapping[str, object]) -> str:
    """As text, since 1, 1.0 and True are equal to Python; infinity is a text too."""
    return json.dumps(value, sort_keys=True)


def _object(content: bytes) -> dict[str, object]:
    return read_object(content, CLUSTER_MEMBER, max_bytes=MAX_KEPT_BYTES, hint=CLAIM_HINT)


def check_model(payload: bytes, archive: Archive) -> None:
    """The model's own signature must list the files that are packed; none more, none less."""
    members = ((member.name, member.sha256) for member in archive.members)
    check_model_statement(payload, model_folder(members))
