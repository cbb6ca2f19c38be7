"""Every determinism knob by name: where it acts, what each profile sets, which knobs have a cost.

The harness runs without this package, so it has its own table of what it sets inside the process. A
test compares the two tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ON: Final = "on"
OFF: Final = "off"
KEEP: Final = "keep"
SWITCH_WORDS = f"{ON}|{OFF}"
SAFE_VALUE = re.compile(r"[A-Za-z0-9_.:,^+-]{1,100}\Z")
ONE_DETERMINISTIC_ALGORITHM = "Ring|CollnetDirect|CollnetChain"


class Acts(StrEnum):
    """Where a knob takes effect, which determines when it must be set."""

    ENVIRONMENT = "environment variable, set before the process starts"
    SEED = "seed, set when the module that draws is imported"
    TORCH = "switch, set when torch has been imported"


class Profile(StrEnum):
    """A named setting of all knobs."""

    STRICT = "strict"
    DEFAULT = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class Knob:
    """One knob.

    `strict` and `default` are words: `on`, `off`, `keep` (leave it as it is), or a value that the
    regular expression `accepts` matches. `on` is the text that the word on stands for in the
    `variable`; `{seed}` and `{threads}` are filled in. A variable whose word is `off` is not set.
    `every_run` marks a parameter of the experiment, which is the same in default runs. `gpu_alone`
    marks a knob without effect on a training on a CPU.
    """

    name: str
    acts: Acts
    strict: str
    default: str
    accepts: str
    source: str
    variable: str = ""
    on: str = ""
    every_run: bool = False
    gpu_alone: bool = False

    def accepts_value(self, value: str) -> bool:
        """Decide whether this value keeps the purpose of the knob."""
        return re.fullmatch(self.accepts, value) is not None


def _variable(  # noqa: PLR0913 - one row of a table
    name: str,
    variable: str,
    on: str,
    accepts: str,
    source: str,
    *,
    strict: str = ON,
    default: str = KEEP,
    gpu_alone: bool = False,
) -> Knob:
    return Knob(
        name=name,
        acts=Acts.ENVIRONMENT,
        strict=strict,
        default=default,
        accepts=accepts,
        source=source,
        variable=variable,
        on=on,
        every_run=default == ON,
        gpu_alone=gpu_alone,
    )


def _seed(name: str, source: str) -> Knob:
    return Knob(
        name=name,
        acts=Acts.SEED,
        strict=ON,
        default=ON,
        accepts=SWITCH_WORDS,
        source=source,
        every_run=True,
    )


def _switch(
    name: str, strict: str, source: str, *, accepts: str = SWITCH_WORDS, gpu_alone: bool = False
) -> Knob:
    return Knob(
        name=name,
        acts=Acts.TORCH,
        strict=strict,
        default=KEEP,
        accepts=accepts,
        source=source,
        gpu_alone=gpu_alone,
    )


def _precision(name: str, accepts: str, source: str) -> Knob:
    """Return a knob of the user's choice: always recorded, changed on request in every run."""
    return Knob(
        name=name,
        acts=Acts.TORCH,
        strict=KEEP,
        default=KEEP,
        accepts=accepts,
        source=source,
        every_run=True,
    )


_INTEL = "Intel oneMKL, Obtaining Numerically Reproducible Results"
_TORCH = "torch.use_deterministic_algorithms"
_CUDNN = "PyTorch, Reproducibility: cuDNN"
_FP32 = "torch.backends.cuda.matmul.allow_tf32"
_FP32_CUDNN = "torch.backends.cudnn.allow_tf32"
_REDUCED = "PyTorch, CUDA semantics: reduced precision reduction in GEMMs"
_FP32_WORDS = "ieee|tf32"

