"""A study: several arms of one commit, each with the same seeds, interleaved and not judged.

`seeds` has one arm and many seeds. `compare --arm` has several commands as arms. `scaling` has one
command with several numbers of ranks as arms.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gate.comparison.checks import first_not_finite
from gate.comparison.measurements import COMPARED_SCHEMA, ComparedCommits, provenance_of
from gate.comparison.studies import (
    MAKE_AGAIN,
    MOST_ARMS,
    MOST_RUNS,
    STUDY_SCHEMA,
    StudyArm,
    StudyDocument,
    StudyKind,
)
from gate.comparison.study_figures import arm_contrast, process_count, study_arm, study_runs
from gate.errors import DocumentError, EvidenceError, SettingsError
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.isolation.confined_look import read_apart
from gate.pipelines.adapters import Adapters
from gate.pipelines.prepared import prepare
from gate.pipelines.real_all_reduce import refuse_nodes
from gate.pipelines.trainings import Trainings
from gate.settings.gate_settings import GateSettings
from gate.settings.levels import SEEDS_END, VARIANT_NAME
from gate.settings.load import training_digest
from gate.settings.train_sections import MAX_LANES, RANKS_WORD, with_ranks
from gate.system.files.port import Files
from gate.text.document import COMMAND_HINT, command_words
from gate.text.documents import RecordForm, read_document
from gate.text.phrases import count
from gate.text.strict_json import outline_of_json
from gate.text.untrusted_text import safe_line
from gate.training.plan import plan_study, seed_label
from gate.training.runs import PlannedRun, RunMode
from gate.verdict.request import GateRequest

Commands = Mapping[str, tuple[str, ...]]
SHORT: Final = 12
TRAINING: Final = "training"
ARM_NAME: Final = re.compile(VARIANT_NAME)
MOST_RANKS: Final = 64
RANKS_ARM: Final = "ranks-"
EXAMPLE: Final = '--command "torchrun --standalone --nproc-per-node {ranks} train.py"'
MAX_DOCUMENT_BYTES: Final = 32 * 1024 * 1024
Printable = StudyDocument | ComparedCommits
FORM: Final[RecordForm[Printable]] = RecordForm(Printable)


def parsed_arms(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the arms that `--arm NAME=COMMAND` names, at least two; raise `SettingsError` else."""
    arms: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, _, text = word.partition("=")
        shown = safe_line(word)
        # the name becomes a part of run labels, and so of folder names
        if not ARM_NAME.fullmatch(name):
            raise SettingsError(
                f"--arm {shown}: the name must be 1 to 20 lower-case letters, digits or hyphens",
                hint='For example: --arm one="python train.py"',
            )
        if name in arms:
            raise SettingsError(f"--arm {name} is given twice", hint="Give each arm its own name.")
        try:
            arms[name] = command_words(text)
        except ValueError as error:
            raise SettingsError(f"--arm {shown}: {error}", hint=COMMAND_HINT) from error
        if not arms[name]:
            raise SettingsError(
                f"--arm {shown} has no command", hint='For example: --arm one="python train.py"'
            )
    if len(arms) < 2:  # noqa: PLR2004 - one alone is compared with nothing
        raise SettingsError("one --arm has nothing to be compared with", hint="Give two or more.")
    if len(arms) > MOST_ARMS:
        raise SettingsError(f"{len(arms)} arms, the limit is {MOST_ARMS}", hint="Give fewer.")
    return arms


