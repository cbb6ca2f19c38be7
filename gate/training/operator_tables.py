"""Tables of torch operators: which are nondeterministic, the alternatives, and what torch misses.

`ON_CUDA_AND_CPU` repeats the two lists in the documentation of
`torch.use_deterministic_algorithms`. Tests compare it with the lists of torch 2.10 to 2.15 as they
were recorded, and with the installed torch. docs/harness-protocol.md explains names with
parentheses.

`REMEDIES` gives the advice. Torch's messages name a kernel, which is not always the function that
the user called. So the longest prefix that matches gives the remedy. Source of the list:
torch.use_deterministic_algorithms, torch 2.13.

`UNCOVERED` are modules and operators that the flag does not cover, because torch does not mark
them. A row is no proof of nondeterminism: it says that the flag promises nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

CUDA, CPU, ANY = "cuda", "cpu", "any"
FORWARD, BACKWARD = "forward", "backward"
NN, TENSOR = "torch.nn.", "torch.Tensor."
MODES = ("linear", "bilinear", "bicubic", "trilinear")


Release = tuple[int, int]
OLDEST: Final[Release] = (0, 0)
NEWEST: Final[Release] = (99, 0)
# the release of the lists, also assumed for a torch of unknown version
DOCUMENTED: Final[Release] = (2, 13)


def release_of(version: str) -> Release:
    """Return the torch release of a version such as `2.14.0+cu130`, by default `DOCUMENTED`."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})(?!\d)", version)
    return (int(match[1]), int(match[2])) if match else DOCUMENTED


class InStrictMode(StrEnum):
    """What torch does with the operator when deterministic algorithms are on."""

    REFUSED = "refused"
    REPLACED = "replaced"


@dataclass(frozen=True, kw_only=True, slots=True)
class NondeterministicOperator:
    """An operator without a deterministic form.

    `shown` is its name for a user. `seen` are the operators as the harness reports them, on any
    device. `documented` are its names in torch's documentation. `device` is where it is
    nondeterministic; `direction` is forward, backward or `any`. An empty `source` means torch's
    list. The row is true from release `since` to release `until`, both included.
    """

    shown: str
    seen: tuple[str, ...]
    documented: tuple[str, ...]
    device: str
    direction: str
    strict: InStrictMode
    source: str = ""
    since: Release = OLDEST
    until: Release = NEWEST

    def holds(self, release: Release) -> bool:
        """Return whether the row is true of a torch release."""
        return self.since <= release <= self.until

    @property
    def told_by_torch(self) -> bool:
        """Whether torch itself warns of it on every device, so the harness need not watch it."""
        return self.strict is InStrictMode.REFUSED and self.device == ANY


def _refused(
    shown: str, seen: str, documented: str, direction: str = BACKWARD, device: str = CUDA
) -> NondeterministicOperator:
    return _row(shown, seen, documented, direction, device, InStrictMode.REFUSED)


def _replaced(
    shown: str, seen: str, documented: str, direction: str = BACKWARD, device: str = CUDA
) -> NondeterministicOperator:
    return _row(shown, seen, documented, direction, device, InStrictMode.REPLACED)


def _row(
    shown: str, seen: str, documented: str, direction: str, device: str, strict: InStrictMode
) -> NondeterministicOperator:
    return NondeterministicOperator(
        shown=shown,
        seen=tuple(f"aten::{name}" for name in seen.split()),
        documented=tuple(documented.split()),
        device=device,
        direction=direction,
        strict=strict,
    )


def _many(prefix: str, *dimensions: int) -> str:
    return " ".join(f"{prefix}{number}d" for number in dimensions)


