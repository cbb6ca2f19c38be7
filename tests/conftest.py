from __future__ import annotations

import compileall
import gc
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings
from scenes import SCENES

pytest_plugins = ("real_parts",)

# Rewritten files of tests are kept for the next worker and run; what tests start decides as ever.
sys.dont_write_bytecode = False

# A required check must answer the same for the same commit; developers draw new examples, as few.
# `make nightly` looks for what thirty do not find.
FEW = settings(max_examples=30, stateful_step_count=20, deadline=None)
settings.register_profile("ci", FEW, derandomize=True)
settings.register_profile("developer", FEW)
settings.register_profile("nightly", max_examples=1_000, deadline=None)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "developer")
)

# Folders of tests about texts and trees of syntax, which run nothing of `gate/`.
NOT_FOLLOWED = frozenset(("architecture", "documents"))


def pytest_configure(config: pytest.Config) -> None:
    """Before the workers start: a folder for scenes, and byte-code for every fresh process."""
    if not hasattr(config, "workerinput"):
        os.environ[SCENES] = tempfile.mkdtemp(prefix="repro-gate-scenes-")
        compileall.compile_dir(Path(__file__).resolve().parents[1] / "gate", quiet=2)
        if os.environ.get("REPRO_GATE_TESTS_PROGRESS"):
            config.pluginmanager.register(Remaining(config))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Nothing of a run is there for the next one."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(SCENES), ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Coverage follows the first case of each test: following takes as long again as the test.

    Its figure is a lower bound, since lines that only further cases or drawn examples reach are
    not counted.
    """
    seen: set[object] = set()
    for item in items:
        function = getattr(item, "function", item)
        drawn = "hypothesis" in item.keywords
        if drawn or function in seen or item.path.parent.name in NOT_FOLLOWED:
            item.add_marker("no_cover")
        seen.add(function)
    # Workers take whole files in this order. A file that trains takes minutes, however few tests it
    # has; begun last, it would keep one worker busy while the others have nothing left.
    trains = {item.path for item in items if "torch" in item.keywords}
    items.sort(key=lambda item: item.path not in trains)


def pytest_collection_finish() -> None:
    """What collecting has made stays: a walk over all objects, as the harness does it, skips it."""
    gc.collect()
    gc.freeze()


class Remaining:
    """Says now and then how many tests are left, and for how long at the pace so far."""

    EVERY_SECONDS = 30.0

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._begun = self._said = time.monotonic()
        self._tests = 0
        self._done = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Of this process, where there are no workers."""
        self._tests = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Each worker has all of them."""
        self._tests = len(ids)

    def pytest_runtest_logfinish(self) -> None:
        """A test is done, here or in a worker."""
        self._done += 1
        now = time.monotonic()
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or now - self._said < self.EVERY_SECONDS:
            return
        self._said = now
        minutes = (now - self._begun) / self._done * (self._tests - self._done) / 60
        left = "less than a minute" if minutes < 1 else f"about {minutes:.0f} min"
        # behind the dots of a line that pytest has begun
        terminal.write_line(f"\n{self._done} of {self._tests} tests, {left} left")


class WithoutTorch(pytest.Module):
    """A file of tests, left out when it imports torch, where there is no small build of torch.

    Only `make test-pythons` asks for that: elsewhere a missing torch is an error.
    """

    def _getobj(self) -> ModuleType:
        try:
            module: ModuleType = super()._getobj()  # type: ignore[no-untyped-call]  # pytest's own
        except self.CollectError as error:
            if "No module named 'torch'" not in str(error):
                raise
            pytest.skip("imports torch, which is not here", allow_module_level=True)
        return module


if os.environ.get("REPRO_GATE_TESTS_WITHOUT_TORCH"):

    def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
        """Every file of tests may be one of those."""
        return WithoutTorch.from_parent(parent, path=module_path)
