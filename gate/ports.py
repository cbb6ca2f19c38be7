"""What the program needs from outside: the protocols that `gate.adapters` implements.

A room takes a port as a parameter, so its signature tells its effects; a test hands in a short
real implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol

from gate.records.observed.data.listed import FetchedData, Listing
from gate.records.observed.data.sets import DataPointers
from gate.records.observed.traced import Change
from gate.records.published.artifact import (
    Pulled,
    Pushed,
    SealedArtifact,
    Tracked,
    TrackedRun,
    WantedPackage,
)
from gate.records.published.folder_commit import FolderCommit
from gate.records.report import Comment
from gate.records.sealed.identity import (
    Identity,
    IdentityRequest,
    IdentitySigned,
    LogEntry,
)
from gate.records.sections.data import DataSource, Verify


class Clock(Protocol):
    """The time of day, for documents, and a clock for durations."""

    def now(self) -> datetime:
        """The current time in UTC, whole seconds."""
        ...

    def seconds(self) -> float:
        """Seconds since any fixed moment, for durations: it never goes back."""
        ...


class Progress(Protocol):
    """Where a person sees that work goes on."""

    def step(self, text: str) -> None:
        """Say that something begins."""
        ...

    def output(self, line: bytes) -> None:
        """Show one line of the training's output; the line is untrusted."""
        ...

    def running(self, text: str) -> AbstractContextManager[None]:
        """Show `text` and the time it takes while the body runs."""
        ...


class Files(Protocol):
    """Reading that trusts nothing and writing that loses nothing."""

    def read_bytes(self, path: Path, *, max_bytes: int) -> bytes:
        """A regular file's content, no link followed; `StorageError` beyond the limit."""
        ...

    def open_binary(self, path: Path, *, max_bytes: int) -> AbstractContextManager[BinaryIO]:
        """Open a regular file for reading, no link followed."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether something lies there, a link included."""
        ...

    def is_folder(self, path: Path) -> bool:
        """Whether a real folder lies there; a link to one is none."""
        ...

    def list_names(self, folder: Path, *, max_names: int) -> tuple[str, ...]:
        """The names in a folder, sorted; empty when there is no folder."""
        ...

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Write through a temporary file, so that a full disk leaves the old content."""
        ...

    def write_new(self, path: Path, data: bytes) -> None:
        """Make a file, its folders as needed; `StorageError` when something has its name."""
        ...

    def append_bytes(self, path: Path, data: bytes) -> None:
        """Add to the end of a regular file, made when it is not there; no link followed."""
        ...

    def refuse_brought_link(self, path: Path) -> None:
        """`StorageError` when a path is a link below a checkout, or leads through one."""
        ...

    def refuse_links(self, path: Path, *, below: Path) -> None:
        """`StorageError` when a path below a folder is a link or leads through one."""
        ...

    def owner(self, path: Path) -> tuple[int, int]:
        """The user and group that own something, a link itself."""
        ...

    def replacing(self, path: Path) -> AbstractContextManager[BinaryIO]:
        """A new file that takes the place of `path` when the body ends well, and else is gone."""
        ...

    def held_folder(self, path: Path) -> AbstractContextManager[None]:
        """Have a folder, made if need be, for this process alone while the body runs.

        `SettingsError` when another process has it, or a file has its name.
        """
        ...

    def private_folder(self, path: Path, *, is_ours: Callable[[frozenset[str]], bool]) -> None:
        """Have a folder that the settings name, made if only it is missing.

        `StorageError` where another account may write in it, among the system's files, and where
        it holds names that `is_ours` does not know.
        """
        ...

    def fresh_folder(self, path: Path, *, mode: int = 0o755) -> None:
        """Make an empty folder, removing what was there."""
        ...

    def copy_tree(self, source: Path, target: Path, *, max_bytes: int | None = None) -> None:
        """Copy a folder of regular files and links, links as links.

        `StorageError` when its files hold more than `max_bytes` together.
        """
        ...

    def let_read(self, path: Path, *, gid: int | None = None) -> None:
        """Let every account read a file or a folder, or a group a folder of one account."""
        ...

    def copy_file(self, source: Path, target: Path, *, max_bytes: int) -> str:
        """Copy one regular file, its folders as needed, no link followed; the copy's SHA-256."""
        ...

    def link(self, path: Path, target: Path) -> None:
        """Make a symbolic link at a path that is free, its folders as needed."""
        ...

    def short_link(self, target: Path, *, for_others: bool) -> Path | None:
        """A short path that leads to a folder, always the same one; None where there is none.

        `for_others`: another account has to follow it.
        """
        ...

    def drop_short_link(self, target: Path) -> None:
        """Remove it."""
        ...

    def move_file(self, source: Path, target: Path) -> None:
        """Give a file another name on the same disk; what was there is replaced."""
        ...

    def byte_code(self, module: Path) -> bytes:
        """The byte-code of a Python module, as a file beside it would hold it."""
        ...

    def set_aside(self, path: Path, target: Path) -> None:
        """Give a folder another name until it is removed with others, without its large files."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a folder, whatever its permissions."""
        ...

    def tree_digest(self, folder: Path) -> str:
        """The digest of an exported tree as it lies on disk now."""
        ...

    def give_to(self, path: Path, uid: int, gid: int) -> None:
        """Make another account the owner of a folder and all that is in it."""
        ...


