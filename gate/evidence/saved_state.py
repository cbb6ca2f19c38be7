"""The state of a run as one manifest: what the harness captured and what the script saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from gate.checkpoint.completeness import Contents, contents_of
from gate.checkpoint.digest import CAPTURED, SAVED, LeafDigest, StateDigest, digest_state, roots_of
from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.formats.formats import open_state
from gate.checkpoint.formats.safetensors_reader import as_path, read_safetensors
from gate.checkpoint.leaves import StateContent
from gate.checkpoint.numbers import NotFiniteLeaf, not_finite_leaves, sketches
from gate.checkpoint.parts import DEFAULT_EXCLUSIONS, Exclusion, without_excluded
from gate.checkpoint.tensor_hashing import ALGORITHM, available_threads
from gate.checkpoint.untrusted_files import open_untrusted
from gate.errors import EvidenceError, MissingOutputError
from gate.evidence.capture import MAX_STATE_BYTES
from gate.evidence.harness_files import HarnessFile, ProcessFiles
from gate.evidence.metric_series import optimizer_settings
from gate.evidence.node_reports import MAX_LEAVES_BYTES, ReportedLeaf, StateLeaves
from gate.evidence.run_evidence import (
    MAX_ALL_PARAMETER_NAMES,
    MAX_NOT_FINITE,
    MAX_SKETCHES,
    CheckpointManifest,
    NotFiniteTensor,
    TensorDigest,
)
from gate.settings.gate_settings import TrainSettings
from gate.system.files.port import Files
from gate.text.documents import read_document
from gate.text.phrases import count

NUMBERS = frozenset(("int", "float", "bool", "bytes"))


@contextmanager
def open_captured(files: Files, path: Path) -> Iterator[StateContent]:
    """Yield the leaves of a captured state; rank 0's names have `CAPTURED` before the paths."""
    with open_untrusted(files, path, path.name, max_bytes=MAX_STATE_BYTES) as opened:
        # the harness writes paths as names
        yield read_safetensors(opened, as_path)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadState:
    """The digests of all leaves of a state, and the leaves with NaN or infinity.

    `excluded` are the patterns that left something out. `optimizer_settings` is as in a manifest,
    `sketches` maps a path to its sketch, and `contents` are the parts of a state that the script
    saved.
    """

    leaves: tuple[LeafDigest, ...] = ()
    not_finite: tuple[NotFiniteLeaf, ...] = ()
    notes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    optimizer_settings: dict[str, str] = field(default_factory=dict)
    sketches: dict[str, str] = field(default_factory=dict)
    contents: Contents | None = None


def captured_state(files: Files, path: Path, rank: int) -> ReadState:
    """Return the captured state of a rank.

    Its names are `state/<name>` for rank 0 and `state.rank<r>/<name>` for other ranks. Raises
    `EvidenceError` for a file that is not such a state, and for one without tensors.
    """
    prefix = _prefix(rank)
    with open_captured(files, path) as content:
        # exclude nothing: the harness wrote tensors and values of the training, and no paths or
        # times
        digest = digest_state(content, exclusions=(), max_bytes=MAX_STATE_BYTES)
        not_finite = not_finite_leaves(content.leaves, available_threads())
        settings = optimizer_settings(content.leaves, prefix)
        sketched = sketches(content.leaves, available_threads(), MAX_SKETCHES)
    if all(leaf.shape is None for leaf in digest.leaves):
        raise EvidenceError(
            f"{path.name}: holds no tensor, so no training state could be compared",
            hint="The optimizer must own parameters of the model.",
        )
    return replace(
        _below(prefix, digest, not_finite),
        optimizer_settings=settings,
        sketches=_prefixed(prefix, sketched),
    )


