"""Every effect that a pipeline has, in one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from gate.data.data_digests import DataStore
from gate.data.declared import FetchSources
from gate.fleet.store import HistoryStore
from gate.isolation.cluster_processes import Cluster
from gate.isolation.modes import Credentials, Isolation
from gate.isolation.process_request import AnsweringProcess, ProcessRequest, TrainingProcesses
from gate.package.signing import SealServices
from gate.publishing.artifact import PackageRegistry, Tracker
from gate.settings.delivery_sections import SigningSettings, TrackerSettings
from gate.settings.gate_settings import GateSettings
from gate.system.clock import Clock
from gate.system.console import Progress
from gate.system.files.port import Files
from gate.system.git.repository import Git
from gate.system.machine import GpusSeen, MachineFacts, Room
from gate.verdict.history import HistoryLine


@dataclass(frozen=True, kw_only=True, slots=True)
class Publishers:
    """Who takes sealed packages: a registry by a name in it, and a tracker.

    `history` is the store of a place that lines of verdicts go to, `push` tells a Pushgateway one.
    Credentials are read when one of them is used, so after the last training process is gone (T1).
    `login_files` are those that hold the registry's, `s3_files` those of S3.
    """

    registry: Callable[[str], PackageRegistry]
    tracker: Callable[[TrackerSettings], Tracker]
    history: Callable[[str], HistoryStore]
    push: Callable[[str, HistoryLine], None]
    login_files: tuple[Path, ...]
    s3_files: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapters:
    """Every effect that a pipeline has, handed in by the entry points.

    `for_reading` gives what an isolated training left to another account, which `answering` starts.
    `closed` keeps places from other accounts, all but the way to a folder, while its body runs;
    `clean_up` leaves no process and no file of the training's account outside that folder;
    `release` lets another gate have that account, and gives back the nodes of `cluster`. `beside`
    gives so many others, for runs that go beside it, or raises `RunError`; `room` tells cores and
    memory. `run` marks the containers and the job of this call. `gpus` looks for GPUs of this
    machine, `machine` for facts that are only told. `base_path` is the PATH of the base commit's
    own packages, empty where it has none. `seal_services` gives those of a seal without a key,
    `publishers` those who take a sealed package.
    """

    files: Files
    git: Git
    processes: TrainingProcesses
    data: Callable[[FetchSources], DataStore]
    clock: Clock
    progress: Progress
    isolate: Callable[[GateSettings, tuple[Path, ...]], Isolation]
    for_reading: Callable[[Isolation], Isolation]
    answering: Callable[[ProcessRequest], AnsweringProcess]
    beside: Callable[[Isolation, int], tuple[Credentials | None, ...]]
    room: Callable[[], Room]
    closed: Callable[[tuple[Path, ...], Path], AbstractContextManager[None]]
    clean_up: Callable[[Isolation], None]
    release: Callable[[], None]
    cluster: Cluster
    host: Mapping[str, str]
    run: str
    gpus: Callable[[], GpusSeen]
    base_path: str
    machine: Callable[[], MachineFacts]
    seal_services: Callable[[SigningSettings], SealServices]
    publishers: Publishers