class Git(Protocol):
    """The repository, read without running anything that it configures."""

    def top_level(self) -> Path:
        """The root of the work tree."""
        ...

    def resolve(self, reference: str) -> str:
        """The full hash of a commit."""
        ...

    def changed_files(self) -> tuple[str, ...]:
        """Paths that differ from HEAD, untracked files included, ignored ones left out."""
        ...

    def untracked(self) -> tuple[str, ...]:
        """What is new and not ignored; a folder of it stands there once, with a slash behind."""
        ...

    def visible_files(self) -> tuple[str, ...]:
        """Paths of all files of the work tree, tracked or new, ignored ones left out."""
        ...

    def ignored(self) -> tuple[str, ...]:
        """What lies in the work tree and is ignored, in the same form."""
        ...

    def merge_base(self, first: str, second: str) -> str | None:
        """The commit that two lines of work share last, None where this clone knows of none."""
        ...

    def changed_between(self, first: str, second: str) -> tuple[str, ...]:
        """The sorted paths of the files that are not the same in two commits."""
        ...

    def changed_lines(self, first: str, second: str) -> Change:
        """The hunks between two commits, a bounded number of them."""
        ...

    def read_file(self, commit: str, path: str) -> bytes | None:
        """A file of a commit, or None when it has none there."""
        ...

    def read_folder(
        self, commit: str, path: str, *, max_files: int, max_bytes: int
    ) -> Mapping[str, bytes] | None:
        """The regular files of a commit's folder by name, or None when it has nothing there."""
        ...

    def python_lines(self, commit: str, *, max_files: int, max_bytes: int) -> dict[str, int]:
        """How many lines each Python file of a commit has; beyond the limits a file is left out."""
        ...

    def folder_history(self, folder: str, *, max_commits: int) -> tuple[FolderCommit, ...]:
        """The newest commits before HEAD that changed a file of a folder, newest first."""
        ...

    def export_commit(self, commit: str, target: Path) -> str:
        """Write every file of a commit below `target`; return the tree's digest."""
        ...

    def write_source(self, commit: str, target: BinaryIO) -> None:
        """Write a commit, its trees and its blobs as one pack of git, the same bytes every time."""
        ...

    def export_work_tree(self, target: Path) -> str:
        """Write tracked and untracked, not ignored files as they are now; return the digest."""
        ...

    def credentials_left(self) -> tuple[str, ...]:
        """Names of the keys of the clone's configuration that hold a credential."""
        ...


