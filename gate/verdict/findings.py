"""Findings: what a reader should know beside the outcome.

Each function answers the question in its docstring, and returns () where there is nothing to say.
"""

from __future__ import annotations

from gate.baseline.entry import BaselineEntry
from gate.checkpoint.digest import captured_digest
from gate.comparison.differences import Comparison
from gate.data.data_sets import move_sentence
from gate.diagnosis.diagnosis import CodePlace
from gate.evidence.observations import CheckpointLack, started_without
from gate.evidence.run_evidence import EvidenceSet, MetricSource, RunEvidence
from gate.isolation.modes import Isolation, IsolationMode
from gate.settings.levels import CostSettings
from gate.text.phrases import count, joined, rank_words
from gate.verdict.facts import Facts
from gate.verdict.verdict import DATA_MOVED, BaselineFacts, Finding, Severity

SHOWN_FILES = 5
SHOWN_PACKAGES = 6

SHOWN_PARAMETERS = 3
# The prefix of the only model's parameters. With one model its number says nothing.
ONLY_MODEL = "model/0/"

MAX_WEAKER = 5
WITHOUT_ANY = "what it makes deterministic is not deterministic there"
THREADS = "sums may be split differently among threads there"
WITHOUT = {
    "PYTHONHASHSEED": "set and hash order differ from run to run there",
    "OMP_NUM_THREADS": THREADS,
    "OMP_DYNAMIC": THREADS,
    "MKL_NUM_THREADS": THREADS,
    "MKL_DYNAMIC": THREADS,
}


def warning(code: str, *, message: str, remedy: str) -> tuple[Finding, ...]:
    """Return a single finding that a reader should act on."""
    return (Finding(code=code, severity=Severity.WARNING, message=message, remedy=remedy),)


def notice(code: str, *, message: str, remedy: str = "") -> tuple[Finding, ...]:
    """Return a single finding that is worth knowing."""
    return (Finding(code=code, severity=Severity.NOTICE, message=message, remedy=remedy),)


def dirty_tree(evidence: EvidenceSet) -> tuple[Finding, ...]:
    """Was code with uncommitted changes trained?"""
    files = evidence.changed_files
    if not files:
        return ()
    names = ", ".join(files[:SHOWN_FILES]) + (", ..." if len(files) > SHOWN_FILES else "")
    return warning(
        "dirty-tree",
        message=f"{count(len(files), 'uncommitted change')}: {names}",
        remedy="Commit them: until then the result belongs to no commit and is not sealed.",
    )


def repeated_alone(evidence: EvidenceSet) -> tuple[Finding, ...]:
    """Did a run fail only while a different run was running beside it?"""
    records = [run.run for run in evidence.runs if run.run.failed_beside]
    if not records:
        return ()
    reasons = [
        f"{record.label} (it failed side by side with {' and '.join(record.failed_beside)})"
        for record in records
    ]
    return notice(
        "repeated-alone",
        message=f"re-run on its own: {', '.join(reasons)}",
        remedy="Two runs do not fit side by side here: runs.parallel: never "
        "makes one after the other from the start.",
    )


def beside_the_verdict(
    evidence: EvidenceSet, checkpoint: str | None, history_problem: str
) -> tuple[Finding, ...]:
    """Is anything missing that belongs to the verdict, in the package or in the history?"""
    return (*not_packed(evidence, checkpoint), *history(history_problem))


def not_packed(evidence: EvidenceSet, checkpoint: str | None) -> tuple[Finding, ...]:
    """Is what the script saved missing from the package, although it was compared?"""
    saved = evidence.saved
    if saved is None or not saved.left_out:
        return ()
    return notice(
        "not-packed",
        message=f"{checkpoint} is not in the package: {saved.left_out}",
        remedy="Its digest is sealed anyway. To pack it, let the script save under plain names.",
    )


