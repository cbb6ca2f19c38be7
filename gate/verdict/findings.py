"""Small rules, one question each: what a reader should know beside the outcome."""

from __future__ import annotations

from gate.records.baseline import BaselineEntry
from gate.records.children import started_without
from gate.records.comparison import Comparison, EnvironmentChange
from gate.records.evidence import EvidenceSet, MetricSource, RunEvidence
from gate.records.runs import Isolation
from gate.records.settings import IsolationMode
from gate.records.verdict import BaselineFacts, Finding, Severity

SHOWN_FILES = 5
SHOWN_PACKAGES = 6

MAX_WEAKER = 5
WITHOUT_ANY = "what it keeps deterministic is not kept so there"
THREADS = "sums there may be split among threads in another way"
WITHOUT = {
    "PYTHONHASHSEED": "set and hash order there differ from run to run",
    "OMP_NUM_THREADS": THREADS,
    "OMP_DYNAMIC": THREADS,
    "MKL_NUM_THREADS": THREADS,
    "MKL_DYNAMIC": THREADS,
}


def dirty_tree(evidence: EvidenceSet) -> tuple[Finding, ...]:
    """Was something trained that no commit holds?"""
    files = evidence.changed_files
    if not files:
        return ()
    names = ", ".join(files[:SHOWN_FILES]) + (", ..." if len(files) > SHOWN_FILES else "")
    return (
        Finding(
            code="dirty-tree",
            severity=Severity.WARNING,
            message=f"{len(files)} file(s) differ from the commit: {names}",
            remedy="Commit them: this result belongs to no commit and is not sealed.",
        ),
    )


def gpu_missed(evidence: EvidenceSet) -> tuple[Finding, ...]:
    """Did it run on a CPU only because it could not use the machine's GPU?"""
    missed = evidence.gpu_missed
    if missed is None:
        return ()
    return (
        Finding(
            code="gpu-unused",
            severity=Severity.WARNING,
            message=f"the training ran on the CPU, and the machine has a GPU: {missed.found}",
            remedy=missed.fix,
        ),
    )


def device_groups(used: Isolation) -> tuple[Finding, ...]:
    """Was the training's account given groups, so that it can open the GPUs' device files?"""
    if not used.device_groups:
        return ()
    groups = ", ".join(map(str, used.device_groups))
    return (
        Finding(
            code="device-groups",
            severity=Severity.NOTICE,
            message=f"the training's account was given the groups {groups}: they own the device "
            "files of the GPUs, which are closed to others",
            remedy="Nothing to do, if these groups open nothing else on this machine.",
        ),
    )


def changed_by_pull_request(paths: tuple[str, ...], brought: str) -> tuple[Finding, ...]:
    """Does the pull request touch what decides over it?

    `brought` is the baseline that the pull request brings and its own run reproduces, or empty:
    that one decided, by the base commit's policy.
    """
    return tuple(_changed(path, decided=path == brought) for path in paths)


def _changed(path: str, *, decided: bool) -> Finding:
    if decided:
        message = f"this pull request brings a new {path}, and that decided"
        remedy = "Merge only if the new result is what you want."
    else:
        message = f"this pull request changes {path}; the base commit's version decided"
        remedy = "Review that change by itself."
    return Finding(code="policy-changed", severity=Severity.WARNING, message=message, remedy=remedy)


def settings_origin(settings_from: str, *, pull_request: bool) -> tuple[Finding, ...]:
    """Did the pull request have to bring its own settings, because the base has none?"""
    if not pull_request or settings_from == "base":
        return ()
    return (
        Finding(
            code="settings-from-head",
            severity=Severity.WARNING,
            message="the base commit has no settings file, so this pull request's own decided",
            remedy="After the merge the gate reads them from the base commit.",
        ),
    )


def environment_moved(baseline: Comparison | None) -> tuple[Finding, ...]:
    """Which parts of the environment are not the baseline's?"""
    changes = baseline.environment if baseline else ()
    return tuple(
        Finding(
            code="environment-moved",
            severity=Severity.NOTICE if change.comparable else Severity.WARNING,
            message=_moved(change),
        )
        for change in changes
    )