INTERPOLATE = f"{NN}functional.interpolate"
ON_CUDA_AND_CPU = (
    _refused("avg_pool3d backward", "avg_pool3d_backward", f"{NN}AvgPool3d"),
    _refused(
        "adaptive_avg_pool2d backward", "_adaptive_avg_pool2d_backward", f"{NN}AdaptiveAvgPool2d"
    ),
    _refused(
        "adaptive_avg_pool3d backward", "_adaptive_avg_pool3d_backward", f"{NN}AdaptiveAvgPool3d"
    ),
    _refused(
        "adaptive_max_pool2d backward", "adaptive_max_pool2d_backward", f"{NN}AdaptiveMaxPool2d"
    ),
    _refused(
        "fractional_max_pool2d backward",
        "fractional_max_pool2d_backward",
        f"{NN}FractionalMaxPool2d",
    ),
    _refused(
        "fractional_max_pool3d backward",
        "fractional_max_pool3d_backward",
        f"{NN}FractionalMaxPool3d",
    ),
    _refused(
        "max_unpool", _many("max_unpool", 2, 3), _many(f"{NN}MaxUnpool", 1, 2, 3), FORWARD, ANY
    ),
    _refused("interpolate (linear) backward", "upsample_linear1d_backward", INTERPOLATE),
    _refused(
        "interpolate (bicubic) backward",
        "upsample_bicubic2d_backward _upsample_bicubic2d_aa_backward",
        INTERPOLATE,
    ),
    _refused(
        "interpolate (bilinear, antialias) backward",
        "_upsample_bilinear2d_aa_backward",
        INTERPOLATE,
    ),
    _refused(
        "reflection_pad backward",
        "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward",
        _many(f"{NN}ReflectionPad", 1, 2, 3),
    ),
    _refused("nll_loss of images", "nll_loss2d_forward", f"{NN}NLLLoss", FORWARD),
    _refused("ctc_loss backward", "_ctc_loss_backward", f"{NN}CTCLoss"),
    _refused("embedding_bag (max) backward", "_embedding_bag_backward(max)", f"{NN}EmbeddingBag"),
    _refused("put_ (accumulate=False)", "put(replace)", f"{TENSOR}put_", ANY, ANY),
    _refused("put_ (accumulate=True)", "put(accumulate)", f"{TENSOR}put_", ANY),
    _refused("histc", "histc", "torch.histc", ANY),
    _refused("bincount with weights", "bincount(weights)", "torch.bincount", ANY),
    _refused("median with indices", "median(indices) nanmedian(indices)", "torch.median", ANY),
    _refused(
        "grid_sample backward",
        "grid_sampler_2d_backward grid_sampler_3d_backward",
        f"{NN}functional.grid_sample",
    ),
    replace(_refused("cumsum", "cumsum(floating)", "torch.cumsum", ANY), until=(2, 13)),
    replace(_replaced("cumsum", "cumsum(floating)", "torch.cumsum", ANY), since=(2, 14)),
    # before 2.14 torch's lists do not mention it
    replace(
        _replaced("embedding backward", "embedding_dense_backward", f"{NN}Embedding"),
        since=(2, 14),
    ),
    _refused("scatter_reduce (prod)", "scatter_reduce(prod)", f"{TENSOR}scatter_reduce", ANY),
    _refused("resize_ of a quantized tensor", "", f"{TENSOR}resize_", ANY, ANY),
    _replaced(
        "convolution",
        "convolution convolution_backward",
        f"{_many(f'{NN}Conv', 1, 2, 3)} {_many(f'{NN}ConvTranspose', 1, 2, 3)}",
        ANY,
    ),
    _replaced(
        "replication_pad backward",
        "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward",
        _many(f"{NN}ReplicationPad", 1, 2, 3),
    ),
    _replaced("bmm of a sparse tensor", "bmm(sparse)", "torch.bmm", ANY),
    _replaced("indexing backward", "index_put(accumulate)", f"{TENSOR}__getitem__", BACKWARD, CPU),
    _replaced(
        "index_put (accumulate=False)", "index_put(replace)", f"{TENSOR}index_put", FORWARD, ANY
    ),
    _replaced(
        "index_put (accumulate=True)", "index_put(accumulate)", f"{TENSOR}index_put", FORWARD, CPU
    ),
    _replaced("put_ (accumulate=True)", "put(accumulate)", f"{TENSOR}put_", ANY, CPU),
    _replaced("scatter_add", "scatter_add", f"{TENSOR}scatter_add_", FORWARD),
    _replaced("scatter_add, as in gather's backward", "scatter_add", "torch.gather"),
    _replaced("index_add", "index_add", "torch.index_add", FORWARD),
    _replaced(
        "index_add, as in index_select's backward",
        "index_add",
        "torch.index_select torch.repeat_interleave",
    ),
    _replaced("index_copy", "index_copy", f"{TENSOR}index_copy", FORWARD, ANY),
    _replaced("scatter of a tensor", "scatter(tensor)", f"{TENSOR}scatter", FORWARD),
    _replaced(
        "scatter_reduce (sum, mean)",
        "scatter_reduce(sum) scatter_reduce(mean)",
        f"{TENSOR}scatter_reduce",
        ANY,
    ),
    replace(
        _refused("max_pool3d backward", "max_pool3d_with_indices_backward", f"{NN}MaxPool3d"),
        until=(2, 12),
    ),
    replace(
        _replaced("max_pool3d backward", "max_pool3d_with_indices_backward", f"{NN}MaxPool3d"),
        since=(2, 13),
    ),
    NondeterministicOperator(
        shown="interpolate backward",
        seen=("aten::upsample_bilinear2d_backward", "aten::upsample_trilinear3d_backward"),
        documented=(INTERPOLATE,),
        device=CUDA,
        direction=BACKWARD,
        # torch's list says that it is refused; since then interpolate itself uses another form
        strict=InStrictMode.REPLACED,
        source="source of torch.nn.functional.interpolate, torch 2.13",
    ),
    NondeterministicOperator(
        shown="scaled_dot_product_attention backward",
        seen=(
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
            "aten::_scaled_dot_product_fused_attention_overrideable_backward",
        ),
        documented=(),
        device=CUDA,
        direction=BACKWARD,
        strict=InStrictMode.REPLACED,
        source="pytorch/pytorch, aten/src/ATen/native/transformers/cuda/attention_backward.cu",
    ),
)


