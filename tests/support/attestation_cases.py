"""A small sealed package, made by the real code; each test damages the one thing that it checks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

from evidence_cases import record_of
from harness_folder import safetensors_bytes
from report_cases import comparison

from gate.checkpoint.digest import digest_state
from gate.checkpoint.formats.safetensors_reader import as_path, read_safetensors
from gate.checkpoint.untrusted_files import UntrustedFile
from gate.comparison.differences import TensorChange, TensorDelta
from gate.evidence.run_evidence import StateName, StateRoots
from gate.package.envelope import sign, write_envelope
from gate.package.keys import KeyFile, PrivateKey, generate_private_key, private_pem, trusted_key
from gate.package.packing import pack
from gate.package.provenance import Making, write_provenance
from gate.package.seal import provenance_facts, seal, statement_facts, statements_of
from gate.package.seal_files import PROVENANCE_BARE_SUFFIX, seal_path
from gate.package.seal_records import (
    PAYLOAD_TYPE,
    Expected,
    KeyStatus,
    Package,
    PackageMember,
    SealContext,
    SealFile,
    TrustedKeys,
    VerifiedPackage,
)
from gate.package.statement import StatementFacts, write_statement
from gate.package.verify import verify_package
from gate.settings.levels import ReachedLevel
from gate.system.files.files import LocalFiles
from gate.text.digests import sha256_hex
from gate.text.documents import write_document
from gate.text.json_text import canonical_json
from gate.text.package_names import STATE_MEMBER
from gate.verdict.verdict import Answer, Answers, Outcome, Verdict

FILES = LocalFiles()
PASSPHRASE = b"correct horse battery"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CREATED_AT = "2026-01-31T12:00:00+00:00"
CONTEXT = SealContext(
    gate_version="1.0.0", repository="org/repo", run_id="42", baseline_digest="b" * 64
)
STATE = safetensors_bytes(
    {
        "model/0.weight": ("U8", [200], bytes(range(200))),
        "optimizer/0/state/0/step": ("U8", [1], b"3"),
    }
)


def _captured(content: bytes) -> StateRoots:
    """Return the root digests of a captured state, as the gate computes them."""
    with TemporaryFile() as file:
        file.write(content)
        file.flush()
        opened = UntrustedFile(shown="the state", stream=file, size_bytes=len(content))
        found = digest_state(read_safetensors(opened, as_path), exclusions=())
    return StateRoots(
        name=StateName.CAPTURED,
        member=STATE_MEMBER,
        algorithm=found.algorithm,
        root=found.roots.whole,
        parts=found.roots.parts,
    )


CAPTURED = _captured(STATE)
MAKING = Making(
    settings={"train": {"command": ["python", "train.py"], "seed": 42}},
    seeds=(42,),
    overrides=(),
    overridden=0,
    cluster={"ranks": 1},
    locks=(("uv.lock", sha256_hex(b"locked")),),
)
NO_MORE: Mapping[str, bytes] = {}
EQUAL = comparison(
    compared_points=3, compared_steps=3, compared_tensors=2, steps_expected=3, steps_observed=3
)
CHANGED_TENSOR = TensorDelta(
    name="model/0/weight", kind=TensorChange.CHANGED, expected="1", observed="2"
)


@cache
def gate_key() -> PrivateKey:
    """Return the gate's key, the same for all tests."""
    return generate_private_key()


@cache
def locked_key() -> bytes:
    """Return the key's file, encrypted with `PASSPHRASE`.

    Cached, because deriving a key from a pass phrase is slow by design: a fifth of a second.
    """
    return private_pem(gate_key(), PASSPHRASE)


@cache
def other_key() -> PrivateKey:
    """Return a key that is in no trust file."""
    return generate_private_key()


def trust_of(
    status: KeyStatus = KeyStatus.ACTIVE, *, retired_at: str = "2027-01-01T00:00:00+00:00"
) -> TrustedKeys:
    """Return a trust file with only the gate's key."""
    key = trusted_key(gate_key().public_key(), added_at=CREATED_AT)
    dates = {
        KeyStatus.ACTIVE: {},
        KeyStatus.RETIRED: {"retired_at": retired_at},
        KeyStatus.REVOKED: {"revoked_at": CREATED_AT},
    }
    return TrustedKeys(keys=(key.model_copy(update={"status": status, **dates[status]}),))


