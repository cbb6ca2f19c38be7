"""What a run reaches by a link is told to the harness as declared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gate.data.declared import FetchedData
from gate.isolation.modes import Isolation, IsolationMode
from gate.settings.data import DataKind
from gate.training.run_folders import links_of

NOBODY = Isolation(mode=IsolationMode.NONE, credentials=None, reason="a test")


def test_the_harness_is_told_where_links_lead() -> None:
    placed = FetchedData(name="mini", kind=DataKind.PATH, origin="", source=Path("/srv/mini"))
    kept = replace(placed, name="x.dvc", kind=DataKind.DVC, place="x", source=Path("/cache/x"))
    copied = replace(placed, name="*.bin", kind=DataKind.LFS, source=None)
    assert not NOBODY.shows_mounts
    assert links_of((placed, copied, kept), NOBODY) == "/srv/mini:/cache/x"
    assert links_of((), NOBODY) == ""