def state_leaves(state: ReadState, rank: int, pid: int) -> StateLeaves:
    """Return a captured state in the form in which a node of a cluster reports it."""
    return StateLeaves(
        rank=rank,
        pid=pid,
        leaves=tuple(
            ReportedLeaf(
                path=leaf.path,
                part=leaf.part,
                kind=leaf.kind,
                shape=leaf.shape,
                size_bytes=leaf.size_bytes,
                sha256=leaf.digest.hex(),
            )
            for leaf in state.leaves
        ),
        not_finite=tuple(
            NotFiniteTensor(name=leaf.path, nan=leaf.nan, infinite=leaf.infinite)
            for leaf in state.not_finite[:MAX_NOT_FINITE]
        ),
        optimizer_settings=state.optimizer_settings,
        sketches=state.sketches,
    )


def left_state(files: Files, out: Path, process: ProcessFiles) -> ReadState:
    """Return the state of a rank that stayed on its node, from the node's report.

    Raises `EvidenceError` for a report about a different rank, and for one without leaves.
    """
    name, prefix = process.name(HarnessFile.LEAVES), _prefix(process.rank)
    with open_untrusted(files, out / name, name, max_bytes=MAX_LEAVES_BYTES) as opened:
        data = opened.read_at(0, opened.size_bytes)
        state = read_document(StateLeaves, data, name, max_bytes=MAX_LEAVES_BYTES)
    # a leaf under another prefix would pass as part of another rank's state
    strays = [leaf.path for leaf in state.leaves if not leaf.path.startswith(f"{prefix}/")]
    if (state.rank, state.pid) != (process.rank, process.pid) or strays or not state.leaves:
        raise EvidenceError(
            f"{name}: is about another state than that of rank {process.rank}",
            hint="Only the gate's own collector may write it; see docs/cluster.md.",
        )
    return ReadState(
        leaves=tuple(
            LeafDigest(
                path=leaf.path,
                part=leaf.part,
                kind=leaf.kind,
                shape=leaf.shape,
                size_bytes=leaf.size_bytes,
                digest=bytes.fromhex(leaf.sha256),
            )
            for leaf in state.leaves
        ),
        not_finite=tuple(
            NotFiniteLeaf(path=leaf.name, nan=leaf.nan, infinite=leaf.infinite)
            for leaf in state.not_finite
        ),
        optimizer_settings=state.optimizer_settings,
        sketches=state.sketches,
    )


def saved_checkpoint(files: Files, workdir_tree: Path, train: TrainSettings) -> ReadState:
    """Return the state that the script saved; it is empty if the settings name none.

    Raises the errors of `saved_state`.
    """
    if train.checkpoint is None:
        return ReadState()
    return saved_state(files, workdir_tree / train.checkpoint, train.checkpoint, train)


def saved_state(files: Files, path: Path, shown: str, train: TrainSettings) -> ReadState:
    """Return the saved state in a file or folder at `path`, which messages call `shown`.

    In a folder, files of unknown content are compared by their bytes. Raises `MissingOutputError`
    if there is no checkpoint, and `EvidenceError` if it is unreadable or empty.
    """
    if not files.exists(path):
        raise MissingOutputError(
            f"{shown}: the script wrote no checkpoint there",
            hint="Check train.checkpoint; the path is relative to train.workdir.",
        )
    exclusions = (*_own_exclusions(train), *DEFAULT_EXCLUSIONS)
    # A folder may also contain tokenizers and texts. A single file that the settings name has to be
    # a state.
    unknown = UnknownContent.BYTES if files.is_folder(path) else UnknownContent.REFUSE
    with open_state(files, path, shown, max_bytes=MAX_STATE_BYTES, unknown=unknown) as content:
        digest = digest_state(content, exclusions=exclusions, max_bytes=MAX_STATE_BYTES)
        # Excluded leaves may contain NaN: a timestamp or a path does not show a diverged training.
        counted, _ = without_excluded(content.leaves, exclusions)
        not_finite = not_finite_leaves(counted, available_threads(), sentinels=True)
        sketched = sketches(counted, available_threads(), MAX_SKETCHES)
        contents = contents_of(content)
    # Names and texts alone are equal in every run. A state with nothing else would pass after any
    # training (T4).
    if not any(leaf.shape is not None or leaf.kind in NUMBERS for leaf in digest.leaves):
        raise EvidenceError(
            f"{shown}: holds no tensor and no number to compare",
            hint="Save the model's state_dict there, or leave train.checkpoint out: the harness "
            "captures the state by itself.",
        )
    return replace(
        _below(SAVED, digest, not_finite),
        notes=_notes(shown, digest),
        sketches=_prefixed(SAVED, sketched),
        excluded=tuple(rule.pattern for rule in digest.excluded),
        contents=contents,
    )


