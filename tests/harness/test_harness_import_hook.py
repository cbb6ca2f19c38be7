"""The hook that waits for an import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gate.harness.lifecycle.start import ImportHook

NAME = "waited_for_by_the_harness"
Arm = Callable[[], list[str]]


@pytest.fixture
def arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arm]:
    """Install a hook for a module that exists only here; what it returns tells the callbacks."""
    (tmp_path / f"{NAME}.py").write_text("import random\nvalue = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)

    def install() -> list[str]:
        calls: list[str] = []
        ImportHook({NAME: lambda: calls.append("called")}).install()
        return calls

    yield install
    sys.meta_path[:] = before
    sys.modules.pop(NAME, None)


def test_the_callback_runs_once_after_the_module(arm: Arm) -> None:
    calls = arm()
    assert importlib.import_module(NAME).value == 1
    assert calls == ["called"]
    importlib.reload(sys.modules[NAME])
    assert calls == ["called"]


def test_probes_do_not_disarm_it(arm: Arm) -> None:
    calls = arm()
    specs = [importlib.util.find_spec(NAME) for _ in range(3)]
    assert None not in specs
    assert calls == []
    importlib.import_module(NAME)
    assert calls == ["called"]


def test_a_module_loaded_from_a_probed_spec_calls_back(arm: Arm) -> None:
    calls = arm()
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert calls == ["called"]


def test_the_loader_is_as_before_afterwards(arm: Arm) -> None:
    arm()
    loader = importlib.import_module(NAME).__loader__
    assert "exec_module" not in vars(loader)


def test_a_failed_import_calls_back_only_when_it_succeeds(arm: Arm, tmp_path: Path) -> None:
    calls = arm()
    source = tmp_path / f"{NAME}.py"
    source.write_text("raise ImportError('not yet')", encoding="utf-8")
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(NAME)
    assert calls == []
    source.write_text("value = 12345", encoding="utf-8")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert calls == ["called"]


def test_a_module_that_is_there_already_calls_back_at_once(arm: Arm) -> None:
    importlib.import_module(NAME)
    assert arm() == ["called"]


def test_a_module_that_does_not_exist_stays_missing(arm: Arm, tmp_path: Path) -> None:
    calls = arm()
    (tmp_path / f"{NAME}.py").unlink()
    importlib.invalidate_caches()
    assert importlib.util.find_spec(NAME) is None
    assert calls == []


@pytest.mark.usefixtures("arm")
def test_callbacks_of_one_module_run_in_their_order() -> None:
    calls: list[int] = []
    ImportHook({NAME: lambda: calls.append(1)}, {}, {NAME: lambda: calls.append(2)}).install()
    importlib.import_module(NAME)
    assert calls == [1, 2]
