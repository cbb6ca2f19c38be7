"""The doctor reaches its last row, whatever it looks with raises."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from played_training import Project
from real_reader import kept

from gate.errors import CancelledError, GateError, RepositoryError, RunError, SettingsError
from gate.isolation.stop_signals import StopSignals
from gate.pipelines.adapters import Adapters
from gate.pipelines.call_setup import build_adapters
from gate.pipelines.doctor.doctor import Checks, Probes, examine
from gate.pipelines.doctor.health import CheckResult, DoctorReport
from gate.system.console import QuietProgress
from gate.system.files.files import LocalFiles
from gate.system.github.records import TokenSeen

ALWAYS = (
    *("settings", "history", "token", "engine", "isolation", "training", "gpu", "driver"),
    *("shared memory", "disk", "baseline"),
)
FAULTS = (RunError("probe failed", hint="Mend it."), OSError(5, "Input/output error"))
SOUND = Probes(
    submodules=lambda _: (),
    free_bytes=lambda _: 2**40,
    engine=lambda: "",
    token=lambda _contents: TokenSeen(repository_status=200),
    shallow=lambda: False,
    # so that the others are asked as well
    holds=lambda _commit, _path: False,
    ignores=lambda _: False,
    program=lambda _: True,
)


class _Raising:
    def __init__(self, fault: Exception, name: str = "", real: object = None) -> None:
        self._fault, self._name, self._real = fault, name, real

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name) if self._name not in ("", name) else self

    def __call__(self, *_arguments: object, **_named: object) -> NoReturn:
        raise self._fault


def raising(fault: Exception, name: str = "", real: object = None) -> Any:  # noqa: ANN401 - it is any port
    """A port whose call of that name, or whose every call, raises."""
    return _Raising(fault, name, real)


@pytest.fixture
def checks(tmp_path: Path) -> Checks:
    project = Project(tmp_path / "project")
    return Checks(
        top=project.path,
        start=project.path,
        config="",
        out=project.path / "out",
        base="",
        event=None,
    )


@pytest.fixture
def adapters(checks: Checks) -> Adapters:
    """Real ones, but that no training's Python is started: it takes seconds."""
    real = build_adapters(LocalFiles(), checks.top, QuietProgress(), StopSignals(), os.environ)
    processes = raising(RunError("not started here"))
    return replace(real, processes=processes, answering=kept(real.answering))


def _names(report: DoctorReport) -> list[str]:
    return [row.name for row in report.examined]


class _Noting:
    def __init__(self, real: object) -> None:
        self._real = real
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> object:
        self.called.add(name)
        return getattr(self._real, name)


def _called(checks: Checks, adapters: Adapters, port: str) -> list[str]:
    """Nothing else of a port can raise: what a sound report calls of it, and all at once."""
    noting: Any = _Noting(getattr(adapters, port))
    examine(checks, replace(adapters, **{port: noting}), SOUND)
    assert len(noting.called) > 2
    return ["", *sorted(noting.called)]


def _lacking(
    reports: Iterable[tuple[str, Exception, DoctorReport]], wanted: Iterable[str] = ALWAYS
) -> dict[tuple[str, str], set[str]]:
    """What raised what, with the rows that a report without them lacks."""
    return {
        (name, repr(fault)): lacking
        for name, fault, report in reports
        if (lacking := set(wanted) - set(_names(report)))
    }


def test_a_probe_that_raises_is_a_row(checks: Checks, adapters: Adapters) -> None:
    reports = [
        (
            field.name,
            fault,
            examine(checks, adapters, replace(SOUND, **{field.name: raising(fault)})),
        )
        for field in fields(Probes)
        for fault in FAULTS
    ]
    assert _lacking(reports, (*ALWAYS, "work tree", "command")) == {}
    assert {_names(report)[-1] for _, _, report in reports} == {"baseline"}
    assert [
        (name, fault)
        for name, fault, report in reports
        if name != "engine"
        and "probe failed" not in str(report)
        and "Input/output error" not in str(report)
    ] == []
    # these settings need no engine, so why there is none is of no interest
    assert all(
        "none (not needed)" in str(report) for name, _, report in reports if name == "engine"
    )


def test_an_adapter_that_raises_is_a_row(checks: Checks, adapters: Adapters) -> None:
    reports = [
        (name, fault, examine(checks, replace(adapters, **{name: raising(fault)}), SOUND))
        for name in ("isolate", "closed", "clean_up", "release", "gpus", "processes")
        for fault in FAULTS
    ]
    assert _lacking(reports, (*ALWAYS, "work tree", "command")) == {}


def test_files_that_raise_are_rows(checks: Checks, adapters: Adapters) -> None:
    reports = [
        (name, fault, examine(checks, replace(adapters, files=files), SOUND))
        for name in _called(checks, adapters, "files")
        for fault in FAULTS
        for files in [raising(fault, name, adapters.files)]
    ]
    assert _lacking(reports) == {}


def test_a_repository_that_raises_is_a_row(checks: Checks, adapters: Adapters) -> None:
    reports = [
        (name, fault, examine(checks, replace(adapters, git=git), SOUND))
        for name in _called(checks, adapters, "git")
        for fault in (RepositoryError("git failed"), *FAULTS)
        for git in [raising(fault, name, adapters.git)]
    ]
    assert _lacking(reports) == {}


def test_an_output_folder_that_cannot_be_had_is_a_row(checks: Checks, adapters: Adapters) -> None:
    checks.out.write_text("a file")
    report = examine(checks, adapters, SOUND)
    (disk,) = (row for row in report.examined if row.name == "disk")
    assert disk.health is CheckResult.FAIL
    assert disk.found.endswith("is a file, not a folder")
    assert _names(report)[-1] == "baseline"


def test_an_event_that_the_gate_refuses_is_the_first_row(
    checks: Checks, adapters: Adapters
) -> None:
    refused = replace(checks, event_fault=SettingsError("refused event", hint="Use another."))
    first, *rest = examine(refused, adapters, SOUND).examined
    assert (first.name, first.health, first.found) == ("event", CheckResult.FAIL, "refused event")
    assert rest[-1].name == "baseline"


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda adapters: replace(adapters, gpus=raising(CancelledError("stop"))),
        lambda adapters: replace(adapters, isolate=raising(CancelledError("stop"))),
    ],
)
def test_a_call_that_is_cancelled_ends(
    checks: Checks, adapters: Adapters, spoilt: Callable[[Adapters], Adapters]
) -> None:
    with pytest.raises(GateError, match="stop"):
        examine(checks, spoilt(adapters), SOUND)
