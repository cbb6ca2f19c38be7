"""Find which data sets differ from the recorded ones, how much moved, and in which numbers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise, zip_longest
from typing import Final

from gate.data.data_digests import MIN_SAMPLED, with_parts_of
from gate.data.data_sets import DataMove, DataMoves, DataPart, DataSet, DataSets, DataStatistics
from gate.data.declared import Listing
from gate.text.untrusted_text import MAX_SHOWN, bytes_of_shown

MAX_NUMBERS: Final = 6
# The most characters of a name from the data, in a sentence of at most 300.
MAX_QUOTED: Final = 80
# A shown name this close to the limit may have been cut, because an escaped character takes up to
# this much more.
CUT: Final = MAX_SHOWN - 4 * 4
LARGEST_PLAIN: Final = 15
SMALLEST_PLAIN: Final = -5
EXACT_DIGITS: Final = 17
SAME: Final = 1e-12
# The relative error that rounding may make in the distance of two numbers.
DISTANCE_ERROR: Final = 0.1


def data_moves(
    before: DataSets, after: DataSets, listings: Mapping[str, Listing] | None = None
) -> DataMoves:
    """Return the data sets that are new, gone or different, in the order of their names.

    `listings` are those of `after`. With them, new files are cut into the recorded parts, so that
    an inserted file moves only one part. Without them, parts count only if both sides were cut
    alike. If only one side was sampled, the data moved only where counts, sizes or names show it.
    """
    left, right = _by_name(before), _by_name(after)
    moves = []
    for name in dict.fromkeys((*left, *right)):
        old, new = left.get(name), right.get(name)
        if old is None or new is None:
            moves += [_alone(side, is_new=side is new) for side in (old, new) if side]
        elif old.sha256 != new.sha256 and (_comparable(old, new) or _surely_moved(old, new)):
            moves.append(_move(old, new, (listings or {}).get(name)))
    return tuple(moves)


def _by_name(sets: DataSets) -> dict[str, DataSet]:
    return {data_set.name: data_set for data_set in sets}


def _comparable(old: DataSet, new: DataSet) -> bool:
    """Return whether both digests cover the same: for few files, a sample is all of them."""
    return old.sampled is new.sampled or all(
        side.files <= MIN_SAMPLED for side in (old, new) if side.sampled
    )


def _surely_moved(old: DataSet, new: DataSet) -> bool:
    if (old.files, old.size_bytes) != (new.files, new.size_bytes):
        return True
    return _one_each(old) and _one_each(new) and set(_firsts(old)) != set(_firsts(new))


def _alone(there: DataSet, *, is_new: bool) -> DataMove:
    return DataMove(
        name=there.name,
        place=there.place,
        before="" if is_new else there.sha256,
        after=there.sha256 if is_new else "",
        files=there.files if is_new else 0,
    )


def _move(old: DataSet, new: DataSet, listing: Listing | None) -> DataMove:
    if listing is not None:
        new = with_parts_of(new, listing, old)
    move = DataMove(
        name=new.name,
        place=new.place,
        before=old.sha256,
        after=new.sha256,
        files=new.files,
        first=_first_unlike(old.parts, new.parts),
        numbers=tuple(islice(dict.fromkeys(_numbers(old, new)), MAX_NUMBERS)),
    )
    if not _comparable(old, new):
        # A line with a digest and a line with a size differ even without a change.
        return move.model_copy(update={"first": ""})
    if _one_each(old) and _one_each(new):
        names = _moved_names(old, new)
        return move.model_copy(
            update={"moved_files": len(names), "first": names[0] if names else ""}
        )
    if not _cut_alike(old, new):
        return move
    kept = set(new.parts)
    moved = sum(part not in kept for part in old.parts)
    return move.model_copy(update={"moved_parts": moved, "parts": len(old.parts)})


def _cut_alike(old: DataSet, new: DataSet) -> bool:
    """Return whether no two new parts begin in one recorded part, so that counts are meaningful."""
    firsts = [bytes_of_shown(first) for first in _firsts(old)]
    # Files that sort before the first recorded part belong to that part.
    places = [max(1, bisect_right(firsts, bytes_of_shown(first))) for first in _firsts(new)]
    return all(left < right for left, right in pairwise(places))


def _firsts(data_set: DataSet) -> tuple[str, ...]:
    return tuple(part.first for part in data_set.parts)


def _one_each(data_set: DataSet) -> bool:
    """Return whether each file has its own part, and no name was cut."""
    firsts = _firsts(data_set)
    return (
        len(set(firsts)) == len(firsts) == data_set.files > 0
        and all(part.files == 1 for part in data_set.parts)
        and all(len(first) <= CUT for first in firsts)
    )


def _moved_names(old: DataSet, new: DataSet) -> list[str]:
    """Return the names of files that changed, are new or are gone, sorted by their bytes."""
    left = {part.first: part.sha256 for part in old.parts}
    right = {part.first: part.sha256 for part in new.parts}
    moved = (name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
    return sorted(moved, key=bytes_of_shown)


def _first_unlike(old: Sequence[DataPart], new: Sequence[DataPart]) -> str:
    """Return where the first moved part begins; everything before it is unchanged."""
    for left, right in zip_longest(old, new):
        if left != right:
            return min((part.first for part in (left, right) if part), key=bytes_of_shown)
    return ""


def _numbers(old: DataSet, new: DataSet) -> Iterator[str]:
    """Yield sentences on counts and statistics that moved, the most informative first."""
    if old.files != new.files:
        yield f"{old.files:,} → {new.files:,} files"
    left = {(statistic.format, statistic.name): statistic for statistic in old.statistics}
    right = {(statistic.format, statistic.name): statistic for statistic in new.statistics}
    pairs = [(left[key], right[key]) for key in left if key in right]
    named = len(left.keys() | right.keys()) > 1
    for tell in (_rows, _mean, _nan_share, _classes, _deviation):
        for pair in pairs:
            # All columns of a table have the same number of rows, so report it once.
            own = named and not (tell is _rows and pair[0].format in {"csv", "jsonl"})
            about = f"{_quoted(pair[0].name)} " if own and pair[0].name else ""
            yield from (f"{about}{text}" for text in tell(*pair))
    for key in sorted(left.keys() ^ right.keys()):
        there = "gone" if key in left else "new"
        if left and right and key[1]:
            yield f"{_quoted(key[1])} is {there}"


def _rows(old: DataStatistics, new: DataStatistics) -> Iterator[str]:
    if old.rows != new.rows:
        what = "images" if old.format == "images" else "rows"
        yield f"{what} {old.rows:,} → {new.rows:,}"


def _read_alike(old: DataStatistics, new: DataStatistics) -> bool:
    """Return whether both statistics cover all rows, or both only the first ones."""
    return (old.rows_read < old.rows) is (new.rows_read < new.rows)


def _mean(old: DataStatistics, new: DataStatistics) -> Iterator[str]:
    if _read_alike(old, new):
        yield from _number("mean", old.mean, new.mean)


def _deviation(old: DataStatistics, new: DataStatistics) -> Iterator[str]:
    if _read_alike(old, new):
        yield from _number("deviation", old.deviation, new.deviation)


def _nan_share(old: DataStatistics, new: DataStatistics) -> Iterator[str]:
    left, right = old.nan_share, new.nan_share
    if left is not None and right is not None and left != right and _read_alike(old, new):
        before, after = _unlike(left * 100, right * 100, 1)
        yield f"NaN {before} % → {after} %"


def _classes(old: DataStatistics, new: DataStatistics) -> Iterator[str]:
    for name in sorted(old.classes.keys() | new.classes.keys()):
        if not _read_alike(old, new):
            return
        left, right = old.classes.get(name, 0), new.classes.get(name, 0)
        if left != right:
            yield f"class {_quoted(name)} {left:,} → {right:,}"


def _number(what: str, old: float | None, new: float | None) -> Iterator[str]:
    # Sums differ in the last digits on a different processor.
    if old is not None and new is not None and not math.isclose(old, new, rel_tol=SAME):
        before, after = _unlike(old, new, 3)
        yield f"{what} {before} → {after}"


def _unlike(old: float, new: float, digits: int) -> tuple[str, str]:
    """Round both to `digits` significant digits, or to as many as show their distance."""
    for enough in range(digits, EXACT_DIGITS):
        left, right = _rounded(old, enough), _rounded(new, enough)
        # Take halves: the distance of two doubles may overflow.
        shown = _value(right) / 2 - _value(left) / 2
        if left != right and math.isclose(shown, new / 2 - old / 2, rel_tol=DISTANCE_ERROR):
            return left, right
    # 17 digits distinguish any two doubles (IEEE 754-2019, 5.12.2).
    return _rounded(old, EXACT_DIGITS), _rounded(new, EXACT_DIGITS)


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def _rounded(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if SMALLEST_PLAIN <= exponent < LARGEST_PLAIN:
        return f"{value:,.{max(0, digits - 1 - exponent)}f}"
    return f"{value:.{digits - 1}e}"


def _quoted(name: str) -> str:
    return name if len(name) <= MAX_QUOTED else f"{name[:MAX_QUOTED]}…"