def _moved(change: EnvironmentChange) -> str:
    """What moved, by name where that is known: nobody can act on two digests."""
    if not change.details:
        return f"{change.part}: {change.expected} became {change.observed}"
    rest = len(change.details) - SHOWN_PACKAGES
    more = f", and {rest} more" if rest > 0 else ""
    return f"{change.part}: {', '.join(change.details[:SHOWN_PACKAGES])}{more}"


def stale_baseline(facts: BaselineFacts | None) -> tuple[Finding, ...]:
    """Is the baseline older than the settings like?"""
    if facts is None or not facts.stale:
        return ()
    return (
        Finding(
            code="baseline-stale",
            severity=Severity.NOTICE,
            message=f"the baseline is {facts.age_days} days old",
            remedy="Record it again while results still agree: repro-gate baseline record",
        ),
    )


def ended_early(run: RunEvidence, max_steps: int) -> tuple[Finding, ...]:
    """Did the script end by itself before the steps that were asked for?"""
    if len(run.steps) >= max_steps:
        return ()
    return (
        Finding(
            code="ended-early",
            severity=Severity.NOTICE,
            message=f"the script ended by itself after {len(run.steps):,} of {max_steps:,} "
            "optimizer steps (train.max_steps)",
            remedy="Nothing to do if that is its whole training.",
        ),
    )


def weaker_source(run: RunEvidence) -> tuple[Finding, ...]:
    """Which metrics come from printed text?"""
    names = [series.name for series in run.metrics if series.source is MetricSource.STDOUT]
    if not names:
        return ()
    return (
        Finding(
            code="rounded-metric",
            severity=Severity.NOTICE,
            message=f"read from printed text, as exact as it was printed: {', '.join(names[:5])}",
            remedy="Write them to a JSON Lines file and name it in train.metrics.file.",
        ),
    )


def default_mode(comparison: Comparison | None) -> tuple[Finding, ...]:
    """Is the training repeatable without strict mode, with seeds alone?"""
    if comparison is None or comparison.numerically_equal:
        return ()
    return (
        Finding(
            code="default-mode-differs",
            severity=Severity.NOTICE,
            message="in default mode two runs differ: seeds alone do not repeat this training",
        ),
    )


def hidden_state(repeat: Comparison) -> tuple[Finding, ...]:
    """Are all numbers equal while something that led to them was not?"""
    # where numbers differ the diagnosis says more: this is for what nothing else would show
    if not repeat.numerically_equal or not repeat.fingerprints:
        return ()
    told = [
        f"{fingerprint.fingerprint} from step {fingerprint.first_step} on"
        for fingerprint in repeat.fingerprints
    ]
    return (
        Finding(
            code="fingerprints-differ",
            severity=Severity.NOTICE,
            message=f"every number is equal, and yet these differ: {', '.join(told)}",
            remedy="A longer run may part there; look for draws and seeds that depend on time.",
        ),
    )


def imported_runs(*, told: bool, from_fork: bool) -> tuple[Finding, ...]:
    """Does the verdict rest on what another job says that it ran?"""
    if not told:
        return ()
    whose = ", in a workflow that the fork's author may have changed" if from_fork else ""
    return (
        Finding(
            code="unverified-evidence",
            severity=Severity.WARNING if from_fork else Severity.NOTICE,
            message=f"another job made these runs{whose}: their numbers are that job's word",
            remedy="Read the change before you rely on this. Commit, settings, baseline and the "
            "kept state were checked here.",
        ),
    )


def reading(used: Isolation) -> tuple[Finding, ...]:
    """Was what the runs left read under the gate's own account, where the training's was asked?"""
    if not used.reading:
        return ()
    return (
        Finding(
            code="parser-unsandboxed",
            severity=Severity.NOTICE,
            message=f"what the runs left was read under the gate's own account: {used.reading}",
            remedy="Install the gate where every account may read it and its interpreter.",
        ),
    )