def checkpoint_incomplete(run: RunEvidence, checkpoint: str | None) -> tuple[Finding, ...]:
    """Does the checkpoint lack state that this training used, so that no resume is exact?"""
    resumability = run.resumability
    if resumability is None or not resumability.lacks or checkpoint is None:
        return ()
    missing = [lack for lack in resumability.lacks if lack.known]
    untold = [lack for lack in resumability.lacks if not lack.known]
    sentences = []
    if missing and resumability.model_alone:
        sentences.append(
            f"{checkpoint} contains no training state except tensors such as weights: a resume "
            f"lacks {joined(map(_lack, missing))}"
        )
    elif missing:
        sentences.append(
            f"{checkpoint} cannot be resumed exactly: it lacks {joined(map(_lack, missing))}"
        )
    if untold:
        sentences.append(
            f"it is unknown whether {checkpoint} contains {joined(map(_lack, untold))}"
        )
    places = [CodePlace.known(lack.file, lack.line) for lack in missing]
    used = next((place for place in places if place is not None), None)
    return (
        Finding(
            code="checkpoint-incomplete",
            severity=Severity.NOTICE,
            message="; ".join(sentences),
            remedy=_save_it(
                model_alone=resumability.model_alone and bool(missing), known=bool(missing)
            ),
            code_place=used or CodePlace.known(resumability.file, resumability.line),
        ),
    )


def checkpoint_overwritten(run: RunEvidence, checkpoint: str | None) -> tuple[Finding, ...]:
    """Does the script save over its last checkpoint, so that a kill during the save leaves none?"""
    resumability = run.resumability
    if resumability is None or not resumability.overwritten or checkpoint is None:
        return ()
    place = CodePlace.known(resumability.file, resumability.line)
    who = f"{resumability.file}:{resumability.line}" if resumability.line else "the training"
    return (
        Finding(
            code="checkpoint-overwritten",
            severity=Severity.NOTICE,
            message=f"{who} saves {checkpoint} over the previous save: a process that is "
            "killed during a save leaves no complete checkpoint",
            remedy="Save under another name in the same folder, call os.fsync, and rename it with "
            "os.replace.",
            code_place=place,
        ),
    )


def _lack(lack: CheckpointLack) -> str:
    place = f"{lack.file}:{lack.line}" if lack.line else ""
    why = ", ".join(filter(None, (lack.why, place)))
    return f"the {lack.what} ({why})" if why else f"the {lack.what}"


def _save_it(*, model_alone: bool, known: bool) -> str:
    if model_alone:
        return (
            "No action needed if it only serves inference. To resume from it, save what "
            "docs/resume.md lists."
        )
    if not known:
        return "Save it in a form that docs/resume.md lists, so that the gate recognises it."
    return "Save it with the rest and load it before the first step: docs/resume.md has the lines."


def gpu_missed(evidence: EvidenceSet) -> tuple[Finding, ...]:
    """Did it run on a CPU only because it could not use the machine's GPU?"""
    missed = evidence.gpu_missed
    if missed is None:
        return ()
    return warning(
        "gpu-unused",
        message=f"the training ran on the CPU, although the machine has a GPU: {missed.found}",
        remedy=missed.fix,
    )


def device_groups(used: Isolation) -> tuple[Finding, ...]:
    """Was the training's account given groups, so that it can open the GPUs' device files?"""
    if not used.device_groups:
        return ()
    groups = ", ".join(map(str, used.device_groups))
    return notice(
        "device-groups",
        message=f"the training's account was given the groups {groups}: they own the device "
        "files of the GPUs, which are not world-accessible",
        remedy="No action needed if these groups give access to nothing else on this machine.",
    )


def changed_by_pull_request(paths: tuple[str, ...], new_baseline: str) -> tuple[Finding, ...]:
    """Does the pull request change the policy files?

    `new_baseline` is the pull request's baseline where its own run reproduces it, else "". Only
    that one decided, because the base commit's policy allows it; everything else came from the base
    (T2).
    """
    return tuple(_changed(path, decided=path == new_baseline) for path in paths)


