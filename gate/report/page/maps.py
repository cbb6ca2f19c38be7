"""Maps of the tensors that differ, by layer, and of fingerprints over the steps.

A name is split at its last dot (`model/0/head.weight`: layer `head`, column `weight`), or at its
last slash (`optimizer/0/state/1/exp_avg`: layer `1`, column `exp_avg`). If the harness reported the
name of the optimizer's parameter 1, the layer is shown under that name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from gate.comparison.differences import BASELINE_SIDE, Comparison, TensorChange
from gate.comparison.state_difference import short_names
from gate.evidence.run_evidence import StateDistance, TensorDigest, TensorDistance
from gate.evidence.step_columns import StepDigests, order_of
from gate.report.page.curves import WIDTH, Scale, Tick, step_ticks
from gate.report.page.page_sources import PageSources, differing
from gate.text.phrases import count
from gate.verdict.verdict import Verdict

MAX_MAPS = 8
MAX_LAYERS = 150
MAX_COLUMNS = 16
NOT_HERE = ""
# Powers of ten that separate the shades. The rounding of float32 is about 1e-7, of bfloat16 1e-2.
DECADES = range(-7, -1)
HEATS = (
    f"below 1e{DECADES[0]}",
    *(f"1e{low} to 1e{low + 1}" for low in DECADES[:-1]),
    f"1e{DECADES[-1]} and more",
)
# Further rows are folded, because a page is read from the top.
OPEN_ROWS = 16
WORDS = {
    TensorChange.MISSING: "missing",
    TensorChange.EXTRA: "extra",
    TensorChange.CHANGED: "≠",
    TensorChange.RETYPED: "≠ type or shape",
}
DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class MapCell:
    """A tensor; `kind` is `none`, `equal`, the value of a `TensorChange`, or `heat0` and so on.

    A heat's number is the index in `HEATS` for the tensor's relative L2.
    """

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerMap:
    """The map of one part of the state; `omitted` counts layers and columns that are not shown.

    `summary` says in words how much differs. A `folded` map shows only that at first.
    """

    title: str
    summary: str
    folded: bool
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[MapCell, ...]], ...]
    omitted: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DifferenceMap:
    """The maps of one comparison.

    `heats` has the words of the legend, and `unlisted` counts tensors whose distances were not
    kept. If only digests of a side are known, there are no heats: the map shows what differs but
    not how far, and `why_no_distances` gives the reason.
    """

    expected: str
    observed: str
    maps: tuple[LayerMap, ...]
    omitted: int
    why_no_distances: str
    heats: tuple[str, ...] = ()
    unlisted: int = 0


Place = tuple[str, str, str]


def difference_map(verdict: Verdict, sources: PageSources) -> DifferenceMap | None:
    """Return the map of the most informative comparison whose tensors differ, or None."""
    comparison = next((candidate for candidate in differing(verdict) if candidate.tensors), None)
    if comparison is None:
        return None
    # only the states of the two strict runs are compared number by number
    distance = sources.distance if comparison is verdict.repeat else None
    parts: dict[str, dict[Place, MapCell]] = {}
    for name, cell in _cells(comparison, sources, distance).items():
        place = taken_apart(name)
        parts.setdefault(place[0], {})[place] = cell
    # Parts that differ come first, because only the first `MAX_MAPS` are shown.
    order = sorted(parts, key=lambda part: (not _any_differs(parts[part].values()), part))
    names = short_names(sources.parameter_names)
    maps = [_layer_map(part, parts[part], names) for part in order[:MAX_MAPS]]
    return DifferenceMap(
        expected=comparison.expected,
        observed=comparison.observed,
        maps=_with_long_ones_folded(maps),
        omitted=len(parts) - len(maps),
        why_no_distances="A baseline holds digests only"
        if comparison.expected == BASELINE_SIDE
        else "Only digests of a side are kept",
        heats=HEATS if distance is not None and distance.tensors else (),
        unlisted=distance.total - len(distance.tensors) if distance is not None else 0,
    )


def taken_apart(name: str) -> Place:
    """Split a name into part, layer and column, such as `state/model/0`, `head` and `weight`."""
    above, _, last = name.rpartition("/")
    layer, dot, what = last.rpartition(".")
    if dot:
        return above, layer, what
    part, _, layer = above.rpartition("/")
    return part, layer, last


def _cells(
    comparison: Comparison, sources: PageSources, distance: StateDistance | None
) -> dict[str, MapCell]:
    """Return all tensors of the reference as equal, overwritten by differences, then distances."""
    known: tuple[TensorDigest, ...] = ()
    if sources.reference is not None:
        known = sources.reference.checkpoint.tensors
    cells = {tensor.name: MapCell(kind="equal", text="=") for tensor in known}
    moved = {
        tensor.name: MapCell(kind=tensor.kind.value, text=WORDS[tensor.kind])
        for tensor in comparison.tensors
    }
    moved |= _settings(comparison, sources, moved)
    measured = distance.tensors if distance is not None else ()
    # The digests decide what differs, so a distance of any other tensor is not shown.
    heats = {tensor.name: heat_cell(tensor) for tensor in measured if tensor.name in moved}
    return cells | moved | heats


def _settings(
    comparison: Comparison, sources: PageSources, moved: Mapping[str, MapCell]
) -> dict[str, MapCell]:
    """Return the optimizer settings that differ, with both numbers, which a baseline has too."""
    before, after = sources.settings(comparison.expected), sources.settings(comparison.observed)
    return {
        name: MapCell(kind=cell.kind, text=f"{before[name]} → {after[name]}")
        for name, cell in moved.items()
        if name in before and name in after
    }


def heat_cell(tensor: TensorDistance) -> MapCell:
    """Return the tensor's relative L2, as text and as a shade."""
    if tensor.relative_l2 is None:
        return MapCell(kind="changed", text="≠ NaN, ∞" if tensor.finiteness_moved else "≠")
    heat = sum(tensor.relative_l2 >= 10.0**decade for decade in DECADES)
    odd = " NaN, ∞" if tensor.finiteness_moved else ""
    number = f"{tensor.relative_l2:.1e}" if tensor.relative_l2 else "0"
    return MapCell(kind=f"heat{heat}", text=f"{number}{odd}")


