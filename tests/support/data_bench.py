"""Fetch data as the gate does, into a cache of the test, and record all progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gate.data.data_sets import DataPointers, PointerFile
from gate.data.declared import FetchedData, FetchSources
from gate.data.fetching import Fetcher, LocalData
from gate.data.pointers import read_dvc, read_lfs
from gate.data.tools import Tools
from gate.isolation.processes import LocalProcesses
from gate.settings.data import DataKind, DataSource, FetchSettings
from gate.system.http import RetryPolicy

QUICK = RetryPolicy(timeout_seconds=20.0, backoff_seconds=0.001, sleep=lambda _: None)


@dataclass
class Shown:
    """Implements the port `Progress` and records its calls."""

    steps: list[str] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)

    def step(self, text: str) -> None:
        self.steps.append(text)

    def output(self, line: bytes) -> None:
        self.lines.append(line)

    @contextmanager
    def running(self, text: str) -> Iterator[None]:
        self.steps.append(text)
        yield


@dataclass
class DataBench:
    """A bench with its clone at `root/clone` and its cache at `root/cache`."""

    root: Path
    environment: dict[str, str]
    policy: RetryPolicy = QUICK
    shown: Shown = field(default_factory=Shown)
    opened: list[LocalData] = field(default_factory=list)

    @property
    def clone(self) -> Path:
        return self.root / "clone"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def data(
        self,
        *,
        trusted: bool = False,
        lfs_config: bytes = b"",
        dvc_config: bytes = b"",
        **settings: object,
    ) -> LocalData:
        """Return the gate's data access, which is closed with the bench."""
        fetch = FetchSettings.model_validate({"cache": str(self.cache), **settings})
        tools = Tools(processes=LocalProcesses(), progress=self.shown, environment=self.environment)
        sources = FetchSources(
            settings=fetch,
            dvc_config=dvc_config,
            lfs_config=lfs_config,
            clone_is_trusted=trusted,
        )
        made = LocalData(Fetcher(self.clone, sources, tools, self.policy))
        self.opened.append(made)
        return made

    def one(self, source: dict[str, object], **settings: object) -> FetchedData:
        """Fetch the only data set of a path or a URL."""
        entry = DataSource.model_validate(source, strict=False)
        (found,) = self.data(**settings).fetch(entry, ())  # type: ignore[arg-type] # by name
        return found

    def dvc(self, path: str, *, stage: str | None = None, **options: object) -> FetchedData:
        """Fetch the only output of a `.dvc` file of the clone."""
        (found,) = self.dvc_all(path, stage=stage, **options)
        return found

    def dvc_all(
        self, path: str, *, stage: str | None = None, **options: object
    ) -> tuple[FetchedData, ...]:
        """Fetch all outputs of a `.dvc` file or a `dvc.lock` of the clone."""
        entry = DataSource(dvc=path, stage=stage)
        file = PointerFile(name=entry.label, kind=DataKind.DVC, path=path, stage=stage or "")
        pointers = read_dvc(file, (self.clone / path).read_bytes())
        config = (self.clone / ".dvc" / "config").read_bytes()
        data = self.data(dvc_config=config, **options)  # type: ignore[arg-type] # by name
        return data.fetch(entry, pointers)

    def lfs_pointers(self, commit: dict[str, bytes]) -> DataPointers:
        """Return the data to which a commit's files point; `commit` maps paths to contents."""
        found = (
            read_lfs(PointerFile(name="*.bin", kind=DataKind.LFS, path=path), text)
            for path, text in commit.items()
        )
        return tuple(pointer for pointer in found if pointer is not None)

    def left_on_the_way(self) -> list[str]:
        """Return the names of incomplete files in the cache."""
        return sorted(path.name for path in (self.cache / "fetching").rglob("*"))

    def close(self) -> None:
        for made in self.opened:
            made.close()