def _changed(path: str, *, decided: bool) -> Finding:
    if decided:
        message = f"this pull request includes a new {path}, and it decided the outcome"
        remedy = "Merge only if the new result is what you want."
    else:
        message = f"this pull request changes {path}; the base commit's version was used"
        remedy = "Review that change separately."
    return Finding(code="policy-changed", severity=Severity.WARNING, message=message, remedy=remedy)


def trained_all_the_same(why: str) -> tuple[Finding, ...]:
    """Did the call train although `runs.unaffected` asks for an answer without a run?"""
    if not why:
        return ()
    return notice(
        "trained-anyway", message=f"this call trained although runs.unaffected is answer: {why}"
    )


def settings_origin(settings_from: str, *, pull_request: bool) -> tuple[Finding, ...]:
    """Did the pull request have to use its own settings, because the base has none?"""
    if not pull_request or settings_from == "base":
        return ()
    return warning(
        "settings-from-head",
        message="the base commit has no settings file, so this pull request's settings were used",
        remedy="After the merge the gate reads them from the base commit.",
    )


def history(problem: str) -> tuple[Finding, ...]:
    """Could earlier runs not be shown, although the settings ask for them?"""
    if not problem:
        return ()
    return (
        Finding(
            code="history",
            severity=Severity.NOTICE,
            message=problem,
            remedy="A run on the default branch with `contents: write` updates it; check out "
            "with fetch-depth: 0 to see it here. Informational only.",
        ),
    )


def stale_baseline(facts: BaselineFacts | None) -> tuple[Finding, ...]:
    """Is the baseline older than the settings allow?"""
    if facts is None or not facts.stale:
        return ()
    return notice(
        "baseline-stale",
        message=f"the baseline is {facts.age_days} days old",
        remedy="Record it again while results still agree: repro-gate baseline record",
    )


def ended_early(run: RunEvidence, max_steps: int) -> tuple[Finding, ...]:
    """Did the script end by itself before it reached the number of steps that was asked for?"""
    if len(run.steps) >= max_steps:
        return ()
    return notice(
        "ended-early",
        message=f"the script ended by itself after {len(run.steps):,} of {max_steps:,} "
        "optimizer steps (train.max_steps)",
        remedy="No action needed if that is the whole training.",
    )


def replicas_differ(run: RunEvidence) -> tuple[Finding, ...]:
    """Do ranks have different weights that are meant to be equal, and after which step?"""
    drift = run.replica_drift
    if drift is None:
        return ()
    names = [name.removeprefix(ONLY_MODEL) for name in drift.parameters[:SHOWN_PARAMETERS]]
    rest = drift.differing - len(names)
    more = f" and {rest:,} more" if rest > 0 else ""
    at_end = "" if drift.at_end else " at the end"
    what = f": {', '.join(names)}{more}{at_end}" if names else ""
    until = f" (equal after step {drift.equal_until})" if drift.equal_until else ""
    is_single = len(drift.ranks) == 1
    after = "at the end" if drift.at_end else f"after step {drift.step}"
    return warning(
        "replicas-differ",
        message=f"{rank_words(drift.ranks)} {'has' if is_single else 'have'} different weights "
        f"than rank {drift.like} {after}{until}, although DistributedDataParallel keeps "
        f"them equal{what}",
        remedy="Look for what changes weights or gradients on some ranks only: no_sync() in the "
        "last pass before an update, a write into a parameter, a different learning rate. If it "
        "is intended, as in local SGD, ignore this.",
    )


def weaker_source(run: RunEvidence) -> tuple[Finding, ...]:
    """Which metrics come from printed text?"""
    names = [series.name for series in run.metrics if series.source is MetricSource.STDOUT]
    if not names:
        return ()
    return notice(
        "rounded-metric",
        message=f"read from printed text, only as exact as it was printed: {', '.join(names[:5])}",
        remedy="Write them to a JSON Lines file and name it in train.metrics.file.",
    )


def default_mode(comparison: Comparison | None) -> tuple[Finding, ...]:
    """Is the training repeatable without strict mode, with seeds alone?"""
    if comparison is None or comparison.numerically_equal:
        return ()
    return notice(
        "default-mode-differs",
        message="two runs in default mode differ: seeds alone do not make this training repeatable",
    )


