"""Choose the settings that are worth a pair of runs, and conclude what those runs show.

A setting is left out if it is already in force or has nothing to act on in this training. Where a
line is known that differs in each run, only settings that could acquit that line are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gate.comparison.differences import EventKind
from gate.diagnosis.diagnosis import CauseClass, Diagnosis, Suspect, SuspectKind
from gate.evidence.observations import SourceKind
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.trace import FILLS, MAX_TRIED, Claim, TriedSetting, TriedSettings
from gate.settings.gate_settings import GateSettings
from gate.settings.knobs import KEEP, KNOBS, OFF, ON, Profile, effective_knobs
from gate.settings.train_sections import OnOverride
from gate.settings.variations import FIRST_FILL, TUNABLES, Setting

COMMUTING_RANKS: Final = 2
THREADS_VARIABLE: Final = "OMP_NUM_THREADS"
# Strict mode leaves these to the user. Attention has kernels that add in no fixed order. TF32
# either rounds away the difference of a race or enlarges it.
LEFT_TO_THE_USER: Final = (
    ("attention_mem_efficient", OFF),
    ("attention_flash", OFF),
    ("fp32_matmul", "ieee"),
    ("fp32_cudnn", "ieee"),
)
WORKERS: Final = (Setting.ONE_WORKER, Setting.NO_LOADER_WORKERS)
PACE: Final = (SuspectKind.ENTROPY, SuspectKind.DRAW, SuspectKind.PROCESS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A setting to change in a pair of runs; `written` is how a user writes it."""

    setting: Setting
    written: str
    knob: str = ""
    word: str = ""
    fill: int = 0


def candidates(
    diagnosis: Diagnosis, run: RunEvidence, settings: GateSettings
) -> tuple[Candidate, ...]:
    """Return the settings to try for a difference between strict runs, likeliest first.

    `run` is one of these runs. At most `MAX_TRIED` settings are returned.
    """
    every = {trial.written: trial for trial in _applicable(run, settings)}
    chosen = [trial for trial in every.values() if _could_tell(trial, diagnosis)]
    trace = diagnosis.trace
    if trace is not None and trace.claim is Claim.UNINITIALISED:
        fills = {Setting.TORCH_FILL, Setting.HEAP_FILL}
        chosen.sort(key=lambda trial: trial.setting not in fills)
    if trace is not None and trace.claim is Claim.COLLECTIVE:
        chosen.sort(key=lambda trial: trial.setting is not Setting.FIXED_COLLECTIVES)
    return tuple(chosen[:MAX_TRIED])


def _could_tell(candidate: Candidate, diagnosis: Diagnosis) -> bool:
    """Return whether a trial adds anything to a line that the diagnosis already names."""
    likely = diagnosis.likely
    if not likely:
        return True
    kind = likely[0].kind
    if kind is SuspectKind.SETTING:
        return candidate.setting in {Setting.RESTORE, Setting.ONE_THREAD}
    # Draws in workers may not be the cause. They may only have set the pace at which workers
    # overtake each other.
    return kind in PACE and candidate.setting in WORKERS