KNOBS: Final = (
    # Python reads it once at its start, so a script that sets it for itself has no effect
    _variable("hash_seed", "PYTHONHASHSEED", "{seed}", r"[0-9]{1,10}", "Python", default=ON),
    _variable(
        # the number of threads determines how a sum is split, and so its last bit
        "omp_threads",
        "OMP_NUM_THREADS",
        "{threads}",
        "[1-9][0-9]{0,3}",
        "OpenMP 5.2",
        default=ON,
    ),
    # in dynamic mode the runtime uses fewer threads than allowed when the machine is busy
    _variable("omp_dynamic", "OMP_DYNAMIC", "FALSE", "(?i:false)", _INTEL, default=ON),
    _variable("mkl_threads", "MKL_NUM_THREADS", "{threads}", "[1-9][0-9]{0,3}", _INTEL, default=ON),
    _variable("mkl_dynamic", "MKL_DYNAMIC", "FALSE", "(?i:false)", _INTEL, default=ON),
    # one code path for all x86 CPUs: only a comparison of two kinds of machine needs it, so the
    # default is to keep it
    _variable("mkl_cbwr", "MKL_CBWR", "COMPATIBLE", "[A-Z0-9_]+(,STRICT)?", _INTEL, strict=KEEP),
    _variable(
        # with several CUDA streams, cuBLAS chooses its workspace at run time; both sizes prevent
        # that
        "cublas_workspace",
        "CUBLAS_WORKSPACE_CONFIG",
        ":4096:8",
        ":4096:8|:16:8",
        "NVIDIA cuBLAS, Results Reproducibility",
        gpu_alone=True,
    ),
    _variable(
        "inductor_deterministic", "TORCHINDUCTOR_DETERMINISTIC", "1", "1", "torch._inductor.config"
    ),
    _variable(
        "flash_attention",
        "FLASH_ATTENTION_DETERMINISTIC",
        "1",
        "1",
        "transformers, FlashAttention",
        gpu_alone=True,
    ),
    _variable(
        "transformer_engine",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
        "0",
        "0",
        "Transformer Engine",
        gpu_alone=True,
    ),
    _variable(
        # by itself NCCL chooses by size and topology, and each algorithm adds in a different order
        "nccl_algorithm",
        "NCCL_ALGO",
        "Ring",
        rf"(?i:({ONE_DETERMINISTIC_ALGORITHM})(,({ONE_DETERMINISTIC_ALGORITHM}))*|\^NVLS)",
        "Megatron-LM, deterministic mode",
        gpu_alone=True,
    ),
    _seed("seed_python", "random.seed"),
    _seed("seed_numpy", "numpy.random.seed"),
    _seed("seed_torch", "torch.manual_seed"),
    _seed("seed_cuda", "torch.cuda.manual_seed_all"),
    _seed("seed_workers", "processes that multiprocessing starts fresh"),
    _switch("deterministic_algorithms", ON, _TORCH, accepts=f"{SWITCH_WORDS}|warn"),
    # off: filling would hide a read of memory that was never written, a fault that should be found
    _switch("memory_fill", OFF, "torch.utils.deterministic.fill_uninitialized_memory"),
    _switch("cudnn_deterministic", ON, _CUDNN, gpu_alone=True),
    # it times the algorithms and takes the fastest, so the clock decides
    _switch("cudnn_benchmark", OFF, _CUDNN, gpu_alone=True),
    _switch("attention_cudnn", OFF, "torch.backends.cuda.enable_cudnn_sdp", gpu_alone=True),
    _switch("attention_flash", KEEP, "torch.backends.cuda.enable_flash_sdp"),
    _switch(
        "attention_mem_efficient",
        KEEP,
        "torch.backends.cuda.enable_mem_efficient_sdp",
        gpu_alone=True,
    ),
    # precision changes a result but not its repeatability, so strict mode leaves it to the user
    _precision("fp32_matmul", _FP32_WORDS, _FP32),
    _precision("fp32_cudnn", _FP32_WORDS, _FP32_CUDNN),
    _precision("reduced_fp16", SWITCH_WORDS, _REDUCED),
    _precision("reduced_bf16", SWITCH_WORDS, _REDUCED),
)
BY_NAME: Final[Mapping[str, Knob]] = {knob.name: knob for knob in KNOBS}


