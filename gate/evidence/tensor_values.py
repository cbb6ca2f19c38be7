"""The numbers of a captured state, stretch by stretch, so that memory stays the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gate.checkpoint.dtypes import ELEMENT_BYTES
from gate.checkpoint.formats.safetensors_reader import TensorEntry, read_layout
from gate.checkpoint.sources.untrusted_file import CHUNK_BYTES, UntrustedFile, open_untrusted
from gate.evidence.saved_state import MAX_STATE_BYTES
from gate.ports import Files
from gate.records.values import FLOAT_NAMES, FloatPair, FloatTensor

MAX_GRADIENT_BYTES = 16 * 1024**3
MAX_TENSOR_ELEMENTS = 1024 * 1024
MAX_ELEMENTS = 4 * 1024 * 1024
WEIGHTS = ("model/", "parameter/")


@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    """An open state: where its data starts, and its weights by name."""

    opened: UntrustedFile
    data_start: int
    weights: dict[str, TensorEntry]

    def read(self, name: str, start: int, length: int) -> bytes:
        offset = self.data_start + self.weights[name].data_offsets[0]
        return self.opened.read_at(offset + start, length)


def paired_weights(
    files: Files, first: tuple[Path, str], second: tuple[Path, str]
) -> Iterator[FloatPair]:
    """The weights that two states have in common, by name, in stretches of 1 MiB.

    Each state is a path and the name to show for it. Optimizer state is no weight, and what is
    no float has no distance. Raises `EvidenceError` for a file that is not such a state.
    """
    with ExitStack() as stack:
        left, right = (_open(stack, files, state) for state in (first, second))
        for name in _common(left.weights, right.weights):
            entry = left.weights[name]
            size = entry.data_offsets[1] - entry.data_offsets[0]
            for start in range(0, size, CHUNK_BYTES):
                length = min(CHUNK_BYTES, size - start)
                yield FloatPair(
                    dtype=FLOAT_NAMES[entry.dtype],
                    left=left.read(name, start, length),
                    right=right.read(name, start, length),
                )


def weights_not_compared(
    files: Files, first: tuple[Path, str], second: tuple[Path, str]
) -> tuple[str, ...]:
    """Names of weights that `paired_weights` leaves out: no float, or not the same in both."""
    with ExitStack() as stack:
        left, right = (_open(stack, files, state) for state in (first, second))
        compared = set(_common(left.weights, right.weights))
        return tuple(sorted((left.weights.keys() | right.weights.keys()) - compared))


def _open(stack: ExitStack, files: Files, state: tuple[Path, str]) -> _State:
    path, shown = state
    opened = stack.enter_context(open_untrusted(files, path, shown, max_bytes=MAX_STATE_BYTES))
    data_start, entries = read_layout(opened)
    weights = {name: entry for name, entry in entries if name.startswith(WEIGHTS)}
    return _State(opened=opened, data_start=data_start, weights=weights)


def _common(left: dict[str, TensorEntry], right: dict[str, TensorEntry]) -> list[str]:
    return [
        name
        for name, entry in left.items()
        if entry.dtype in FLOAT_NAMES
        and name in right
        and (entry.dtype, entry.shape) == (right[name].dtype, right[name].shape)
    ]


def gradient_tensors(files: Files, path: Path, shown: str) -> Iterator[FloatTensor]:
    """The gradients that the harness saved: the first million elements of each, four in all."""
    left = MAX_ELEMENTS
    with open_untrusted(files, path, shown, max_bytes=MAX_GRADIENT_BYTES) as opened:
        data_start, entries = read_layout(opened)
        for name, entry in entries:
            start, end = entry.data_offsets
            width = ELEMENT_BYTES[entry.dtype]
            count = min((end - start) // width, MAX_TENSOR_ELEMENTS, left)
            # sampled: how a sum moves with its order shows on a million elements as on all
            if entry.dtype in FLOAT_NAMES and count:
                left -= count
                data = opened.read_at(data_start + start, count * width)
                yield FloatTensor(name=name, dtype=FLOAT_NAMES[entry.dtype], data=data)
