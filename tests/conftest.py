from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

# A required check must answer the same for the same commit; developers draw new examples, as few.
# `make nightly` looks for what thirty do not find.
settings.register_profile("ci", max_examples=30, derandomize=True, deadline=None)
settings.register_profile("developer", max_examples=30, deadline=None)
settings.register_profile("nightly", max_examples=1_000, deadline=None)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "developer")
)


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
