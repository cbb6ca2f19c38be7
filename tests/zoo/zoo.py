"""Let the gate diagnose every planted fault, and write what it said beside the truth.

    python tests/zoo/zoo.py [--write docs/results/diagnosis-zoo.md] [--form plain] [NAME ...]

Each script runs in four forms: as it is, with a checkpoint that it saves at its end, with a file of
metrics that it writes after each step, and with fingerprints of few steps. `--form gpu` puts all
tensors of the plain form on a GPU; scripts that cannot run so are left out, with torch's reason.

Ends with 1 where a diagnosis names something that is false, a fault is missed, or fewer than nine
of ten are right in every column.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

import yaml
from gate_bench import Bench
from git_workshop import Repository
from planted import (
    CHECKPOINT,
    EVERYWHERE,
    RANKS,
    SCRIPT,
    Form,
    Planted,
    helper_of,
    in_form,
    planted_faults,
    rank_faults,
)

from gate.diagnosis.diagnosis import Diagnosis
from gate.errors import GateError
from gate.evidence.trace import HowKnown
from gate.verdict.verdict import Verdict

LEAST_SHARE: Final = 0.9
BUDGET_SECONDS: Final = 600
# beside each planted change: lines that never run, and one that says the same in other words
# (which git shows as a hunk of their own, since a line that nobody changes stands in between)
END: Final = "# end\n"
DECOY: Final = f"{END}\n\ndef reached_by_nothing():\n    return torch.rand(3)\n"


class Score(StrEnum):
    """What a diagnosis is worth; `partly`: nothing false, and not all that was to be said.

    A script that does not run in a form by itself says nothing of the gate.
    """

    RIGHT = "right"
    PARTLY = "partly"
    WRONG = "wrong"
    MISSED = "missed"
    LEFT_OUT = "left out"


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What the gate said of a fault; `reason` says why that is not right."""

    planted: Planted
    outcome: str
    step: int | None
    cause_class: str
    line: str
    operator: str
    sentence: str
    score: Score
    reason: str = ""


def diagnosed(planted: Planted, place: Path) -> Verdict:
    """Gate a real repository that holds the fault."""
    project = Repository(place / "project")
    project.write("repro-gate.yml", _settings(planted))
    if (helper := helper_of(planted.form)) is not None:
        project.write(*helper)
    project.write(SCRIPT, planted.script if planted.base is None else planted.base + END)
    base = project.commit()
    bench = Bench(project, place / "out")
    if planted.base is None:
        return bench.gate().verdict
    base = bench.record()
    project.write(SCRIPT, planted.script.replace("\n#\n", "\n# reworded\n", 1) + DECOY)
    project.commit()
    return bench.gate(base=base).verdict


def _command(planted: Planted) -> list[str]:
    if planted.ranks > 1:
        return ["torchrun", "--nproc-per-node", str(planted.ranks), SCRIPT]
    return ["python", SCRIPT]


def _settings(planted: Planted) -> str:
    train: dict[str, object] = {"command": _command(planted), "max_steps": planted.max_steps}
    if planted.metrics:
        train["metrics"] = {"file": planted.metrics}
    if planted.form is Form.CHECKPOINT:
        train["checkpoint"] = CHECKPOINT
    settings: dict[str, object] = {"version": 1, "train": train}
    settings["determinism"] = {"threads": planted.threads}
    if planted.form is Form.SAMPLED:
        # nothing for fingerprints: the steps by which the costs are known, and few behind them
        settings["record"] = {"free_seconds": 0, "overhead_budget": 1e-6}
    # a price names no cause, and took two of the trainings
    settings["cost"] = {"when": "never"}
    # what is found must not hang on how busy this machine is
    settings["diagnosis"] = {"budget_seconds": BUDGET_SECONDS}
    return yaml.safe_dump(settings)