def manifest(states: Sequence[ReadState]) -> CheckpointManifest:
    """Return the leaves of all states, sorted by name, with the roots over all of them."""
    ordered = sorted(
        (leaf for state in states for leaf in state.leaves), key=lambda leaf: leaf.path
    )
    roots = roots_of(ordered)
    sketched = {path: sketch for state in states for path, sketch in state.sketches.items()}
    # By digest, because the same weights occur several times: as tied weights, and in both the
    # captured and the saved state.
    kept = {leaf.digest.hex(): sketched[leaf.path] for leaf in ordered if leaf.path in sketched}
    return CheckpointManifest(
        algorithm=ALGORITHM,
        tensors=tuple(
            TensorDigest(
                name=leaf.path, dtype=leaf.kind, shape=leaf.shape or (), sha256=leaf.digest.hex()
            )
            for leaf in ordered
        ),
        parts=roots.parts,
        root=roots.whole,
        optimizer_settings={
            name: number for state in states for name, number in state.optimizer_settings.items()
        },
        sketches=dict(islice(kept.items(), MAX_SKETCHES)),
    )


def parameter_leaves(
    names: Mapping[int, Mapping[str, str]], states: Sequence[ReadState]
) -> dict[str, str]:
    """Return for the place of each parameter's optimizer state the leaf that is the parameter.

    `names` has the names in the summaries by rank, with keys `<optimizer>/<number>`. They are
    untrusted: a name that is no leaf of this run's state is left out, so no other text gets into a
    report this way. At most 8,000 are kept.
    """
    leaves = {leaf.path for state in states for leaf in state.leaves}
    named = (
        (f"{_prefix(rank)}/optimizer/{key.replace('/', '/state/')}", f"{_prefix(rank)}/{name}")
        for rank, by_key in names.items()
        for key, name in by_key.items()
    )
    known = ((place, leaf) for place, leaf in named if leaf in leaves)
    return dict(islice(known, MAX_ALL_PARAMETER_NAMES))


def captured_name(rank: int, name: str) -> str:
    """Return the name that a leaf of a rank's captured state has in the manifest."""
    return f"{_prefix(rank)}/{name}"


def _prefix(rank: int) -> str:
    return f"state.rank{rank}" if rank else CAPTURED


def _own_exclusions(train: TrainSettings) -> tuple[Exclusion, ...]:
    return tuple(
        Exclusion(pattern=rule.pattern, reason=rule.reason) for rule in train.checkpoint_exclude
    )


def _below(prefix: str, digest: StateDigest, not_finite: tuple[NotFiniteLeaf, ...]) -> ReadState:
    return ReadState(
        leaves=tuple(leaf._replace(path=prefix + leaf.path) for leaf in digest.leaves),
        not_finite=tuple(leaf._replace(path=prefix + leaf.path) for leaf in not_finite),
    )


def _prefixed(prefix: str, named: Mapping[str, str]) -> dict[str, str]:
    return {prefix + path: text for path, text in named.items()}


def _notes(shown: str, digest: StateDigest) -> tuple[str, ...]:
    left_out = (
        f"{shown}: {count(rule.leaves, 'value')} left out by {rule.pattern}: {rule.reason}"
        for rule in digest.excluded
    )
    return (*(f"{shown}: {note}" for note in digest.notes), *left_out)
