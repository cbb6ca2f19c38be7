"""What can be different in a run: settings of a diagnosis, variations of `shake`, kill points."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Setting(StrEnum):
    """The setting that a diagnosis changes.

    `NOTHING` is for control runs. With `RESTORE` the harness sets again what the script overrides.
    `ONE_THREAD` means one thread in torch, OpenMP and the libraries that read `THREAD_VARIABLES`.
    `ONE_WORKER` means one worker in each pool of threads or processes. `NO_LOADER_WORKERS` means no
    worker process in a DataLoader. With `TORCH_FILL` torch fills new memory with NaN. With
    `HEAP_FILL` the C heap and `numpy.empty` are filled with a byte. With `LAUNCH_BLOCKING` each
    CUDA kernel is awaited. With `FIXED_COLLECTIVES` every rank gathers the parts of a sum over
    ranks and adds them in one order. `KNOB` is a knob of the table of knobs.
    """

    NOTHING = "nothing"
    RESTORE = "restore"
    ONE_THREAD = "one-thread"
    ONE_WORKER = "one-worker"
    NO_LOADER_WORKERS = "no-loader-workers"
    TORCH_FILL = "torch-fill"
    HEAP_FILL = "heap-fill"
    LAUNCH_BLOCKING = "launch-blocking"
    FIXED_COLLECTIVES = "fixed-collectives"
    KNOB = "knob"


class KillPoint(StrEnum):
    """Where inside the write of a checkpoint a run is killed."""

    FIRST = "first-byte"
    MIDDLE = "middle"
    LAST = "last-byte"


# Threads that determinism.threads does not reach: each library reads its variable at its start.
THREAD_VARIABLES: Final = (
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
)
# tunables of the GNU C library, which it reads at the start of a process
TUNABLES: Final = "GLIBC_TUNABLES"
# Two bytes that differ in every bit, so that no value is the same under both.
FIRST_FILL: Final = 0x55
SECOND_FILL: Final = 0xAA


def perturbed_heap(byte: int) -> str:
    """Return `TUNABLES` that fill new memory of the C heap with the complement of a byte.

    See GNU C library, Memory Allocation Tunables. Without a count of 0, each thread's cache of
    small blocks would return them unfilled.
    """
    return f"glibc.malloc.perturb={byte}:glibc.malloc.tcache_count=0"


NOT_SEEN: Final = "the harness did not say that it was varied"


class Folder(StrEnum):
    """A folder of a run that a variation moves to another path."""

    TREE = "tree"
    HOME = "home"
    TMP = "tmp"
    OUT = "out"


@dataclass(frozen=True, kw_only=True, slots=True)
class Variation:
    """One thing that is varied: its name, what changes for the training, and how far it reaches.

    `variables` are set in the run's environment and `folders` are moved. The harness does the rest
    and records that it did. `owned_by_user` are variables that belong to the training: if the
    settings set one, nothing is varied. `kinds` are the kinds of recorded sources that may read the
    thing, and `passed_over` calls of these kinds that do not. `unused` says why a run may have had
    nothing to vary.
    """

    name: str
    changes: str
    reaches: str
    remedy: str
    variables: tuple[tuple[str, str], ...] = ()
    folders: tuple[Folder, ...] = ()
    owned_by_user: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("reading",)
    passed_over: tuple[str, ...] = ()
    unused: str = NOT_SEEN
    on_gpu: bool = False


PYTHON_ONLY: Final = "Python code only"
# the clock variation leaves durations alone, so calls for them cannot explain a difference
DURATIONS: Final = tuple(
    f"time.{name}{unit}" for name in ("monotonic", "perf_counter") for unit in ("", "_ns")
)
GPU_INDEX: Final = "gpu-index"
HASH_SEED: Final = "hash-seed"
HASH_SEED_VARIABLE: Final = "PYTHONHASHSEED"
VARIATIONS: Final = (
    Variation(
        name="working-directory",
        changes="the checkout is at another path",
        reaches="everything",
        remedy="Use paths relative to the repository, and keep them out of names and seeds.",
        folders=(Folder.TREE,),
    ),
    Variation(
        name="output-path",
        changes="HOME, TMPDIR and the harness's folder are at other paths",
        reaches="everything",
        remedy="Keep output paths out of names, seeds and the order of files.",
        folders=(Folder.HOME, Folder.TMP, Folder.OUT),
    ),
    Variation(
        name="clock",
        changes="the time of day is 400 days, 7 hours and 1009 seconds later",
        reaches=f"{PYTHON_ONLY}: `time` and `datetime`; durations stay as they are",
        remedy="Take no seed, split or stopping rule from the time of day.",
        kinds=("clock", "reading"),
        passed_over=DURATIONS,
    ),
    Variation(
        name="time-zone",
        changes="TZ is 5:45 h east of UTC",
        reaches="everything",
        remedy="Use UTC: datetime.now(timezone.utc), time.gmtime().",
        variables=(("TZ", "<+0545>-05:45"),),
        owned_by_user=("TZ",),
    ),
    Variation(
        name="locale",
        changes="LANG and LC_ALL name another locale that is installed",
        reaches="code that reads the locale after Python has started",
        remedy="Sort and format without the locale, or set one by its name.",
        owned_by_user=("LANG", "LC_ALL"),
    ),
    Variation(
        name="host-name",
        changes="the host has a different name",
        reaches=f"{PYTHON_ONLY}: `os`, `socket` and `platform`",
        remedy="Keep the host's name out of seeds, splits and file names.",
    ),
    Variation(
        name="umask",
        changes="new files are closed to other accounts (0077, or 0022 where they were)",
        reaches="everything",
        remedy="Do not let the result depend on the modes of files.",
    ),
    Variation(
        name="directory-order",
        changes="directories are listed backwards",
        reaches=f"{PYTHON_ONLY}: `os`, `glob`, `pathlib`",
        remedy="Sort what is listed.",
        kinds=("order",),
    ),
    Variation(
        name=HASH_SEED,
        changes="PYTHONHASHSEED is different, so sets of text have a different order",
        reaches="everything",
        remedy="Sort sets before going through them, and use hashlib instead of hash().",
        owned_by_user=(HASH_SEED_VARIABLE,),
    ),
    Variation(
        name="worker-count",
        changes="each torch DataLoader has one worker more (two instead of none)",
        reaches="DataLoaders of torch",
        remedy="Draw augmentation from a generator that is seeded by the sample's index.",
        unused="the script makes no torch DataLoader",
    ),
    Variation(
        name="cpu-load",
        changes="a busy process for each CPU runs during the training",
        reaches="everything",
        remedy="Results must not depend on timing or thread order.",
        kinds=("clock", "thread", "draw", "reading"),
    ),
    Variation(
        name="thread-delays",
        changes="threads of Python begin up to 0.06 s late, in a different order",
        reaches=f"{PYTHON_ONLY}: `threading`",
        remedy="Join threads in a fixed order, and give each its own generator.",
        kinds=("thread", "draw"),
        unused="the script starts no thread of Python's",
    ),
    Variation(
        name="uninitialized-memory",
        changes="memory that nothing has written holds a different value",
        reaches="empty() of torch and numpy, and the C library's malloc",
        remedy="Write memory before it is read: zeros() instead of empty().",
        variables=(("MALLOC_PERTURB_", "165"), (TUNABLES, perturbed_heap(165))),
        owned_by_user=("MALLOC_PERTURB_", TUNABLES),
    ),
    Variation(
        name="free-gpu-memory",
        changes="half of the GPU's free memory is taken",
        reaches="the GPU that CUDA starts with, in each process",
        remedy="Choose batch size and algorithm by number, not by free memory.",
        unused="the training uses no GPU",
        on_gpu=True,
    ),
    Variation(
        name=GPU_INDEX,
        changes="CUDA_VISIBLE_DEVICES names the GPUs in a different order",
        reaches="everything",
        remedy="Keep the number of the GPU out of seeds and splits.",
        on_gpu=True,
    ),
)
BY_NAME: Final = {variation.name: variation for variation in VARIATIONS}