def told(planted: Planted) -> Told:
    """One fault in a folder of its own, and the score of what was said."""
    with tempfile.TemporaryDirectory() as folder:
        if planted.form is Form.DEVICE and (why := _obstacle(planted, Path(folder))):
            return _unjudged(planted, Score.LEFT_OUT, why)
        try:
            verdict = diagnosed(planted, Path(folder))
        except GateError as error:
            return _refused(planted, error)
    found = verdict.diagnosis
    trace = found.trace if found is not None else None
    line = _line(verdict)
    score, reason = _scored(planted, verdict, line)
    return Told(
        planted=planted,
        outcome=verdict.outcome.value,
        step=found.first_step if found is not None else None,
        cause_class=found.cause_class.value if found is not None and found.cause_class else "",
        line=line,
        operator=trace.operator if trace is not None else "",
        sentence=_sentence(found),
        score=score,
        reason=reason,
    )


def _obstacle(planted: Planted, place: Path) -> str:
    """Why the script does not run by itself, without any gate; empty where it does."""
    bare = place / "bare"
    bare.mkdir()
    (bare / SCRIPT).write_text(planted.script, "utf-8")
    if (helper := helper_of(planted.form)) is not None:
        (bare / helper[0]).write_text(helper[1], "utf-8")
    ended = subprocess.run(_command(planted), cwd=bare, capture_output=True, text=True, check=False)
    lines = ended.stderr.strip().splitlines() or ["no message"]
    return lines[-1] if ended.returncode else ""


def _refused(planted: Planted, error: GateError) -> Told:
    """A run that cannot be judged: its message has to name what is true."""
    lacking = [words for words in planted.says if words not in error.message]
    if planted.outcome == "error" and not lacking:
        return _unjudged(planted, Score.RIGHT, "", error.message)
    return _unjudged(planted, Score.MISSED, f"the message lacks {lacking}: {error.message}")


def _unjudged(planted: Planted, score: Score, reason: str, sentence: str = "") -> Told:
    return Told(
        planted=planted,
        outcome="none" if score is Score.LEFT_OUT else "error",
        step=None,
        cause_class="",
        line="",
        operator="",
        sentence=sentence,
        score=score,
        reason=reason,
    )


def _line(verdict: Verdict) -> str:
    """The line that a reader is sent to first."""
    found, change = verdict.diagnosis, verdict.change
    if found is not None and change is not None and change.how is HowKnown.FITS:
        return change.hunks[0].place
    if found is None:
        return ""
    if found.likely:
        return found.likely[0].place
    if found.trace is not None and found.trace.changed:
        return found.trace.changed[0].place
    if found.trace is not None and found.trace.names_a_call and found.trace.place:
        return found.trace.place
    return found.suspects[0].place if found.suspects else ""


def _sentence(found: Diagnosis | None) -> str:
    if found is None:
        return ""
    return found.cause if found.trace is None else f"{found.cause}; {found.trace.sentence}"


def _scored(planted: Planted, verdict: Verdict, line: str) -> tuple[Score, str]:
    found = verdict.diagnosis
    if verdict.outcome.value != planted.outcome:
        return Score.MISSED, f"the outcome is {verdict.outcome.value}"
    if planted.says:
        messages = " ".join(finding.message for finding in verdict.findings)
        lacking = [words for words in planted.says if words not in messages]
        return (Score.MISSED, f"no finding says {lacking}") if lacking else (Score.RIGHT, "")
    if planted.outcome in {"reproduced", "no-baseline"}:
        return (Score.RIGHT, "") if found is None else (Score.WRONG, "a cause where there is none")
    if found is None:
        return Score.MISSED, "no diagnosis"
    false = list(_false(planted, found, line))
    if false:
        return Score.WRONG, "; ".join(false)
    missing = list(_missing(planted, found, line))
    return (Score.PARTLY, "; ".join(missing)) if missing else (Score.RIGHT, "")


def _false(planted: Planted, found: Diagnosis, line: str) -> Iterator[str]:
    """What was named and is not so."""
    if planted.step is not None and found.first_step != planted.step:
        yield f"step {found.first_step} instead of {planted.step}"
    if found.cause_class is not None and found.cause_class.value not in planted.classes:
        yield f"class {found.cause_class.value}"
    # a line at which a value from outside came in is where it was seen, and blames nothing
    blamed = bool(found.likely) or bool(found.trace is not None and found.trace.changed)
    if blamed and line != planted.place:
        yield f"line {line}"
    if planted.rank is not None and found.ranks not in {(), (planted.rank,)}:
        yield f"ranks {found.ranks}"
    operator = found.trace.operator if found.trace is not None else ""
    if planted.operator and operator and planted.operator not in operator:
        yield f"operator {operator}"