def _applicable(run: RunEvidence, settings: GateSettings) -> Iterator[Candidate]:
    determinism = settings.determinism
    words = effective_knobs(determinism.profile, determinism.overrides, strict_run=True)
    on_gpu = run.environment.on_gpu
    turned = any(not override.seeds and override.weakens for override in run.overrides)
    if turned and determinism.on_override is OnOverride.OBSERVE:
        yield Candidate(setting=Setting.RESTORE, written="determinism.on_override: restore")
    if threads_of_run(run, settings) > 1:
        yield Candidate(setting=Setting.ONE_THREAD, written="determinism.threads: 1")
    if starts_threads(run):
        yield Candidate(setting=Setting.ONE_WORKER, written="max_workers=1 in each pool")
    if any(facts.facts.get("loader_workers") for facts in run.rank_facts):
        yield Candidate(setting=Setting.NO_LOADER_WORKERS, written="num_workers=0")
    # A sum of two numbers is the same in either order, so two ranks need no fixed order.
    if len(run.ranks) > COMMUTING_RANKS:
        written = "sums over ranks in a fixed order"
        yield Candidate(setting=Setting.FIXED_COLLECTIVES, written=written)
    if on_gpu:
        variable = "CUDA_LAUNCH_BLOCKING: 1"
        yield Candidate(setting=Setting.LAUNCH_BLOCKING, written=f"train.env: {{{variable}}}")
    if words["memory_fill"] != ON and words["deterministic_algorithms"] not in {KEEP, OFF}:
        written = "determinism.fill_uninitialized_memory: true"
        yield Candidate(setting=Setting.TORCH_FILL, written=written)
    if TUNABLES not in {*settings.train.env, *settings.train.pass_env}:
        yield Candidate(setting=Setting.HEAP_FILL, written="a fill of the C heap", fill=FIRST_FILL)
    yield from _knobs(words, on_gpu=on_gpu)


def _knobs(words: dict[str, str], *, on_gpu: bool) -> Iterator[Candidate]:
    """Yield the strict knobs that the settings turned off, then those left to the user."""
    strict = effective_knobs(Profile.STRICT, {}, strict_run=True)
    knobs = [
        (knob.name, strict[knob.name])
        for knob in KNOBS
        if (on_gpu or not knob.gpu_alone) and strict[knob.name] != KEEP and not knob.every_run
    ]
    knobs += LEFT_TO_THE_USER if on_gpu else ()
    for name, word in knobs:
        # Settings that allow an operator turn the knob into a warning on purpose, so it is not
        # tried.
        if name != "memory_fill" and words[name] in {KEEP, ON, OFF} and words[name] != word:
            written = f"determinism.knobs.{name}: {word}"
            yield Candidate(setting=Setting.KNOB, written=written, knob=name, word=word)


def threads_of_run(run: RunEvidence, settings: GateSettings) -> int:
    """Return the largest number of threads that a process of the run was given."""
    threads = [process.variables.get(THREADS_VARIABLE, "") for process in run.processes]
    counts = [int(text) for text in threads if text.isascii() and text.isdigit()]
    return max(counts, default=settings.determinism.threads)


def starts_threads(run: RunEvidence) -> bool:
    """Return whether the script starts threads; pools of processes do so too."""
    started = any(source.kind in {SourceKind.THREAD, SourceKind.DRAW} for source in run.sources)
    return started or any(threads.count > 1 for threads in run.live_threads)


def threads_at(run: RunEvidence, step: int | None) -> bool:
    """Return whether the script's own threads ran in this step, or in any step if it is None."""
    seen = [
        live_thread for live_thread in run.live_threads if step is None or live_thread.step <= step
    ]
    return any(count_.count > 1 for count_ in (seen[-1:] if step is not None else seen))


RACES: Final = (Setting.ONE_THREAD, Setting.ONE_WORKER, Setting.LAUNCH_BLOCKING)
DATA: Final = (EventKind.BATCH, EventKind.INPUT)
ARITHMETIC: Final = (
    *(EventKind.WEIGHTS, EventKind.LOSS, EventKind.BACKWARD, EventKind.GRADIENTS),
    EventKind.PARAMETERS,
)
OTHERWISE: Final = " If that is not it: "
REMEDIES: Final = {
    Setting.ONE_THREAD: (
        "Set determinism.threads to 1 in repro-gate.yml, or add in a fixed order in what runs in "
        "several threads."
    ),
    Setting.ONE_WORKER: (
        "Take results of a pool in submission order (map), not as they complete "
        "(as_completed, imap_unordered, a shared sum)."
    ),
    Setting.NO_LOADER_WORKERS: (
        "Seed what a worker draws from by its own number (worker_init_fn), and share nothing "
        "between workers."
    ),
    Setting.FIXED_COLLECTIVES: (
        "Keep what decides the order of sums over ranks: the number of ranks, NCCL_ALGO, and the "
        "size of gradient buckets (bucket_cap_mb)."
    ),
    Setting.LAUNCH_BLOCKING: (
        "Let a stream wait for the one whose results it reads (wait_stream, record_stream)."
    ),
}
WRITE_FIRST: Final = (
    "Write memory before it is read: zeros or full instead of empty. A fill only hides this."
)


