"""The harness's settings, and facts that a process knows before torch is there.

Every Python process of a training imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


PREFIX = "REPRO_GATE_"
STRICT = "strict"
OPERATOR_AUDIT = "audit"
MODULE, OPERATOR = "module:", "operator:"
ON = "on"
FILL, ONE_THREAD = "fill:", "one-thread"
ONE_WORKER, NO_LOADER_WORKERS = "one-worker", "no-loader-workers"
FIXED_COLLECTIVES = "fixed-collectives"
# The knobs that are environment variables; in this module because processes without torch need
# them.
VARIABLES = {
    "hash_seed": "PYTHONHASHSEED",
    "omp_threads": "OMP_NUM_THREADS",
    "omp_dynamic": "OMP_DYNAMIC",
    "mkl_threads": "MKL_NUM_THREADS",
    "mkl_dynamic": "MKL_DYNAMIC",
    "mkl_cbwr": "MKL_CBWR",
    "cublas_workspace": "CUBLAS_WORKSPACE_CONFIG",
    "inductor_deterministic": "TORCHINDUCTOR_DETERMINISTIC",
    "flash_attention": "FLASH_ATTENTION_DETERMINISTIC",
    "transformer_engine": "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
    "nccl_algorithm": "NCCL_ALGO",
}


class HarnessSettings:
    """The gate's environment variables, parsed.

    Seeds and threads are set in every mode.

    *Knobs.* `knobs` maps a knob to its value. For a knob that it lacks, `strict` picks the column
    of the table of knobs. `on_override` is `observe`, `restore` or `fail`.

    *Observation.* `observe` asks for digests. `overhead_budget` is the fraction of a step's time
    that they may take. `free_seconds` is the time that a run may spend on them in any case. `noise`
    asks for the gradients of the first step. `tree` is the copy of the commit that is trained.

    *Operators.* `allowed` names operators without a deterministic form that may run in strict mode
    nevertheless. `operator_audit` asks to count such operators instead. `modules` and `operators`
    name what else to look for. `trace_from` is the step from which each operator call is traced, 0
    for none; `trace_lines` adds the executed lines.

    *Early end.* The run is stopped on purpose once every optimizer has taken `end_step` steps, 0
    for never. `end_optimizers` are the numbers of optimizers by rank. With `end_written` the run
    goes on to the next update.

    *Preemption.* The run is ended as by a preemption after `preempt_step` steps, 0 for never.
    `preempt_path` is its checkpoint. `kill_save` says where inside the save after that step it is
    ended instead. A `resumed` run records the state that it starts with.

    *Other runs.* `trial` is the one setting that a diagnostic run changes, empty in all others;
    `fill` is its byte for new memory, None for none. `shake` is the variation of a run of
    `repro-gate shake`, or empty. `sign` is the file whose existence lets a waiting run go.
    """

    __slots__ = (
        "allowed",
        "end_optimizers",
        "end_step",
        "end_written",
        "fill",
        "free_seconds",
        "kill_save",
        "knobs",
        "max_steps",
        "modules",
        "noise",
        "observe",
        "on_override",
        "operator_audit",
        "operators",
        "out",
        "overhead_budget",
        "preempt_path",
        "preempt_step",
        "resumed",
        "seed",
        "shake",
        "sign",
        "strict",
        "threads",
        "trace_from",
        "trace_lines",
        "tree",
        "trial",
    )

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raise `ValueError` with the variable's name if one is missing or malformed."""
        self.out = _text(environ, "OUT")
        # a damaged variable could name the root folder, where a root user could write
        if not self.out.strip("/"):
            raise ValueError(f"{PREFIX}OUT is {self.out!r}, not the folder of a run")
        self.tree = environ.get(f"{PREFIX}TREE", "")
        self.strict = _text(environ, "MODE") == STRICT
        self.seed = _whole_number(environ, "SEED")
        self.max_steps = _whole_number(environ, "MAX_STEPS")
        self.threads = _whole_number(environ, "THREADS")
        self.knobs = _pairs(environ.get(PREFIX + "KNOBS", ""))
        self.on_override = environ.get(PREFIX + "ON_OVERRIDE", "observe")
        self.noise = environ.get(f"{PREFIX}NOISE", "") == "1"
        self.observe = environ.get(f"{PREFIX}OBSERVE", "on") != "off"
        self.overhead_budget = float(environ.get(f"{PREFIX}OVERHEAD_BUDGET", "0.02"))
        self.free_seconds = float(environ.get(f"{PREFIX}FREE_SECONDS", "0"))
        self.operator_audit = _text(environ, "MODE") == OPERATOR_AUDIT
        self.allowed = frozenset(_words(environ, "ALLOW", ""))
        self.modules = _words(environ, "WATCH", MODULE)
        self.trace_from = int(environ.get(f"{PREFIX}TRACE_FROM", "0"))
        self.trace_lines = environ.get(f"{PREFIX}TRACE_LINES", "") == "1"
        self.end_step = int(environ.get(f"{PREFIX}END_STEP", "0"))
        counts = environ.get(f"{PREFIX}END_OPTIMIZERS", "").split(";")
        self.end_optimizers = tuple(map(int, filter(None, counts)))
        self.end_written = environ.get(f"{PREFIX}END_WRITTEN", "") == "1"
        self.preempt_step = int(environ.get(f"{PREFIX}PREEMPT_STEP", "0"))
        self.preempt_path = environ.get(f"{PREFIX}PREEMPT_PATH", "")
        self.kill_save = environ.get(f"{PREFIX}KILL_SAVE", "")
        self.resumed = environ.get(f"{PREFIX}RESUMED", "") == "1"
        self.operators = frozenset(_words(environ, "WATCH", OPERATOR))
        self.shake = environ.get(f"{PREFIX}SHAKE", "")
        self.sign = environ.get(f"{PREFIX}LET_GO", "")
        self.trial = environ.get(f"{PREFIX}TRIAL", "")
        self.fill = int(self.trial[len(FILL) :]) if self.trial.startswith(FILL) else None

    def seeds(self, knob: str) -> bool:
        """Whether the generator of this knob is to be seeded."""
        return self.knobs.get(knob, ON) == ON

    @property
    def warn_only(self) -> bool:
        """Whether torch must warn, not refuse, for operators without a deterministic form."""
        return self.operator_audit or (self.strict and bool(self.allowed))


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(PREFIX + name, "")
    if not value:
        raise ValueError(f"{PREFIX}{name} is not set")
    return value


