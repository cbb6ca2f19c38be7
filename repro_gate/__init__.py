"""repro-gate from Python: assert in a test that a training is reproducible, look at results.

- `assert_reproducible(command, max_steps=...)` trains twice and compares with the baseline; an
  `AssertionError` where the result differs
- `digest(path)`: the digest of a checkpoint or package
- `diff(a, b)`: the leaves in which two checkpoints differ, and by how much
- `verify(package, commit=..., trusted_keys=...)` checks a sealed package
- `load_verdict(path)`: a `verdict.json`, or the one in an output folder

With pytest, `@pytest.mark.reproducible("python train.py", max_steps=20)` asserts the same of a
test's training, and `pytest --repro-gate-update` records the results as the baseline.

Every function runs the repro-gate program in a separate process. This package imports only the
standard library, so no package of a project can collide with the program's modules. An error that
the program reports is raised as `ReproGateError`, with its hint. docs/python.md has more.
"""

from __future__ import annotations

from repro_gate.engine import ReproGateError
from repro_gate.functions import (
    Difference,
    Digest,
    NotReproducibleError,
    Verdict,
    VerifiedPackage,
    assert_reproducible,
    diff,
    digest,
    load_verdict,
    verify,
)

__all__ = [
    "Difference",
    "Digest",
    "NotReproducibleError",
    "ReproGateError",
    "Verdict",
    "VerifiedPackage",
    "assert_reproducible",
    "diff",
    "digest",
    "load_verdict",
    "verify",
]
