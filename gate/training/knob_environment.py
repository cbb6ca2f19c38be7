"""The knobs of one run: as variables of its process, and as one variable for the harness."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gate.errors import SettingsError
from gate.settings.knobs import BY_NAME, KEEP, KNOBS, OFF, ON, Acts, Knob, effective_knobs
from gate.settings.priced_knobs import priced_words
from gate.settings.train_sections import DeterminismSettings
from gate.training.runs import PlannedRun, RunMode

WARN = "warn"
THREADS_VARIABLE = "OMP_NUM_THREADS"
# A cache that outlives a run hides what was chosen by timing. Whatever is not named here lies below
# HOME, which is as fresh.
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
}


def knob_words(planned: PlannedRun, determinism: DeterminismSettings) -> dict[str, str]:
    """Knob to word for a run: its mode's, less what it is to do without, warning where it counts.

    An operator audit only counts operators without a deterministic form, and an allow-list refuses
    the others itself: in both torch warns where it would refuse.
    """
    strict_run = planned.mode is not RunMode.DEFAULT
    words = effective_knobs(determinism.profile, determinism.overrides, strict_run=strict_run)
    if strict_run and planned.knobs is not None:
        words |= priced_words(planned.knobs)
    warns = planned.mode is RunMode.AUDIT or determinism.allow_operators
    if warns and words["deterministic_algorithms"] == ON:
        words["deterministic_algorithms"] = WARN
    return words


def threads_of(determinism: DeterminismSettings, own: Mapping[str, str]) -> int:
    """The thread count of every run: the user's own variable counts where no key says otherwise.

    Raises `SettingsError` when key and variable contradict each other.
    """
    text = own.get(THREADS_VARIABLE, "")
    if not BY_NAME["omp_threads"].accepts_value(text):
        return determinism.threads
    if "threads" in determinism.model_fields_set and int(text) != determinism.threads:
        raise SettingsError(
            f"{THREADS_VARIABLE} is {text}, determinism.threads is {determinism.threads}",
            hint=f"Set only one of them: remove {THREADS_VARIABLE} from train.env, or "
            f"determinism.threads.",
        )
    return int(text)


def knob_variables(
    words: Mapping[str, str], own: Mapping[str, str], *, seed: int, threads: int
) -> dict[str, str]:
    """The variables of the knobs that act before the start; `own` are those that the user sets.

    A valid value of the user's is kept. Raises `SettingsError` for one that contradicts its knob,
    with both values.
    """
    variables = {}
    for knob in KNOBS:
        word = words[knob.name]
        if knob.acts is not Acts.ENVIRONMENT or word in {OFF, KEEP}:
            continue
        wanted = knob.on.format(seed=seed, threads=threads) if word == ON else word
        mine = own.get(knob.variable)
        if mine is not None and not _agree(knob, mine, word):
            raise SettingsError(
                f"{knob.variable} is {mine[:100]!r}, the knob {knob.name} needs {wanted!r}",
                hint=f"Remove {knob.variable} from train.env or train.pass_env, or set "
                f"determinism.knobs.{knob.name} to keep, which leaves that knob off.",
            )
        variables[knob.variable] = wanted if mine is None else mine
    return variables


def _agree(knob: Knob, mine: str, word: str) -> bool:
    """Whether the user's value does what the knob is for; a value asked for by name is exact."""
    return knob.accepts_value(mine) if word == ON else mine == word


def harness_text(words: Mapping[str, str], variables: Mapping[str, str]) -> str:
    """`name=value;name=value` for the harness: what each knob must be found at."""
    parts = []
    for name, word in words.items():
        knob = BY_NAME[name]
        found = variables.get(knob.variable, KEEP) if knob.acts is Acts.ENVIRONMENT else word
        parts.append(f"{name}={found}")
    return ";".join(parts)


def fresh_caches(tmp: Path, own: Mapping[str, str]) -> dict[str, str]:
    """Compile and kernel caches in the run's own folder, which is emptied before each run.

    Raises `SettingsError` when the user names a folder for one of them.
    """
    # a kernel that one run chose by timing would be the next run's
    # from the cache: they would agree, and a fresh machine would not
    for variable in CACHES.keys() & own.keys():
        raise SettingsError(
            f"{variable} is {own[variable][:100]!r}, every run needs its own cache",
            hint=f"Remove {variable} from train.env or train.pass_env: a shared cache hides what "
            f"one run chose by timing.",
        )
    return {variable: str(tmp / folder) for variable, folder in CACHES.items()}