class DataStore(Protocol):
    """Declared data: fetched before the first training, listed, and looked at again."""

    def fetch(self, source: DataSource, pointers: DataPointers) -> tuple[FetchedData, ...]:
        """Have an entry of `data` on this machine, whole and checked; several for some.

        `pointers` are those of the entry. Raises `DataError` for what is missing, wrong, too large
        or out of reach.
        """
        ...

    def close(self) -> None:
        """Let other gates remove what this one used; call it after the last run."""
        ...

    def listing(self, source: Path, verify: Verify) -> Listing:
        """Every file below a path with its digest, no link followed; `DataError` where one is."""
        ...

    def closed_folder(self, source: Path) -> Path | None:
        """The first folder on the way to a path that other accounts may not pass, or None."""
        ...

    def changed_since(self, source: Path, listing: Listing) -> str:
        """The first file that is not as it was listed, by its content; empty where none is."""
        ...


class Comments(Protocol):
    """The comments of one pull request."""

    def author(self) -> str:
        """The name that this token's comments carry."""
        ...

    def listed(self) -> Iterable[Comment]:
        """All of them, in order of creation, fetched as far as they are read."""
        ...

    def create(self, body: str) -> Comment:
        """Write a new one."""
        ...

    def update(self, comment_id: int, body: str) -> Comment:
        """Replace the text of one."""
        ...


class Secrets(Protocol):
    """Keys and tokens: asked for only after the last training process is gone."""

    def signing_key(self) -> bytes | None:
        """The private key in PEM, or None when nothing is to be sealed."""
        ...

    def passphrase(self) -> bytes | None:
        """What the key is encrypted with, or None."""
        ...

    def signer(self) -> Signer | None:
        """A key that is not a file, or None when none was named."""
        ...

    def secret_files(self) -> tuple[Path, ...]:
        """Files with a key, a PIN or a token: where, and nothing of what is in them."""
        ...

    def check_signer(self, *, checkout: Path | None, allow_plain: bool) -> None:
        """`SettingsError` for a key that cannot sign; tells nothing secret, so at any time.

        No program below `checkout` is started to sign. `allow_plain`: a file without a pass phrase.
        """
        ...

    def token(self) -> str:
        """The token for comments, or the empty text."""
        ...

    def may_identify(self) -> bool:
        """Whether the job may ask for an identity token; tells nothing secret, so at any time."""
        ...

    def identity_request(self) -> IdentityRequest | None:
        """Where and with what to ask for the job's identity token, or None when it may not."""
        ...


class Signer(Protocol):
    """A signing key, wherever it is; each failure is an `AttestationError`."""

    def public_key(self) -> bytes:
        """DER SubjectPublicKeyInfo."""
        ...

    def sign(self, message: bytes) -> bytes:
        """ECDSA P-256/SHA-256: DER; Ed25519: 64 bytes (RFC 8032, never prehashed)."""
        ...


class SealServices(Protocol):
    """What a seal without a key needs from others; each failure is an `AttestationError`."""

    def identity_token(self, request: IdentityRequest) -> str:
        """The job's identity token: a JWT, a secret while it is valid."""
        ...

    def certificate(self, token: str, signing_request: bytes) -> bytes:
        """A certificate (DER) for the key of a certificate signing request (PEM)."""
        ...

    def entry(self, envelope: bytes, certificate: bytes) -> LogEntry:
        """Enter a DSSE envelope (JSON) and the certificate (DER) of its key into the log."""
        ...

    def check_root(self, trusted_root: bytes | None) -> None:
        """Whether a seal could be checked against this root; None as in `verified`."""
        ...

    def verified(
        self, bundle: bytes, identity: Identity, trusted_root: bytes | None
    ) -> IdentitySigned:
        """Check all of a bundle offline; `trusted_root` None stands for the public services."""
        ...


class PackageRegistry(Protocol):
    """A name in a registry, where sealed packages outlive their job; failures are `GateError`s."""

    def push(self, artifact: SealedArtifact) -> Pushed:
        """Have package and seals there, under a tag; no tag of another package is moved."""
        ...

    def pull(self, wanted: WantedPackage, out: Path) -> Pulled:
        """Write package and seals into a folder, each byte checked; nothing there is replaced."""
        ...


class Tracker(Protocol):
    """A server that keeps runs of experiments; failures are `GateError`s."""

    def track(self, run: TrackedRun) -> Tracked:
        """Make a run of its own for this call, with all of it."""
        ...