def check_override(name: str, word: str) -> None:
    """Raise `ValueError` for an unknown knob, or a value that the knob cannot take."""
    knob = BY_NAME.get(name)
    if knob is None:
        message = f"{name!r} is not a knob; there are {', '.join(BY_NAME)}"
        raise ValueError(message)
    if word in {ON, OFF, KEEP} and (knob.acts is not Acts.TORCH or knob.accepts_value(word)):
        return
    if word != KEEP and not (SAFE_VALUE.match(word) and knob.accepts_value(word)):
        switches = "" if knob.acts is Acts.TORCH else ", on, off"
        message = f"{name} cannot be {word!r}; it takes {knob.accepts}{switches} or keep"
        raise ValueError(message)


def effective_knobs(
    profile: Profile, overrides: Mapping[str, str], *, strict_run: bool
) -> dict[str, str]:
    """Return the word of every knob for one run.

    Default runs have the `default` words. Only overrides of experiment parameters (seeds, threads,
    precision) apply to them, so that the two kinds of run differ in determinism alone.
    """
    words = {}
    for knob in KNOBS:
        strict = strict_run and profile is Profile.STRICT
        words[knob.name] = knob.strict if strict else knob.default
        # these apply in default runs too; otherwise the cost would compare two different trainings
        if knob.name in overrides and (strict_run or knob.every_run):
            words[knob.name] = overrides[knob.name]
    return words


class PricedKnob(StrEnum):
    """A knob that strict mode sets and whose cost is measured; the value is its shown name."""

    DETERMINISTIC_ALGORITHMS = "deterministic_algorithms"
    CUDNN_DETERMINISTIC = "cudnn_deterministic"
    CUDNN_BENCHMARK_OFF = "cudnn_benchmark_off"
    CUBLAS_WORKSPACE = "cublas_workspace"
    INDUCTOR_DETERMINISTIC = "inductor_deterministic"
    FLASH_ATTENTION = "flash_attention"
    TRANSFORMER_ENGINE = "transformer_engine"
    FILL = "fill_uninitialized_memory"


KnobSet = frozenset[PricedKnob]
NO_KNOBS: KnobSet = frozenset()
ALL_KNOBS: KnobSet = frozenset(PricedKnob)
# Filling costs time and hides reads of uninitialised memory, so it is a separate request.
STRICT_KNOBS: KnobSet = ALL_KNOBS - {PricedKnob.FILL}
# These configure libraries that run only on a GPU; on a CPU they have no effect.
GPU_KNOBS: KnobSet = frozenset(
    {
        PricedKnob.CUDNN_DETERMINISTIC,
        PricedKnob.CUDNN_BENCHMARK_OFF,
        PricedKnob.CUBLAS_WORKSPACE,
        PricedKnob.FLASH_ATTENTION,
        PricedKnob.TRANSFORMER_ENGINE,
    }
)


def strict_knobs(*, fill: bool) -> KnobSet:
    """Return the knobs of a strict run, with or without memory fill."""
    return ALL_KNOBS if fill else STRICT_KNOBS


def knob_names(knobs: KnobSet) -> tuple[str, ...]:
    """Return the names of the knobs, in the order of `PricedKnob`."""
    return tuple(knob.value for knob in PricedKnob if knob in knobs)


# For each priced knob: its name in the table, its word if it is in the set, and if it is not.
_WORDS = {
    PricedKnob.CUDNN_BENCHMARK_OFF: ("cudnn_benchmark", OFF, KEEP),
    PricedKnob.FILL: ("memory_fill", ON, OFF),
}


def priced_words(knobs: KnobSet) -> dict[str, str]:
    """Return the word of each priced knob for a run with this set."""
    rows = ((*_WORDS.get(knob, (knob.value, ON, KEEP)), knob in knobs) for knob in PricedKnob)
    return {name: inside if there else outside for name, inside, outside, there in rows}