def uninstrumented_subprocesses(run: RunEvidence) -> tuple[Finding, ...]:
    """Was a Python started of which nobody can say under which settings it ran?"""
    if not run.children:
        return ()
    return (
        Finding(
            code="uninstrumented-subprocess",
            severity=Severity.WARNING,
            message=f"Python was started without the harness: {started_without(run.children)}",
            remedy="Whatever it computes is neither held to strict mode nor seen. A helper that "
            "does not train may stay; else drop the option, or hand it this process's environment.",
        ),
    )


def weaker_children(run: RunEvidence) -> tuple[Finding, ...]:
    """Was a Python started without a variable that the gate had set for the whole training?"""
    told = dict.fromkeys(
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
            remedy="Hand the child this process's whole environment, os.environ, and add to it.",
        )
        for message in list(told)[:MAX_WEAKER]
    )


def isolation(used: Isolation) -> tuple[Finding, ...]:
    """Did the training run under the gate's own account, or with a way out to the network?"""
    if used.mode is IsolationMode.NONE:
        return (
            Finding(
                code="not-isolated",
                severity=Severity.NOTICE,
                message=f"the training ran under the gate's own account: {used.reason}",
                remedy="Fine for your own code; on a shared runner the gate must be root, and the "
                "interpreter that trains readable by every account.",
            ),
        )
    if not used.network:
        return ()
    return (
        Finding(
            code="network-open",
            severity=Severity.NOTICE,
            message="the training could reach the network: isolation.network is true",
            remedy="Data that it fetches may change between two runs, and what it reads may leave "
            "the machine. Take the setting out if no rank needs it.",
        ),
    )


def writable_paths(used: Isolation) -> tuple[Finding, ...]:
    """Could a run have left word for the next one where every account can write?"""
    # a search that was cut off proves nothing
    if not used.writable_paths and not used.paths_uncounted:
        return ()
    shown = used.writable_paths[:SHOWN_FILES]
    # a file's name was chosen by whoever made it: it is shown as ASCII
    names = ", ".join(map(ascii, map(str, shown))) + (
        ", ..." if len(shown) < len(used.writable_paths) or used.paths_uncounted else ""
    )
    count = f"{'at least ' if used.paths_uncounted else ''}{len(used.writable_paths)}"
    return (
        Finding(
            code="open-places",
            severity=Severity.WARNING,
            message=f"{count} files and folders outside the run's own could be written by the "
            f"training, and read by the next run: {names}",
            remedy="Take write access for everybody off them (chmod o-w), or give the gate a "
            "kernel with Landlock (Linux 5.13) or the capability CAP_SYS_ADMIN.",
        ),
    )


def credentials_left(keys: tuple[str, ...]) -> tuple[Finding, ...]:
    """Does the clone still hold the token that it was fetched with?"""
    if not keys:
        return ()
    names = ", ".join(keys[:SHOWN_FILES])
    return (
        Finding(
            code="credential-left",
            severity=Severity.WARNING,
            message=f"the checkout left its credential in the clone's configuration: {names}",
            remedy="Give actions/checkout `persist-credentials: false`. This gate kept it from the "
            "training; later steps do not.",
        ),
    )


def baseline_facts(
    entry: BaselineEntry, age_days: int, *, stale_after_days: int, from_base: bool
) -> BaselineFacts:
    """What a report says about the entry that was used."""
    return BaselineFacts(
        commit=entry.commit,
        recorded_at=entry.recorded_at,
        age_days=age_days,
        stale=age_days > stale_after_days,
        checkpoint_root=entry.checkpoint.root,
        from_base=from_base,
        knob_costs=entry.knob_costs,
    )


def not_exercised(run: RunEvidence) -> tuple[str, ...]:
    """What a green check does not speak of."""
    # said on every verdict: a green check is about these steps on this machine
    found = [f"anything after step {len(run.steps)}", "any other machine or driver"]
    if not run.environment.on_gpu:
        found.append("GPU kernels: the training ran on the CPU")
    if run.environment.parts.get("world_size", "1") == "1":
        found.append("several ranks: the training ran as one process")
    else:
        found.append("losses and metrics of ranks other than 0; their weights were compared")
    return tuple(found)