def rank_arms(text: str, command: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the command for each number of ranks in a text such as `1,2,4`.

    The first arm is the reference for the others.
    """
    words = [word.strip() for word in text.split(",")]
    numbers = [int(word) for word in words if word.isdecimal() and len(word) < 5]  # noqa: PLR2004 - digits
    fit = len(numbers) == len(words) and all(1 <= number <= MOST_RANKS for number in numbers)
    if not fit or len(set(numbers)) < len(numbers) or not 2 <= len(numbers) <= MOST_ARMS:  # noqa: PLR2004 - as above
        raise SettingsError(
            f"--ranks {safe_line(text)}: needs 2 to {MOST_ARMS} different numbers from 1 to "
            f"{MOST_RANKS}",
            hint="For example: --ranks 1,2,4",
        )
    return {f"{RANKS_ARM}{number}": _with_ranks(command, number) for number in numbers}


def _with_ranks(command: tuple[str, ...], ranks: int) -> tuple[str, ...]:
    with_ranks_ = with_ranks(command, ranks)
    if with_ranks_ is not None:
        return with_ranks_
    raise SettingsError(
        f"nothing in the command says how many ranks it starts: {safe_line(shlex.join(command))}",
        hint=f"Say it with {RANKS_WORD}: {EXAMPLE}",
    )


def study_seeds(settings: GateSettings, count: int) -> tuple[int, ...]:
    """Return `count` seeds: train.seed, the settings' other seeds, then the following ones."""
    first = settings.train.seed
    following = ((first + step) % SEEDS_END for step in range(count + len(settings.seeds)))
    return tuple(dict.fromkeys((first, *settings.seeds, *following)))[:count]


def run_study(
    request: GateRequest, adapters: Adapters, kind: StudyKind, arms: Commands, *,
    seeds: int, mode: RunMode,
) -> StudyDocument:  # fmt: skip
    """Run every arm with every seed; raise `EvidenceError` if an arm has other ranks than asked.

    Runs go side by side only for many seeds of one arm: all other studies compare times.
    """
    if kind is StudyKind.SCALING:
        refuse_nodes(request.settings, "scaling")
    if seeds * len(arms) > MOST_RUNS:
        raise SettingsError(
            f"{len(arms)} arms of {seeds} runs each: the limit is {MOST_RUNS} runs",
            hint="Ask for fewer.",
        )
    chosen = study_seeds(request.settings, seeds)
    planned = plan_study(arms, chosen, mode)
    lanes = min(len(planned), MAX_LANES) if kind is StudyKind.SEEDS else 1
    with prepare(request, adapters, at_a_time=lanes) as prepared:
        trainings = Trainings(prepared)
        if kind is StudyKind.SEEDS:
            made = trainings.together(planned)
        else:
            made = tuple(_alone(trainings, plan, kind) for plan in planned)
        evidence = trainings.ended.evidence(made)
        isolation = trainings.ended.isolation.described
    return study_document(request, evidence, kind, arms, chosen, isolation=isolation)


def _alone(trainings: Trainings, planned: PlannedRun, kind: StudyKind) -> RunEvidence:
    run = trainings.run(planned)
    asked = planned.variant.removeprefix(RANKS_ARM)
    if kind is StudyKind.SCALING and process_count(run) != int(asked):
        raise EvidenceError(
            f"run {planned.label}: {asked} ranks were asked for, and the training reports "
            f"{process_count(run)}",
            hint=f"Let the command start that many processes that join one group: {EXAMPLE}",
        )
    return run


def study_document(
    request: GateRequest, evidence: EvidenceSet, kind: StudyKind, arms: Commands,
    seeds: tuple[int, ...], *, isolation: str,
) -> StudyDocument:  # fmt: skip
    """Return a study's document from its runs, which their labels identify."""
    settings, labelled = request.settings, {run.run.label: run for run in evidence.runs}
    by_arm = {name: tuple(labelled[seed_label(name, seed)] for seed in seeds) for name in arms}
    own = study_runs(by_arm, seeds, settings)
    own_by_arm = {name: tuple(run for run in own if run.arm == name) for name in arms}
    reference, *others = arms
    figures = {
        name: study_arm(
            name, arms[name], by_arm[name], own_by_arm[name], by_arm[reference][0], settings
        )
        for name in arms
    }
    return StudyDocument(
        kind=kind,
        provenance=provenance_of(evidence, isolation),
        mode=evidence.runs[0].run.mode,
        seeds=seeds,
        order=tuple(run.run.label for run in evidence.runs),
        arms=tuple(figures.values()),
        runs=own,
        contrasts=tuple(
            arm_contrast(
                (figures[reference], figures[name]),
                (by_arm[reference], by_arm[name]),
                (own_by_arm[reference], own_by_arm[name]),
                settings,
            )
            for name in others
        ),
        notes=tuple(_notes(settings, evidence, tuple(figures.values()))),
    )


def _notes(
    settings: GateSettings, evidence: EvidenceSet, arms: tuple[StudyArm, ...]
) -> Iterator[str]:
    """Yield what a reader should know before trusting a figure."""
    for arm in arms:
        if arm.ignores_seed:
            yield (
                f"{arm.name}: the seed has no effect, all runs gave the same result, bit for bit. "
                "Let the script take it from {seed} in train.command or from the variable "
                "REPRO_GATE_SEED"
            )
    odd = first_not_finite(evidence.runs, settings.compare.allow_not_finite)
    if odd is not None:
        where = "at the end" if odd.step is None else f"at step {odd.step}"
        yield f"{odd.run}: {odd.name} is not finite {where} ({odd.value})"
    if any(arm.ranks > 1 for arm in arms):
        yield (
            "the loss of several ranks is that of rank 0, over its own samples; a metric that the "
            "script reduces over all ranks compares better"
        )
    # the cores that this process may use, which can be fewer than the machine's
    cores, threads = len(os.sched_getaffinity(0)), evidence.runs[0].environment.part("threads")
    ranks = max(arm.ranks for arm in arms)
    thread_count = int(threads) if threads.isdecimal() else 1
    if ranks * thread_count > cores and not evidence.runs[0].environment.on_gpu:
        yield (
            f"{count(ranks, 'rank')} of {count(thread_count, 'thread')} share "
            f"{count(cores, 'core')}: their speed says more of this machine than of the training"
        )
    if evidence.gpu_missed:
        yield f"the training used no GPU: {evidence.gpu_missed.found}"


def packed_study(request: GateRequest, adapters: Adapters, path: Path) -> StudyDocument:
    """Return a study for this call's package; raise `SettingsError` for another training's."""
    study, shown = read_printable(adapters.files, path), safe_line(str(path))
    if not isinstance(study, StudyDocument):
        raise SettingsError(
            f"--study {shown}: compares two commits",
            hint="Name the study.json that seeds, scaling or compare --arm wrote.",
        )
    commit, origin = request.commit or adapters.git.resolve("HEAD"), study.provenance
    problem = ""
    # a study in a package has to describe the commit that the package is of
    if origin.commit != commit:
        problem = f"is of commit {origin.commit[:SHORT]}, and this call trains {commit[:SHORT]}"
    elif origin.changed_files:
        problem = "was made with uncommitted changes"
    elif origin.training_digest != training_digest(request.settings):
        problem = "was made under other training settings"
    if problem:
        raise SettingsError(f"--study {shown}: {problem}", hint=MAKE_AGAIN)
    return study


def read_printable(files: Files, path: Path) -> Printable:
    """Read a `study.json` or `compare.json` in a confined child: anyone may have written it."""
    shown = safe_line(str(path))
    data = files.read_bytes(path, max_bytes=MAX_DOCUMENT_BYTES)
    return read_apart(FORM, lambda: _parsed(data, shown), what=shown)


def _parsed(data: bytes, source: str) -> Printable:
    outline = outline_of_json(data, source, max_bytes=MAX_DOCUMENT_BYTES)
    version = outline.get("schema_version") if isinstance(outline, dict) else None
    if version == COMPARED_SCHEMA:
        return read_document(ComparedCommits, data, source)
    if version == STUDY_SCHEMA:
        return read_document(StudyDocument, data, source)
    raise DocumentError(
        f"{source}: is no {STUDY_SCHEMA} and no {COMPARED_SCHEMA}",
        hint="Name the study.json or compare.json that compare, seeds or scaling wrote.",
    )
