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
from gate.verdict.history_lines import HistoryLine


@dataclass(frozen=True, kw_only=True, slots=True)
class Publishers:
    """The services that take sealed packages: a registry by its address, and a tracker.

    `history` opens the store for lines of verdicts at a place. `push` sends a line to a
    Pushgateway. Each service reads its credentials when it is used, which is after the last
    training process (T1). `login_files` contain the registry's credentials, `s3_files` those of S3.
    """

    registry: Callable[[str], PackageRegistry]
    tracker: Callable[[TrackerSettings], Tracker]
    history: Callable[[str], HistoryStore]
    push: Callable[[str, HistoryLine], None]
    login_files: tuple[Path, ...]
    s3_files: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapters:
    """Every effect that a pipeline has, passed in by the entry points.

    Reading: `for_reading` returns the isolation of the reader, with an account that no training
    has. If the trainings have no account of their own, neither has the reader. `answering` starts a
    process that answers questions.

    Isolation: `closed` keeps places from other accounts while its body runs, except the way to one
    folder. `clean_up` removes all processes of the training's account, and its files outside that
    folder. `release` frees the accounts for other gates and gives back the nodes of `cluster`.
    `beside` returns accounts for runs that go at the same time, possibly fewer than requested. It
    raises `RunError` if no two runs can.

    Facts: `room` measures cores and memory, `gpus` finds the GPUs of this machine, and `machine`
    collects facts that are only reported. `run` marks the containers and the job of this call.
    `base_path` is the PATH of the base commit's own packages, or empty.

    Delivery: `seal_services` returns the services for a seal without a key, `publishers` those for
    a sealed package.
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