def budget_not_applied(settings: CostSettings, *, priced: bool) -> tuple[Finding, ...]:
    """Is there a budget for the cost of determinism, but no measurement to compare with it?"""
    if priced or settings.budget_percent is None:
        return ()
    return notice(
        "budget-not-applied",
        message=f"cost.budget_percent ({settings.budget_percent:g} %) was not applied: cost.when "
        f"is {settings.when}, so this call measured no cost",
        remedy="A cost that the baseline was recorded with is shown and not judged. "
        "`cost.when: always` measures it in every call.",
    )


def hidden_state(repeat: Comparison) -> tuple[Finding, ...]:
    """Are all numbers equal, but not the fingerprints behind them?"""
    # Where numbers differ, the diagnosis says more. This finding is for what nothing else shows.
    if not repeat.numerically_equal or not repeat.fingerprints:
        return ()
    differing = [
        f"{fingerprint.fingerprint} from step {fingerprint.first_step} on"
        for fingerprint in repeat.fingerprints
    ]
    return notice(
        "fingerprints-differ",
        message=f"every number is equal, but these fingerprints differ: {', '.join(differing)}",
        remedy="A longer run may diverge there; look for random draws and seeds that depend "
        "on time.",
    )


def imported_runs(*, imported: bool, from_fork: bool) -> tuple[Finding, ...]:
    """Does the verdict depend on runs that another job made?"""
    if not imported:
        return ()
    # A fork's author controls the workflow that made the runs, so its numbers prove even less.
    whose = ", in a workflow that the fork's author may have changed" if from_fork else ""
    return (
        Finding(
            code="unverified-evidence",
            severity=Severity.WARNING if from_fork else Severity.NOTICE,
            message=f"another job made these runs{whose}: this gate cannot verify their numbers",
            remedy="Review the change before you rely on this. Commit, settings, baseline and "
            "the kept state were checked here.",
        ),
    )


def reading(used: Isolation) -> tuple[Finding, ...]:
    """Were the runs' files read under the gate's own account instead of the training's?"""
    if not used.reading:
        return ()
    return notice(
        "parser-unsandboxed",
        message=f"the runs' files were read under the gate's own account: {used.reading}",
        remedy="Install the gate and its Python interpreter where every account can read them.",
    )


def uninstrumented_subprocesses(run: RunEvidence) -> tuple[Finding, ...]:
    """Was a Python process started without the harness?"""
    if not run.children:
        return ()
    return warning(
        "uninstrumented-subprocess",
        message=f"Python was started without the harness: {started_without(run.children)}",
        remedy="It runs without strict mode, and nothing of it is recorded. That is fine for "
        "a helper that does not train; otherwise drop the option, or pass it this process's "
        "environment.",
    )


def weaker_children(run: RunEvidence) -> tuple[Finding, ...]:
    """Was a Python process started without a variable that the gate had set?"""
    messages = dict.fromkeys(
        f"{child.place} started Python without the {variable} that the gate set: "
        f"{WITHOUT.get(variable, WITHOUT_ANY)}"
        for child in run.weaker_children
        for variable in child.variables
    )
    return tuple(
        Finding(
            code="subprocess-without-variable",
            severity=Severity.WARNING,
            message=message,
            remedy="Pass the child this process's whole environment, os.environ, and add to it.",
        )
        for message in list(messages)[:MAX_WEAKER]
    )


def isolation(used: Isolation) -> tuple[Finding, ...]:
    """Did the training run under the gate's own account, or with access to the network?"""
    if used.job is not None:
        return notice(
            "job-isolation",
            message=f"the training ran on a cluster, kept apart as {used.job.value}: it can read "
            "what the account that submitted the job can read",
            remedy="Keep keys and tokens away from that account: `repro-gate run` on the cluster, "
            "`repro-gate judge` where the key is.",
        )
    if used.mode is IsolationMode.NONE:
        return notice(
            "not-isolated",
            message=f"the training ran under the gate's own account: {used.reason}",
            remedy="Fine for your own code; on a shared runner, run the gate as root and "
            "train with an interpreter that every account can read.",
        )
    if not used.network:
        return ()
    return notice(
        "network-open",
        message="the training could reach the network: isolation.network is true",
        remedy="Data that it fetches may change between two runs, and what it reads may "
        "leave the machine. Remove the setting if no rank needs it.",
    )


