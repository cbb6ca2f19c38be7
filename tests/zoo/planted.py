"""The planted faults: real small scripts, each with what a diagnosis has to say of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import yaml

FAULTS = Path(__file__).parent / "faults"
RANKS = Path(__file__).parent / "ranks"
MARK = "  # planted"
SCRIPT = "train.py"
MAX_STEPS = 12
CHECKPOINT = "checkpoint.pt"
METRICS = "metrics.jsonl"

# What a project of its own would do, beside each fault and for all in the same words: the script
# imports it in a line of its header, and every commit holds it.
SAVING = f"""import os
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

optimizers = []
register_optimizer_step_post_hook(
    lambda optimizer, *_: None if optimizer in optimizers else optimizers.append(optimizer)
)


def save():
    # spawned workers import the script too, and rank 0 saves for all
    if not optimizers or os.environ.get("RANK", "0") != "0":
        return
    model = getattr(sys.modules["__main__"], "model", None)
    torch.save(
        {{
            "model": model.state_dict() if model is not None else {{}},
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        }},
        "{CHECKPOINT}",
    )
"""
LOGGING = f"""import json
import os

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

steps = []


@torch.no_grad()
def log(optimizer, *_):
    if os.environ.get("RANK", "0") != "0":
        return
    steps.append(optimizer)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    norm = sum(float(weight.double().square().sum()) for weight in weights)
    with open("{METRICS}", "a") as file:
        print(json.dumps({{"step": len(steps), "norm": norm}}), file=file)


register_optimizer_step_post_hook(log)
"""
ON_DEVICE = """import torch

torch.set_default_device("cuda")
"""


class Form(StrEnum):
    """What else a script does: nothing, save its state at its very end, or log after each step.

    Sampled, few of the steps are recorded with all their fingerprints, as where digests are dear.
    On a GPU it does the same as in the plain form, with every tensor there.
    """

    PLAIN = "plain"
    CHECKPOINT = "checkpoint"
    METRICS = "metrics file"
    SAMPLED = "sampled"
    DEVICE = "gpu"


# what needs no GPU
EVERYWHERE = (Form.PLAIN, Form.CHECKPOINT, Form.METRICS, Form.SAMPLED)
# file that a form needs beside the script: its name, and its text
HELPERS = {
    Form.CHECKPOINT: ("saving", SAVING),
    Form.METRICS: ("logging_steps", LOGGING),
    Form.DEVICE: ("on_device", ON_DEVICE),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """A script, the line in it that is at fault, and the truth about it.

    `step` is the optimizer step at which the runs first part, None where no step shows it or
    chance decides; `classes` are the names of causes that are true, `operator` a part of the name
    of the operator that first gives a different result, or that only one commit calls, and
    `gpu_operator` that of a GPU where it is another one. `base` is the script before the change,
    None where the fault is one of repeating. `saved_outcome` is what a saved optimizer makes of it,
    whose groups may have other parameters. `rank` is the one that has to be named, None where none
    is; `says` are words of an error, or of a finding, `sampled_says` those where few steps have
    fingerprints, and `gpu_says` those on a GPU, which observes each fourth step at most.
    """

    name: str
    summary: str
    script: str
    base: str | None
    line: int
    step: int | None
    classes: tuple[str, ...]
    operator: str
    gpu_operator: str
    outcome: str
    saved_outcome: str
    threads: int
    ranks: int
    metrics: str
    max_steps: int
    rank: int | None = None
    says: tuple[str, ...] = ()
    sampled_says: tuple[str, ...] = ()
    gpu_says: tuple[str, ...] = ()
    form: Form = Form.PLAIN

    @property
    def place(self) -> str:
        """The line at fault as a report names it."""
        return f"{SCRIPT}:{self.line}"


def planted_faults() -> tuple[Planted, ...]:
    """All of them, by name."""
    return tuple(_read(path) for path in sorted(FAULTS.glob("*.py")))


def rank_faults() -> tuple[Planted, ...]:
    """Those of several ranks, by name."""
    return tuple(_read(path) for path in sorted(RANKS.glob("*.py")))


def in_form(planted: Planted, form: Form) -> Planted | None:
    """The same fault in a script that does more; None where it logs by itself already.

    The lines keep their numbers: the header's last one imports what the form needs.
    """
    if form in {Form.PLAIN, Form.SAMPLED}:
        sampled = form is Form.SAMPLED and planted.sampled_says
        return replace(planted, form=form, says=sampled or planted.says)
    if form is Form.METRICS and planted.metrics:
        return None
    name, _ = HELPERS[form]
    end = "saving.save()\n" if form is Form.CHECKPOINT else ""

    def formed(script: str) -> str:
        if form is Form.DEVICE:
            # a device that a script names, such as autocast's
            script = script.replace('"cpu"', '"cuda"')
        head, comment, rest = script.rpartition("\n#\n")
        return f"{head}\nimport {name}\n{rest}{end}" if comment else script

    return replace(
        planted,
        form=form,
        operator=(form is Form.DEVICE and planted.gpu_operator) or planted.operator,
        says=(form is Form.DEVICE and planted.gpu_says) or planted.says,
        script=formed(planted.script),
        base=None if planted.base is None else formed(planted.base),
        outcome=planted.saved_outcome if form is Form.CHECKPOINT else planted.outcome,
        metrics=planted.metrics or (METRICS if form is Form.METRICS else ""),
    )


def helper_of(form: Form) -> tuple[str, str] | None:
    """Name and text of the file that a form needs beside the script."""
    found = HELPERS.get(form)
    return None if found is None else (f"{found[0]}.py", found[1])


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
    outcome = truth.get("outcome", "nondeterministic" if base is None else "code-drift")
    return Planted(
        name=path.stem,
        summary=lines[0].removeprefix('"""'),
        script="\n".join(script) + "\n",
        base=None if base is None else "\n".join(base) + "\n",
        line=marked + 1,
        step=truth["step"],
        classes=(classes,) if isinstance(classes, str) else tuple(classes),
        operator=truth.get("operator", ""),
        gpu_operator=truth.get("gpu_operator", ""),
        outcome=outcome,
        saved_outcome=truth.get("saved_outcome", outcome),
        threads=truth.get("threads", 1),
        ranks=truth.get("ranks", 1),
        metrics=truth.get("metrics", ""),
        max_steps=truth.get("max_steps", MAX_STEPS),
        rank=truth.get("rank"),
        says=tuple(truth.get("says", ())),
        sampled_says=tuple(truth.get("sampled_says", ())),
        gpu_says=tuple(truth.get("gpu_says", ())),
    )