def _layer_map(
    part: str, cells: Mapping[Place, MapCell], parameters: Mapping[str, str]
) -> LayerMap:
    names = sorted({layer for _, layer, _ in cells}, key=_natural)
    columns = sorted({what for _, _, what in cells}, key=_natural)
    if len(names) > MAX_LAYERS:
        differing_layers = {layer for (_, layer, _), cell in cells.items() if _any_differs([cell])}
        names.sort(key=lambda layer: layer not in differing_layers)
    shown, across = names[:MAX_LAYERS], columns[:MAX_COLUMNS]
    absent = MapCell(kind="none", text=NOT_HERE)
    return LayerMap(
        title=part,
        summary=_summary(cells.values()),
        folded=not _any_differs(cells.values()),
        columns=tuple(across),
        rows=tuple(
            (
                parameters.get(f"{part}/{layer}", layer),
                tuple(cells.get((part, layer, what), absent) for what in across),
            )
            for layer in shown
        ),
        omitted=len(names) - len(shown) + len(columns) - len(across),
    )


def _summary(cells: Collection[MapCell]) -> str:
    differing_cells = sum(cell.kind != "equal" for cell in cells)
    if not differing_cells:
        return f"all {len(cells):,} equal" if len(cells) > 1 else "equal"
    return f"{differing_cells:,} of {len(cells):,} differ"


def _with_long_ones_folded(maps: list[LayerMap]) -> tuple[LayerMap, ...]:
    """Return the maps with long ones folded; the first map that differs always stays open."""
    rows, shown = 0, []
    for place, layer_map in enumerate(maps):
        rows += min(len(layer_map.rows), OPEN_ROWS)
        shown.append(
            replace(layer_map, folded=layer_map.folded or (place > 0 and rows > OPEN_ROWS))
        )
    return tuple(shown)