def writable_paths(used: Isolation) -> tuple[Finding, ...]:
    """Could one run have passed data to the next one through a path that it can write to?"""
    # A search that was cut off has not proved that there are no such paths.
    if not used.writable_paths and not used.paths_uncounted:
        return ()
    shown = used.writable_paths[:SHOWN_FILES]
    # Anybody may have chosen the file's name, so it is shown as ASCII.
    names = ", ".join(map(ascii, map(str, shown))) + (
        ", ..." if len(shown) < len(used.writable_paths) or used.paths_uncounted else ""
    )
    paths = f"{'at least ' if used.paths_uncounted else ''}{len(used.writable_paths)}"
    return warning(
        "writable-paths",
        message=f"{paths} files and folders outside the run's own folders are writable for "
        f"the training and readable for the next run: {names}",
        remedy="Remove write access for others (chmod o-w), or give the gate a kernel with "
        "Landlock (Linux 5.13) or the capability CAP_SYS_ADMIN.",
    )


def credentials_left(keys: tuple[str, ...]) -> tuple[Finding, ...]:
    """Does the clone still contain the token that it was fetched with?"""
    if not keys:
        return ()
    names = ", ".join(keys[:SHOWN_FILES])
    return warning(
        "credential-left",
        message=f"the checkout left its credential in the clone's configuration: {names}",
        remedy="Set `persist-credentials: false` on actions/checkout. This gate hides it "
        "from the training; later steps do not.",
    )


UNREPEATED = "It differs from run to run: first make the preprocessing repeatable."


def moved_data(facts: Facts) -> tuple[Finding, ...]:
    """Which declared data differs from what the baseline was recorded with?"""
    remedy = (
        "This change introduces it: review the data as you review code."
        if facts.data_brought
        else "Every commit trains on it now. If that is intended, record the baseline again."
    )
    # what differs from run to run was not moved by a change, and no baseline can hold it
    unrepeated = "" if facts.unrepeated is None else facts.unrepeated.move.name
    return tuple(
        Finding(
            code=DATA_MOVED,
            severity=Severity.WARNING,
            message=move_sentence(move),
            remedy=UNREPEATED if move.name == unrepeated else remedy,
        )
        for move in facts.data_moved
    )


def baseline_facts(
    entry: BaselineEntry, age_days: int, *, stale_after_days: int, from_base: bool
) -> BaselineFacts:
    """Return what a report says about the entry that was used."""
    return BaselineFacts(
        commit=entry.commit,
        recorded_at=entry.recorded_at,
        age_days=age_days,
        stale=age_days > stale_after_days,
        checkpoint_digest=captured_digest(entry.checkpoint.tensors),
        from_base=from_base,
        knob_costs=entry.knob_costs,
        price=entry.price,
        reason=entry.reason,
        equal_runs=entry.equal_runs,
        missed_faults=entry.missed_faults,
        recordings=entry.recordings,
        accepted_by=entry.accepted_by,
        run_url=entry.run_url,
        package_sha256=entry.package_sha256,
    )


def not_exercised(run: RunEvidence) -> tuple[str, ...]:
    """Return what a green check does not cover."""
    # Every verdict says this: a green check covers only these steps on this machine.
    sentences = [f"anything after step {len(run.steps)}", "any other machine or driver"]
    if not run.environment.on_gpu:
        sentences.append("GPU kernels: the training ran on the CPU")
    if run.environment.parts.get("world_size", "1") == "1":
        sentences.append("several ranks: the training ran as one process")
    else:
        sentences.append("losses and metrics of ranks other than 0 against the baseline")
    return tuple(sentences)
