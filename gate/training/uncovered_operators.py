"""The project's own table: what PyTorch's determinism flag is not known to reach, and what to do.

`torch.use_deterministic_algorithms` speaks for operators that torch marks itself. The rows here
stand for the others. A row is no proof of nondeterminism: it says that the flag gives no promise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from gate.training.operator_tables import CUDA, DOCUMENTED, NEWEST, Release, watched

ANY = "any"


class RowKind(StrEnum):
    """What the harness looks for: an imported module, or a call of an operator."""

    MODULE = "module"
    OPERATOR = "operator"


@dataclass(frozen=True, kw_only=True, slots=True)
class UncoveredOperator:
    """`name` is a module or `namespace::operator`; `device` and `direction` may be `any`.

    The row holds for torch up to the release `until`.
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
    """A package whose kernels run on the GPU; most of the trouble is in its backward pass."""
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
        "Compute it on the CPU, or freeze what lies before it.",
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
    """All rows as the harness takes them: `module:name` and `operator:name` between semicolons.

    What would be nondeterministic on CUDA is among them.
    """
    own = (f"{row.kind.value}:{row.name}" for row in UNCOVERED)
    return ";".join((*own, *(f"{RowKind.OPERATOR.value}:{name}" for name in watched())))


def module_row(name: str, release: Release = DOCUMENTED) -> UncoveredOperator | None:
    """The row of an imported module, where it holds for that release of torch."""
    return next((row for row in _rows(RowKind.MODULE, name) if release <= row.until), None)


def is_watched_operator(name: str) -> bool:
    """Whether this table or the one of CUDA lists the operator at all."""
    return name in watched() or any(_rows(RowKind.OPERATOR, name))


def operator_row(name: str, device: str, direction: str) -> UncoveredOperator | None:
    """The row of an operator, where it applies on that device in that direction."""
    for row in _rows(RowKind.OPERATOR, name):
        if row.device in (ANY, device) and row.direction in (ANY, direction):
            return row
    return None


def uncovered_on_cuda(name: str, direction: str) -> UncoveredOperator | None:
    """The row that speaks for CUDA alone, for a call that another device made."""
    row = operator_row(name, CUDA, direction)
    return row if row is not None and row.device == CUDA else None


def _rows(kind: RowKind, name: str) -> tuple[UncoveredOperator, ...]:
    return tuple(row for row in UNCOVERED if row.kind is kind and row.name == name)