def watched_operators() -> tuple[str, ...]:
    """Return the operators that an operator audit has to watch, without duplicates."""
    rows = (row for row in ON_CUDA_AND_CPU if not row.told_by_torch and row.device != CPU)
    return tuple(dict.fromkeys(name for row in rows for name in row.seen))


def row_on_cuda(
    seen: str, direction: str, release: Release = DOCUMENTED
) -> NondeterministicOperator | None:
    """Return the row of an operator that is nondeterministic on CUDA in this release, or None."""
    for row in ON_CUDA_AND_CPU:
        if not row.holds(release):
            continue
        if row.device != CPU and seen in row.seen and row.direction in (ANY, direction):
            return row
    return None


PLAIN = "Replace it, or compute that part on the CPU."
REMEDIES = MappingProxyType(
    {
        "put": "Use index_put_ or scatter with indices that occur once.",
        "max_unpool": "Upsample with interpolate(mode='nearest') or a transposed convolution.",
        "adaptive_avg_pool": "Use avg_pool2d with a fixed kernel, or mean() over the whole image.",
        "adaptive_max_pool": "Use max_pool2d with a fixed kernel, or amax() over the whole image.",
        "avg_pool3d": "Take the mean over the dimensions, or use a convolution.",
        "fractional_max_pool": "Use max_pool2d.",
        "upsample": "Use interpolate(mode='nearest'), or a transposed convolution.",
        "reflection_pad": "Use zero or replicate padding.",
        "nll_loss2d": "Reshape to (N*H*W, C) and use the one-dimensional loss.",
        "ctc_loss": "Compute the loss on the CPU.",
        "embedding_bag": "Use mode='sum' or 'mean'.",
        "histc": "Use bincount on integers, or compute it on the CPU.",
        "bincount": "Leave the weights out, or use index_add_.",
        "median": "Take the middle of sort(stable=True).",
        "grid_sampler": "Compute it on the CPU, or do not ask for its gradient.",
        "cumsum": "Compute it on the CPU, or in integers.",
        "scatter_reduce": "Use reduce='sum' or 'mean'.",
        "kthvalue": "Use sort(stable=True).",
        "Flash Attention": "Do not list it: in full strict mode torch takes its deterministic "
        "form. Replace the other operators of the list instead.",
        "Memory Efficient attention": "Do not list it: in full strict mode torch takes its "
        "deterministic form. Replace the other operators of the list instead.",
    }
)


def remedy_for(operator: str) -> str:
    """Return the advice for this operator."""
    names = (name for name in REMEDIES if operator.lstrip("_").startswith(name))
    best = max(names, key=len, default="")
    return REMEDIES.get(best, PLAIN)


def admitting_entry(operators: tuple[str, ...]) -> str:
    """Return the lines of repro-gate.yml that would allow these operators."""
    names = ", ".join(f"'{name}'" for name in operators)
    return f"determinism: {{allow_operators: [{names}]}}"


ANY = "any"


class RowKind(StrEnum):
    """What the harness watches: the import of a module, or a call of an operator."""

    MODULE = "module"
    OPERATOR = "operator"


@dataclass(frozen=True, kw_only=True, slots=True)
class UncoveredOperator:
    """A module or an operator that torch's flag does not cover.

    `name` is a module or `namespace::operator`; `device` and `direction` may be `any`. The row is
    true of torch up to release `until`, included.
    """

    kind: RowKind
    name: str
    device: str
    direction: str
    why: str
    remedy: str
    source: str
    until: Release = NEWEST


def _module(name: str, why: str, remedy: str, source: str) -> UncoveredOperator:
    """Return a row for a package with GPU kernels, whose trouble is mostly in the backward pass."""
    return UncoveredOperator(
        kind=RowKind.MODULE,
        name=name,
        device=ANY,
        direction="backward",
        why=why,
        remedy=remedy,
        source=source,
    )


def _operator(name: str, why: str, remedy: str, source: str, *where: str) -> UncoveredOperator:
    device, direction = where or (ANY, ANY)
    return UncoveredOperator(
        kind=RowKind.OPERATOR,
        name=name,
        device=device,
        direction=direction,
        why=why,
        remedy=remedy,
        source=source,
    )


