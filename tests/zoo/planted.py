"""The planted faults: real small scripts, each with what a diagnosis has to say of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

FAULTS = Path(__file__).parent / "faults"
MARK = "  # planted"
SCRIPT = "train.py"
MAX_STEPS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """A script, the line in it that is at fault, and the truth about it.

    `step` is the optimizer step at which the runs first part, None where no step shows it or
    chance decides; `classes` are the names of causes that are true, `operator` a part of the name
    of the operator that first gives another result, or that only one commit calls. `base` is the
    script before the change, None where the fault is one of repeating.
    """

    name: str
    summary: str
    script: str
    base: str | None
    line: int
    step: int | None
    classes: tuple[str, ...]
    operator: str
    outcome: str
    threads: int
    ranks: int
    metrics: str
    max_steps: int

    @property
    def place(self) -> str:
        """The line at fault as a report names it."""
        return f"{SCRIPT}:{self.line}"


def planted_faults() -> tuple[Planted, ...]:
    """All of them, by name."""
    return tuple(_read(path) for path in sorted(FAULTS.glob("*.py")))


def _read(path: Path) -> Planted:
    lines = path.read_text().splitlines()
    end = lines.index('"""')
    truth = yaml.safe_load("\n".join(lines[1:end]))
    (marked,) = [number for number, line in enumerate(lines) if line.endswith(MARK)]
    # the training must not read the answer: the docstring shrinks, and the lines keep their numbers
    script = ['"""A training."""', *("#" for _ in range(end)), *lines[end + 1 :]]
    script[marked] = lines[marked].removesuffix(MARK)
    base = None
    if "instead_of" in truth:
        indent = script[marked][: -len(script[marked].lstrip())]
        base = [*script[:marked], indent + truth["instead_of"], *script[marked + 1 :]]
    classes = truth["class"]
    return Planted(
        name=path.stem,
        summary=lines[0].removeprefix('"""'),
        script="\n".join(script) + "\n",
        base=None if base is None else "\n".join(base) + "\n",
        line=marked + 1,
        step=truth["step"],
        classes=(classes,) if isinstance(classes, str) else tuple(classes),
        operator=truth.get("operator", ""),
        outcome=truth.get("outcome", "nondeterministic" if base is None else "code-drift"),
        threads=truth.get("threads", 1),
        ranks=truth.get("ranks", 1),
        metrics=truth.get("metrics", ""),
        max_steps=truth.get("max_steps", MAX_STEPS),
    )
