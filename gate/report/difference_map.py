"""Which tensors of which layer differ: layers down, what they hold across, one map for each part.

A name is taken apart at its last dot (`model/0/head.weight`: layer `head`, what `weight`), or at
its last slash (`optimizer/0/state/1/exp_avg`: layer `1`, what `exp_avg`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gate.records.comparison import Comparison, TensorChange
from gate.records.evidence import TensorDigest
from gate.records.verdict import Verdict
from gate.report.page_sources import PageSources, differing

MAX_MAPS = 8
MAX_LAYERS = 150
MAX_COLUMNS = 16
NOT_HERE = ""
WORDS = {TensorChange.MISSING: "missing", TensorChange.EXTRA: "extra", TensorChange.CHANGED: "≠"}
DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class MapCell:
    """A tensor: `kind` is `none`, `equal`, `changed`, `missing` or `extra`."""

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerMap:
    """One part of the state; `omitted` counts layers and columns that are not shown."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[MapCell, ...]], ...]
    omitted: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DifferenceMap:
    """The maps of one comparison.

    The gate holds no two states against each other number by number: of the second strict run and
    of a baseline it keeps digests alone, so a map shows what differs and not how far.
    """

    expected: str
    observed: str
    maps: tuple[LayerMap, ...]
    omitted: int


Place = tuple[str, str, str]


def difference_map(verdict: Verdict, sources: PageSources) -> DifferenceMap | None:
    """The map of the most telling comparison whose tensors differ, or None."""
    found = next((one for one in differing(verdict) if one.tensors), None)
    if found is None:
        return None
    parts: dict[str, dict[Place, MapCell]] = {}
    for name, cell in _cells(found, sources).items():
        place = taken_apart(name)
        parts.setdefault(place[0], {})[place] = cell
    # what differs first: of many parts the first ones are shown
    order = sorted(parts, key=lambda part: (not _any_differs(parts[part].values()), part))
    maps = tuple(_layer_map(part, parts[part]) for part in order[:MAX_MAPS])
    return DifferenceMap(
        expected=found.expected,
        observed=found.observed,
        maps=maps,
        omitted=len(parts) - len(maps),
    )


def taken_apart(name: str) -> Place:
    """Part, layer and what, such as `state/model/0`, `head` and `weight`."""
    above, _, last = name.rpartition("/")
    layer, dot, what = last.rpartition(".")
    if dot:
        return above, layer, what
    part, _, layer = above.rpartition("/")
    return part, layer, last


def _cells(found: Comparison, sources: PageSources) -> dict[str, MapCell]:
    """Every tensor of the reference as equal, then what differs over it."""
    known: tuple[TensorDigest, ...] = ()
    if sources.reference is not None:
        known = sources.reference.checkpoint.tensors
    cells = {one.name: MapCell(kind="equal", text="=") for one in known}
    moved = {one.name: MapCell(kind=one.kind.value, text=WORDS[one.kind]) for one in found.tensors}
    return cells | moved


def _layer_map(part: str, cells: Mapping[Place, MapCell]) -> LayerMap:
    names = sorted({layer for _, layer, _ in cells}, key=_natural)
    columns = sorted({what for _, _, what in cells}, key=_natural)
    if len(names) > MAX_LAYERS:
        told = {layer for (_, layer, _), cell in cells.items() if _any_differs([cell])}
        names.sort(key=lambda layer: layer not in told)
    shown, across = names[:MAX_LAYERS], columns[:MAX_COLUMNS]
    absent = MapCell(kind="none", text=NOT_HERE)
    return LayerMap(
        title=part,
        columns=tuple(across),
        rows=tuple(
            (layer, tuple(cells.get((part, layer, what), absent) for what in across))
            for layer in shown
        ),
        omitted=len(names) - len(shown) + len(columns) - len(across),
    )


def _any_differs(cells: Iterable[MapCell]) -> bool:
    return any(cell.kind != "equal" for cell in cells)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts layer 10 behind layer 9."""
    return [
        (int(piece[:18]), "") if DIGITS.fullmatch(piece) else (-1, piece)
        for piece in DIGITS.split(name)
    ]