def _whole_number(environ: Mapping[str, str], name: str) -> int:
    text = _text(environ, name)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{PREFIX}{name} is {text!r}, not a whole number")
    return int(text)


def _words(environ: Mapping[str, str], name: str, kind: str) -> tuple[str, ...]:
    """Return the words between semicolons that begin with `kind`, without that prefix."""
    words = environ.get(PREFIX + name, "").split(";")
    return tuple(word[len(kind) :] for word in words if word and word.startswith(kind))


def _pairs(text: str) -> dict[str, str]:
    """Parse `name=value;name=value`; values contain neither sign."""
    table = {}
    for pair in filter(None, text.split(";")):
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{PREFIX}KNOBS: {pair!r} is not name=value")
        table[name] = value
    return table


# The plain functions, taken before the harness hooks them. The harness uses them several times a
# step and must not report itself.
perf_counter = time.perf_counter
monotonic = time.monotonic
process_id = os.getpid

# Of this process, or of the one that it was forked from, since that is when a person's wait begins.
# The start-up hook imports this module before the harness does much else.
started_at = perf_counter()


def is_worker() -> bool:
    """Whether multiprocessing has started this interpreter as a worker.

    The command line is all that is known before the worker's code runs. A forked worker has its
    parent's generators and does not count.
    """
    return "--multiprocessing-fork" in sys.orig_argv


def current_rank() -> int:
    """Return the rank that the launcher (torchrun, accelerate, the script itself) has set, or 0."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isascii() and text.isdigit() else 0