def proved_by(
    tried: TriedSettings, diagnosis: Diagnosis, *, threads_alive: bool
) -> CauseClass | None:
    """Return the class that one setting proves, or None where it may be chance.

    `threads_alive`: the script's own threads ran in the first step that differs. Then the order of
    data and a race of threads both fit a difference in a model's input.
    """
    helping, kind = tried.helping, diagnosis.kind
    if helping is None or not tried.is_certain(helping):
        return None
    if helping.setting in FILLS:
        # A fill that makes runs agree but does not show in the result only moved something else.
        return CauseClass.UNINITIALISED_MEMORY if helping.follows else None
    if helping.setting is Setting.FIXED_COLLECTIVES:
        # A collective in a fixed order is also waited for. Where the script forgot to wait, that
        # alone may have made the runs agree.
        waited = any(suspect.begins_a_message for suspect in diagnosis.suspects)
        return CauseClass.COLLECTIVE if kind in ARITHMETIC and not waited else None
    if helping.setting not in RACES:
        return None
    if kind in ARITHMETIC:
        return CauseClass.THREAD_RACE
    ordered = helping.setting is Setting.ONE_WORKER and kind in DATA and not threads_alive
    return CauseClass.DATA_ORDER if ordered else None


def with_tried(
    diagnosis: Diagnosis, tried: TriedSettings, *, threads_alive: bool = False
) -> Diagnosis:
    """Return the diagnosis with the result of the trials.

    If runs agree once workers cannot overtake each other, a line that draws entropy or reads a
    clock only set their pace. It stays as a possible cause. A line that takes results in order of
    completion stays likely, because the workers race for it.
    """
    helping = tried.helping
    update: dict[str, object] = {"tried": tried}
    if helping is None or not tried.is_certain(helping):
        return diagnosis.model_copy(update=update)
    proved = proved_by(tried, diagnosis, threads_alive=threads_alive)
    raced = any(suspect.kind is SuspectKind.COMPLETION for suspect in diagnosis.likely)
    acquits = helping.setting in WORKERS and bool(diagnosis.likely)
    if acquits:
        suspects = tuple(map(_acquitted, diagnosis.suspects))
        left = tuple(sorted(suspects, key=lambda suspect: suspect.possible))
        kept = diagnosis.cause_class if raced else None
        update |= {"suspects": left, "decides": "", "cause_class": kept or proved}
    elif diagnosis.cause_class in {None, CauseClass.OPERATOR} and (
        helping.setting is not Setting.ONE_THREAD or diagnosis.cause_class is None
    ):
        # A tensor that another thread changes looks like the output of a nondeterministic operator.
        update["cause_class"] = proved or diagnosis.cause_class
    remedy = remedy_of(helping)
    if remedy and (acquits or not diagnosis.likely):
        # Keep only the likeliest of the earlier remedies: a third guess helps nobody.
        rest = diagnosis.remedy.partition(OTHERWISE)[0]
        update["remedy"] = f"{remedy}{OTHERWISE}{rest[:1].lower()}{rest[1:]}"
    return diagnosis.model_copy(update=update)


def _acquitted(suspect: Suspect) -> Suspect:
    raced = suspect.kind is SuspectKind.COMPLETION
    return suspect if raced else suspect.model_copy(update={"possible": True})


def remedy_of(trial: TriedSetting) -> str:
    """Return the remedy for a cause that this setting shows, "" where none is known."""
    if trial.setting in FILLS:
        return WRITE_FIRST if trial.follows else ""
    return REMEDIES.get(trial.setting, "")