def _missing(planted: Planted, found: Diagnosis, line: str) -> Iterator[str]:
    if line != planted.place:
        yield "the line is not named" if not line else f"the line is not named, but {line}"
    if planted.rank is not None and not found.ranks:
        yield "no rank"
    if found.cause_class is None and "none" not in planted.classes:
        yield "no class"
    if planted.operator and (found.trace is None or not found.trace.operator):
        yield "no operator"


def table(rows: list[Told]) -> Iterator[str]:
    """The page in Markdown."""
    counts = {score: sum(row.score is score for row in rows) for score in Score}
    yield "# Diagnosis of planted faults\n"
    yield (
        "`make test-zoo`: each script of `tests/zoo/faults` has one line at fault. The gate sees "
        "the script alone; what is true stands in a header that is taken out. *Right* is all of "
        "step, class, line and operator; *partly* is nothing false, and something not said. "
        "*Checkpoint*: the same script also saves its state at its end (`train.checkpoint`); "
        "*metrics file*: it also logs after each step (`train.metrics.file`); *sampled*: only some "
        "steps have fingerprints (`record`); *gpu*: every tensor is on the GPU "
        "(`zoo.py --form gpu`).\n"
    )
    yield (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}: of {len(rows)} calls "
        + ", ".join(f"{count} {score}" for score, count in counts.items())
        + ".\n"
    )
    forms = [form for form in Form if any(row.planted.form is form for row in rows)]
    columns = ("fault", "what it is", "outcome", "step", "class", "line", "operator", *forms)
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    by_name: dict[str, dict[Form, Told]] = {}
    for row in rows:
        by_name.setdefault(row.planted.name, {})[row.planted.form] = row
    for name, made in by_name.items():
        row = next(iter(made.values()))
        folder = "ranks" if (RANKS / f"{name}.py").exists() else "faults"
        cells = (
            f"[`{name}`](../../tests/zoo/{folder}/{name}.py)",
            row.planted.summary.rstrip("."),
            row.outcome,
            "" if row.step is None else str(row.step),
            row.cause_class,
            row.line,
            f"`{row.operator}`" if row.operator else "",
            *(_said(made.get(form)) for form in forms),
        )
        yield f"| {' | '.join(cells)} |"


def _said(row: Told | None) -> str:
    if row is None:
        return "logs by itself"
    return f"{row.score}: {row.reason}" if row.reason else row.score.value


def main() -> int:
    """Run the zoo; see the module's text."""
    parser = argparse.ArgumentParser(description="Diagnose planted faults.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--form", type=Form, choices=[*Form], action="append")
    chosen = parser.parse_args()
    faults = [
        formed
        for one in (*planted_faults(), *rank_faults())
        if not chosen.names or one.name in chosen.names
        for form in chosen.form or EVERYWHERE
        if (formed := in_form(one, form)) is not None
    ]
    rows = []
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for row in pool.map(told, faults):
            rows.append(row)
            print(
                f"{row.score:7} {row.planted.name} ({row.planted.form}): {row.reason}", flush=True
            )
            if row.score is not Score.RIGHT:
                print(f"        said: {row.line} {row.cause_class} {row.operator}: {row.sentence}")
    right = sum(row.score is Score.RIGHT for row in rows)
    broken = [row for row in rows if row.score in {Score.WRONG, Score.MISSED}]
    judged = sum(row.score is not Score.LEFT_OUT for row in rows)
    print(f"{right} of {judged} right, {len(broken)} wrong or missed")
    if chosen.write:
        chosen.write.write_text("\n".join(table(rows)) + "\n", "utf-8")
    return 1 if broken or right < LEAST_SHARE * judged else 0


if __name__ == "__main__":
    sys.exit(main())
