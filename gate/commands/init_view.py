"""What `init` wrote, and the commands that come next, for a terminal; print it unwrapped."""

from __future__ import annotations

import shlex

from gate.pipelines.records_scaffold import DEFAULT_BASELINE, Plan, Written
from gate.report.escape import clean
from gate.report.terminal_lines import filled, step_lines
from gate.settings.gate_settings import FILE_NAME

WIDTH = 80
SHOWN = 4


def init_text(done: Written) -> str:
    """What was found and written, then what to type next."""
    lines = [*_found(done), *_files(done.plan), "", "Next:"]
    if done.folder:
        lines += step_lines("Go to the root of the work tree:", f"cd {shlex.quote(done.folder)}")
    ready = "" if done.has_baseline else "; only the baseline is missing"
    at = _at(done.plan)
    lines += [
        *_data(done),
        *_commit(done),
        *step_lines(f"See whether this machine is ready{ready}:", f"repro-gate doctor{at}"),
        *_gate(done),
        *step_lines("For pull requests: set runs-on in the workflow to your runner, and push."),
    ]
    return "\n".join(lines)


def _at(plan: Plan) -> str:
    """The option that names the settings file, where a call at the root would take another one."""
    return "" if plan.config == FILE_NAME else f" --config {shlex.quote(plan.config)}"


def _gate(done: Written) -> list[str]:
    gate = f"repro-gate gate{_at(done.plan)}"
    if done.has_baseline:
        return step_lines("Train twice and compare with the baseline:", gate)
    usual = done.plan.baseline == DEFAULT_BASELINE
    return [
        *step_lines("Train twice; without a baseline this ends in exit code 1:", gate),
        *step_lines(
            "Accept the result as the baseline; from then on the gate passes:",
            f'repro-gate baseline accept{_at(done.plan)} --reason "first baseline"',
            f"git add {'.repro-gate' if usual else shlex.quote(done.plan.baseline)}",
            'git commit -m "Baseline"',
            gate,
        ),
    ]


def _found(done: Written) -> list[str]:
    training = done.plan.training
    if training is None:
        return []
    why = f"{training.script} {training.why}. " if training.why else ""
    where = "" if training.workdir == "." else f" in {training.workdir}"
    text = (
        f"{why}The gate runs `{training.command}`{where} and stops it after {done.max_steps} "
        "optimizer steps."
    )
    return [*filled(clean(text), WIDTH), ""]


def _files(plan: Plan) -> list[str]:
    rows = [f"  written  {path}" for path in plan.new]
    if plan.ignore:
        rows.append(f"  added    to .gitignore: {' '.join(plan.ignore)}")
    return rows + [f"  kept     {path}: it was there already" for path in plan.kept]


def _data(done: Written) -> list[str]:
    """A clean checkout lacks what git ignores: better said now than by the first run."""
    return step_lines(clean(done.ignored_data)) if done.ignored_data else []


def _commit(done: Written) -> list[str]:
    if not done.has_commit:
        return step_lines(
            "There is no commit yet; the gate trains what one holds, the data included:",
            "git add .",
            'git commit -m "First commit"',
        )
    lines: list[str] = []
    if done.add:
        names = " ".join(map(shlex.quote, done.add))
        lines += step_lines(
            "Commit them: the gate trains what a commit holds.",
            f"git add {names}",
            'git commit -m "repro-gate"',
        )
    if done.uncommitted:
        shown = ", ".join(done.uncommitted[:SHOWN])
        more = f" and {len(done.uncommitted) - SHOWN} more" if len(done.uncommitted) > SHOWN else ""
        lines += step_lines(
            f"Commit these too, or add them to .gitignore: {shown}{more}. The gate refuses "
            "uncommitted changes."
        )
    return lines