UNCOVERED = (
    _module(
        "flash_attn",
        "its backward pass adds in no fixed order by default",
        "Pass deterministic=True to its functions.",
        "Dao-AILab/flash-attention, README: deterministic backward",
    ),
    _module(
        "flash_attn_interface",
        "FlashAttention 3: some builds ignore the deterministic option",
        "Pass deterministic=True, and let two runs decide.",
        "Dao-AILab/flash-attention 1766",
    ),
    _module(
        "transformer_engine",
        "chooses kernels by its own environment variables",
        "Keep NVTE_ALLOW_NONDETERMINISTIC_ALGO=0, which strict runs set; avoid its fused "
        "cross-entropy.",
        "NVIDIA Megatron-LM, docs/developer/determinism",
    ),
    _module(
        "mamba_ssm",
        "its Triton kernels add atomically and choose configurations by timing",
        "Set MAMBA_DETERMINISTIC=1 in train.env.",
        "NVIDIA Megatron-LM, megatron/training/determinism.py",
    ),
    _module(
        "causal_conv1d",
        "its backward pass adds atomically",
        "Set CAUSAL_CONV1D_DETERMINISTIC=1 in train.env (version 1.6 or later).",
        "NVIDIA Megatron-LM, megatron/training/determinism.py",
    ),
    _module(
        "xformers",
        "its attention chooses among kernels whose backward passes differ",
        "Use torch's scaled_dot_product_attention, which the flag covers.",
        "facebookresearch/xformers, xformers.ops.fmha",
    ),
    _module(
        "torch.nn.attention.flex_attention",
        "decoding shapes gave different gradients from run to run",
        "Use scaled_dot_product_attention for the smoke training.",
        "meta-pytorch/attention-gym 220",
    ),
    replace(
        _module(
            "torch._inductor.compile_fx",
            "a compiled cumsum gave different results from run to run, in strict mode too",
            "Update to torch 2.14, or keep cumsum out of compiled code (torch.compiler.disable).",
            "pytorch/pytorch 190946 and 190980",
        ),
        direction=ANY,
        until=(2, 13),
    ),
    _operator(
        "aten::topk",
        "there were ties; which index wins is not guaranteed",
        "Break ties before, or use sort(stable=True).",
        "pytorch/pytorch 186653",
    ),
    _operator(
        "aten::sort",
        "equal values were sorted without stable=True; their order is not guaranteed",
        "Pass stable=True to sort and argsort.",
        "torch.sort, documentation of `stable`",
    ),
    _operator(
        "aten::kthvalue",
        "the value occurs more than once; which index is returned is not guaranteed",
        "Break ties before, or use sort(stable=True).",
        "pytorch/pytorch 186883 and 187252",
    ),
    _operator(
        "torchvision::_roi_align_backward",
        "adds atomically on the GPU",
        "Compute it on the CPU, or freeze what comes before it.",
        "pytorch/vision 7579",
        "cuda",
        "backward",
    ),
    _operator(
        "higher_order::flex_attention_backward",
        "decoding shapes gave different gradients from run to run",
        "Use scaled_dot_product_attention for the smoke training.",
        "meta-pytorch/attention-gym 220",
        "cuda",
        "backward",
    ),
)
AUTOTUNER_WHY = "Triton chose its configuration by timing"
AUTOTUNER_REMEDY = "Leave one configuration in @triton.autotune."
OWN_WHY = "an operator of your own or of a package"
OWN_REMEDY = "Only equal runs are evidence for it; sum in a fixed order."


def watch_list() -> str:
    """Return all names for the harness, separated by semicolons.

    They are `module:name` and `operator:name`, including the operators that are nondeterministic on
    CUDA.
    """
    own = (f"{row.kind.value}:{row.name}" for row in UNCOVERED)
    return ";".join((*own, *(f"{RowKind.OPERATOR.value}:{name}" for name in watched_operators())))


def module_row(name: str, release: Release = DOCUMENTED) -> UncoveredOperator | None:
    """Return the row of an imported module if it is true of this torch release, else None."""
    return next((row for row in _rows(RowKind.MODULE, name) if release <= row.until), None)


def is_watched_operator(name: str) -> bool:
    """Return whether either table lists the operator."""
    return name in watched_operators() or any(_rows(RowKind.OPERATOR, name))


def operator_row(name: str, device: str, direction: str) -> UncoveredOperator | None:
    """Return the row of an operator that applies on this device in this direction, or None."""
    for row in _rows(RowKind.OPERATOR, name):
        if row.device in (ANY, device) and row.direction in (ANY, direction):
            return row
    return None


def uncovered_on_cuda(name: str, direction: str) -> UncoveredOperator | None:
    """Return the row that applies on CUDA only, for a call that ran on another device, or None."""
    row = operator_row(name, CUDA, direction)
    return row if row is not None and row.device == CUDA else None


def _rows(kind: RowKind, name: str) -> tuple[UncoveredOperator, ...]:
    return tuple(row for row in UNCOVERED if row.kind is kind and row.name == name)
