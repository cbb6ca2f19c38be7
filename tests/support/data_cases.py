"""Data sets as the gate would list them, made from names and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from gate.data.data_digests import data_set
from gate.data.data_sets import DataSet, DataStatistics
from gate.data.declared import FetchedData, ListedFile, Listing
from gate.settings.data import DataKind, Verify
from gate.text.untrusted_text import name_bytes


def listing_of(files: Mapping[str, bytes]) -> Listing:
    """Return the listing of a folder with these files."""
    rows = (
        ListedFile(name, len(content), sha256(content).hexdigest(), (0, 0, 0, 0))
        for name, content in files.items()
    )
    return Listing(
        files=tuple(sorted(rows, key=lambda row: name_bytes(row.name))), verify=Verify.FULL
    )


def set_of(
    files: Mapping[str, bytes],
    name: str = "mini",
    *,
    kind: DataKind = DataKind.PATH,
    mean: float | None = None,
) -> DataSet:
    """Return a data set with these files, and with statistics if a column's `mean` is given."""
    place = "" if kind is DataKind.PATH else name
    fetched = FetchedData(
        name=name, kind=kind, origin=f"/srv/{name}", place=place, source=Path("/srv") / name
    )
    numbers = (
        ()
        if mean is None
        else (DataStatistics(format="npy", rows=1200, rows_read=1200, mean=mean, deviation=0.25),)
    )
    described = data_set(fetched, listing_of(files))
    return described.model_copy(update={"statistics": numbers})


def many_files(count: int, *, changed: int = 0) -> dict[str, bytes]:
    """Return files `a/0000.npy` and so on; the first `changed` of them have different content."""
    return {
        f"a/{number:04}.npy": b"new" if number < changed else b"%d" % number
        for number in range(count)
    }
