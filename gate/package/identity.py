"""Seals without a key: who a certificate names, and what a transparency log holds of a seal."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class IdentityRequest:
    """Where a job asks for its identity token, and with which secret.

    `server_url` is the GitHub server that the job belongs to.
    """

    url: str
    token: str = field(repr=False)
    server_url: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who sealed: the name in the certificate (for GitHub the workflow's address), and its issuer.

    Only both together name somebody: another issuer could certify the same name.
    """

    name: str
    issuer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEntry:
    """What a transparency log answered: an entry, its promise and its proof of inclusion.

    `log_index` counts over all shards of the log, `proof_index` in the tree of `tree_size` entries
    with `root_hash`. `integrated_seconds` is the log's own time, in seconds since 1970.
    """

    body: bytes
    log_id: bytes
    log_index: int
    integrated_seconds: int
    signed_entry_timestamp: bytes
    proof_index: int
    tree_size: int
    root_hash: bytes
    hashes: tuple[bytes, ...]
    checkpoint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class IdentitySigned:
    """What a verified bundle holds: the payload, and who signed it.

    `repository` is the address of the repository whose job it was, empty when the certificate names
    none.
    """

    payload: bytes
    payload_type: str
    identity: Identity
    repository: str