def verdict_of(**changes: object) -> Verdict:
    """Return a verdict that passes, with these fields changed."""
    verdict = Verdict(
        outcome=Outcome.REPRODUCED,
        passes=True,
        level=ReachedLevel.BITWISE,
        cause="equal",
        commit=COMMIT,
        created_at=CREATED_AT,
        repeat=EQUAL,
        baseline=EQUAL,
        answers=Answers(repeat=Answer.EQUAL, baseline=Answer.EQUAL),
        checkpoint_root="c" * 64,
        states=(CAPTURED,),
        snapshot_digest="d" * 64,
        settings_digest=sha256_hex(canonical_json(MAKING.settings)),
        runs=(record_of("strict-1"), record_of("strict-2")),
    )
    return verdict.model_copy(update=changes)


def member(name: str, content: bytes = b"data") -> PackageMember:
    """Return a member of a package with this content."""
    return PackageMember(name=name, content=content)


def members_of(verdict: Verdict) -> tuple[PackageMember, ...]:
    """Return the members of a package: the verdict and a small checkpoint."""
    return (
        member("verdict.json", write_document(verdict)),
        member(STATE_MEMBER, STATE),
    )


def pack_to(path: Path, *members: PackageMember) -> Package:
    """Pack the members into a file."""
    with path.open("wb") as target:
        return pack(members, path=path, target=target, files=FILES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sealed:
    """A package on disk and its seals."""

    package: Package
    seals: tuple[SealFile, ...]

    @property
    def path(self) -> Path:
        """The path of the package."""
        return self.package.path

    @property
    def others(self) -> tuple[SealFile, ...]:
        """All seals except those of the verdict."""
        return self.seals[2:]

    def verified(
        self,
        *,
        trusted: TrustedKeys | None = None,
        seals: tuple[SealFile, ...] | None = None,
        expected: Expected | None = None,
    ) -> VerifiedPackage:
        """Verify the package; a test may replace the trust file, the demands or the seals."""
        return verify_package(
            self.path,
            self.seals if seals is None else seals,
            trusted or trust_of(),
            expected or Expected(commit=COMMIT),
            FILES,
        )


def sealed_in(
    folder: Path,
    verdict: Verdict | None = None,
    key: PrivateKey | None = None,
    more: Mapping[str, bytes] = NO_MORE,
) -> Sealed:
    """Create a sealed package in a folder; `more` are additional members."""
    verdict = verdict or verdict_of()
    members = [*members_of(verdict), *(member(name, content) for name, content in more.items())]
    package = pack_to(folder / "package.tar", *members)
    statements = statements_of(verdict, package, CONTEXT, MAKING)
    return Sealed(package=package, seals=seal(statements, package, KeyFile(key or gate_key())))


def facts_in(folder: Path) -> StatementFacts:
    """Return the facts that the seal of a valid package states."""
    package = pack_to(folder / "facts.tar", *members_of(verdict_of()))
    return statement_facts(verdict_of(), package, CONTEXT)


def signed(
    payload: bytes, payload_type: str = PAYLOAD_TYPE, key: PrivateKey | None = None
) -> tuple[SealFile, ...]:
    """Return a bare seal over any payload, as a faulty or dishonest signer could make it."""
    envelope = sign(payload, payload_type, KeyFile(key or gate_key()))
    return (SealFile(name="package.dsse.json", content=write_envelope(envelope)),)


def sealed_bytes(folder: Path, archive: bytes, **facts: object) -> Sealed:
    """Seal arbitrary bytes as a package, with a valid signature."""
    path = folder / "package.tar"
    path.write_bytes(archive)
    good = facts_in(folder)
    fields = asdict(good)
    fields |= {
        "package_name": path.name,
        "package_sha256": hashlib.sha256(archive).hexdigest(),
        "package_size_bytes": len(archive),
        **facts,
    }
    package = Package(
        path=path, sha256=fields["package_sha256"], size_bytes=len(archive), members=()
    )
    claimed = StatementFacts(**fields)
    (provenance,) = signed(write_provenance(provenance_facts(claimed, (), MAKING)))
    beside = replace(provenance, name=seal_path(path, PROVENANCE_BARE_SUFFIX).name)
    return Sealed(package=package, seals=(*signed(write_statement(claimed)), beside))