def _any_differs(cells: Iterable[MapCell]) -> bool:
    return any(cell.kind != "equal" for cell in cells)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts layer 10 after layer 9."""
    return [
        # Eighteen digits: Python refuses to convert more than 4,300 (CVE-2020-10735).
        (int(piece[:18]), "") if DIGITS.fullmatch(piece) else (-1, piece)
        for piece in DIGITS.split(name)
    ]


COLUMNS = 96
LEFT, RIGHT = 150, 14
ROW_HEIGHT, TOP, BOTTOM = 20, 6, 46
MAX_FINGERPRINTS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """Consecutive stretches of steps of one kind, `equal` or `differs`."""

    kind: str
    x: float
    width: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FingerprintRow:
    """One fingerprint with its bars, and the same in words."""

    name: str
    y: int
    bars: tuple[Bar, ...]
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FingerprintMap:
    """The fingerprints of one comparison over the steps."""

    expected: str
    observed: str
    rows: tuple[FingerprintRow, ...]
    x_ticks: tuple[Tick, ...]
    height: int


def fingerprint_map(verdict: Verdict, sources: PageSources) -> FingerprintMap | None:
    """Return the fingerprints of the most informative differing comparison with both sides."""
    for comparison in differing(verdict):
        left, right = sources.side(comparison.expected), sources.side(comparison.observed)
        if left is not None and right is not None:
            return _map(comparison, equalities(left.steps, right.steps))
    return None


def equalities(left: StepDigests, right: StepDigests) -> dict[str, dict[int, bool]]:
    """Map each common fingerprint to whether it was equal, for each step that both observed."""
    theirs = {digest.step: digest.with_parameters for digest in right.observed}
    equal_steps: dict[str, dict[int, bool]] = {}
    for digest in left.observed:
        their_digests = theirs.get(digest.step, {})
        for name, text in digest.with_parameters.items():
            if name in their_digests:
                equal_steps.setdefault(name, {})[digest.step] = text == their_digests[name]
    return equal_steps


def _map(comparison: Comparison, equal_steps: dict[str, dict[int, bool]]) -> FingerprintMap | None:
    every = [step for steps in equal_steps.values() for step in steps]
    if not every:
        return None
    first, last = min(every), max(every)
    columns = min(COLUMNS, last - first + 1)
    # Each step has a width, so that a single step is visible too.
    x = Scale(low=first, high=last + 1, start=LEFT, end=WIDTH - RIGHT)
    names = sorted(equal_steps, key=order_of)
    rows = tuple(
        _row(name, equal_steps[name], TOP + place * ROW_HEIGHT, (x, columns))
        for place, name in enumerate(names[:MAX_FINGERPRINTS])
    )
    height = TOP + len(rows) * ROW_HEIGHT + BOTTOM
    return FingerprintMap(
        expected=comparison.expected,
        observed=comparison.observed,
        rows=rows,
        x_ticks=_step_ticks(x),
        height=height,
    )


def _row(name: str, steps: dict[int, bool], y: int, grid: tuple[Scale, int]) -> FingerprintRow:
    x, columns = grid
    width = (x.high - x.low) / columns
    kinds: dict[int, str] = {}
    for step, equal in steps.items():
        column = int((step - x.low) / width)
        # One step that differs marks its whole stretch, so that it does not disappear.
        if not equal or column not in kinds:
            kinds[column] = "equal" if equal else "differs"
    bars = []
    for (kind, _), group in groupby(
        _stretches(kinds), key=lambda cell: (cell[1], cell[0] - cell[2])
    ):
        members = [cell[0] for cell in group]
        start = x.at(x.low + members[0] * width)
        end = x.at(x.low + (members[-1] + 1) * width)
        bars.append(Bar(kind=kind, x=start, width=round(end - start, 1)))
    return FingerprintRow(name=name, y=y, bars=tuple(bars), words=_words(name, steps))


def _step_ticks(x: Scale) -> tuple[Tick, ...]:
    """Return the first, the middle and the last step, each below the centre of its width."""
    half = x.at(x.low + 1) - x.at(x.low)
    inner = Scale(low=x.low, high=x.high - 1, start=x.start + half / 2, end=x.end - half / 2)
    return step_ticks(inner)


def _stretches(kinds: dict[int, str]) -> list[tuple[int, str, int]]:
    """Return (column, kind, running number); neighbours have an equal column minus number."""
    return [(column, kinds[column], place) for place, column in enumerate(sorted(kinds))]


def _words(name: str, steps: dict[int, bool]) -> str:
    differing_steps = [step for step, equal in steps.items() if not equal]
    if not differing_steps:
        return f"{name}: equal ({count(len(steps), 'step')} observed)"
    return (
        f"{name}: differs at {len(differing_steps):,} of {count(len(steps), 'step')} observed, "
        f"first at step {min(differing_steps)}"
    )
