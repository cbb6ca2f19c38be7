"""Why no process took an optimizer step, as far as the processes themselves told it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gate.errors import EvidenceError
from gate.evidence.children import UnattestedChild, started_without
from gate.evidence.harness_files import Trainer, Untrained
from gate.evidence.processes_harness_files import HarnessFile, ProcessFiles, read_own_document
from gate.evidence.shut_out import GENERAL, shut_out_by, shut_out_reason
from gate.system.files.port import Files
from gate.training.runs import RunRecord

LIMITS = "docs/limits.md lists what the harness sees."
NAMES: dict[Trainer, str] = {
    "jax": "JAX",
    "keras": "Keras",
    "lightgbm": "LightGBM",
    "numpy": "NumPy",
    "scipy.optimize": "SciPy",
    "sklearn": "scikit-learn",
    "tensorflow": "TensorFlow",
    "xgboost": "XGBoost",
}
# beside torch these train by themselves; the rest are imported by libraries for other ends
OF_THEIR_OWN: dict[Trainer, str] = {
    "keras": "Keras has optimizers of its own, also on torch",
    "scipy.optimize": "SciPy's optimizers (BoTorch fits by them) take no torch step",
    "lightgbm": "LightGBM trains without torch",
    "xgboost": "XGBoost trains without torch",
}


def read_untrained(
    files: Files, out: Path, found: tuple[ProcessFiles, ...]
) -> tuple[Untrained, ...]:
    """What each process said that ended without a step."""
    return tuple(
        read_own_document(files, out, process, HarnessFile.UNTRAINED, Untrained)
        for process in found
        if HarnessFile.UNTRAINED in process.kinds
    )


def not_loaded(
    run: RunRecord,
    children: tuple[UnattestedChild, ...],
    told: tuple[Untrained, ...],
    said: tuple[str, ...],
) -> EvidenceError:
    """The fault that no process attested its settings; `said` is the end of the output."""
    if children or not told or shut_out_reason(run.argv):
        return EvidenceError(
            "no process of the training loaded the harness, so nothing was observed",
            hint=shut_out_by(run.argv, children),
            details=said,
        )
    names = list(_imported(told))
    # nearly everything imports NumPy
    shown = [name for name in names if name != "numpy"] or names
    also = f" It imported {' and '.join(NAMES[name] for name in shown)}." if shown else ""
    return EvidenceError(
        "the script never imported torch",
        hint=f"The gate judges PyTorch trainings only.{also} If the script should use torch, "
        "check what train.command starts.",
        details=said,
    )


def no_step(
    children: tuple[UnattestedChild, ...], told: tuple[Untrained, ...], said: tuple[str, ...]
) -> EvidenceError:
    """The fault that no process took an optimizer step."""
    if children:
        return EvidenceError(
            "no step was recorded, and the training started Python without the harness",
            hint=f"{started_without(children)}. {GENERAL}",
            details=said,
        )
    stopped = [one.backwards for one in told if one.stopped]
    if stopped:
        return EvidenceError(
            f"the script never called an optimizer in {max(stopped):,} backward passes",
            hint="It updates its weights by hand, which the harness cannot see: update them with "
            "a torch optimizer.",
            details=said,
        )
    others = [OF_THEIR_OWN[name] for name in _imported(told) if name in OF_THEIR_OWN]
    of_others = f" {'; '.join(others)}. {LIMITS}" if others else ""
    return EvidenceError(
        "the script exited with 0 before any optimizer step",
        hint="The smoke training must reach the step() of a torch optimizer; the details show "
        f"what the script printed last.{of_others}",
        details=said,
    )


def _imported(told: tuple[Untrained, ...]) -> Iterator[Trainer]:
    yield from dict.fromkeys(name for one in told for name in one.imported)
