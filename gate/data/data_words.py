"""What moved in a data set, in one sentence."""

from __future__ import annotations

from gate.data.data_sets import DataMove


def move_sentence(move: DataMove) -> str:
    """`mini, 3 of 1,200 files (first: a/07.npy), mean 0.481 → 0.533`: a finding, without its end.

    Where files were not known one by one it says how many of the recorded parts moved, and where
    the first of these begins.
    """
    return ", ".join((move.name, _what(move), *move.numbers))


def _what(move: DataMove) -> str:
    if not move.before:
        return f"new, {_files(move.files)}"
    if not move.after:
        return "gone"
    if move.moved_files is not None and move.first:
        # files that are gone count too, so there may be more of them than are left
        of = f" of {_files(move.files)}" if move.moved_files <= move.files else ""
        count = f"{move.moved_files:,}" if of else _files(move.moved_files)
        return f"{count}{of} (first: {move.first})"
    if move.moved_parts and move.first:
        return (
            f"files in {move.moved_parts:,} of {move.parts:,} parts (first: {move.first} or later)"
        )
    return f"another content, from {move.first} on" if move.first else "another content"


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"
