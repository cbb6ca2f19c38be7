"""Tensors of every kind that a training may have, each made from one number."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor

Make = Callable[[float], torch.Tensor]


class Wrapper(torch.Tensor):
    """A tensor subclass without memory, on which no operator works.

    It stands for a quantized weight that only one special kernel can read.
    """

    held: float

    @staticmethod
    def __new__(cls: type[Self], shape: tuple[int, ...], held: float) -> Self:
        make: Callable[..., Self] = torch.Tensor._make_wrapper_subclass
        made = make(cls, shape, dtype=torch.bfloat16)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: object, *_: object) -> object:
        raise NotImplementedError(f"{func} is not\nimplemented")


class Float8(Wrapper):
    """8-bit floats and their scale, as fp8 training keeps its weights."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["data_", "scale"], None

    def __init__(self, shape: tuple[int, ...], held: float) -> None:
        self.data_ = torch.full(shape, held).to(torch.float8_e4m3fn)
        self.scale = torch.tensor(2.0)


class FourBit(Wrapper):
    """4-bit floats, two per byte, in a wrapper inside another wrapper."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["packed", "scales"], None

    def __init__(self, shape: tuple[int, ...], held: float) -> None:
        halves = torch.full((shape[0], shape[1] // 2), int(held), dtype=torch.uint8)
        self.packed = halves.view(torch.float4_e2m1fn_x2)
        self.scales = Float8(shape[:1], held)


class NamesNothing(Wrapper):
    """A wrapper that breaks the protocol: the attribute that it names is no tensor."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None


class HoldsItself(Wrapper):
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["itself"], None

    @property
    def itself(self) -> torch.Tensor:
        return self


class Raises(Wrapper):
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        raise ValueError("not today")


class Answers(torch.Tensor):
    """A tensor with memory, which intercepts every function that is called on it."""

    @classmethod
    def __torch_function__(cls, *_: object, **__: object) -> object:
        raise RuntimeError("asked")


class Images(torch.Tensor):
    """A subclass that changes nothing but the tensor's class."""


def _uninitialized(_: float) -> torch.Tensor:
    return nn.UninitializedParameter()


def _freed(value: float) -> torch.Tensor:
    made = torch.full((2, 4), value)
    made.untyped_storage().resize_(0)
    return made


def _fake(value: float) -> torch.Tensor:
    with FakeTensorMode():
        return torch.full((2, 4), value)


def _nested(value: float) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is a prototype
        return torch.nested.nested_tensor([torch.full((2,), value), torch.ones(3)])


def _jagged(value: float) -> torch.Tensor:
    parts = [torch.full((2,), value), torch.ones(3)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def _sparse(layout: torch.layout, *blocks: tuple[int, int]) -> Make:
    def make(value: float) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some of them call themselves a beta
            return (torch.eye(4) * value).to_sparse(layout=layout, blocksize=(blocks or (None,))[0])

    return make


def _bits(dtype: torch.dtype) -> Make:
    def make(value: float) -> torch.Tensor:
        size = torch.empty((), dtype=dtype).element_size()
        data = torch.full((8 * size,), int(value) % 2, dtype=torch.uint8)
        return data.view(dtype)

    return make


def _quantized(value: float) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is to go
        return torch.quantize_per_tensor(torch.full((2,), value), 0.1, 0, torch.qint8)


DTYPES = tuple(
    dict.fromkeys(
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits"))
    )
)
# The kinds that the harness digests and writes to a file.
RECORDED: Mapping[str, Make] = {
    **{str(dtype): _bits(dtype) for dtype in DTYPES},
    "parameter": lambda value: nn.Parameter(torch.full((2, 4), value)),
    "buffer": lambda value: nn.Buffer(torch.full((2, 4), value)),
    "scalar": torch.tensor,
    "transposed": lambda value: torch.full((2, 4), value).t(),
    "channels last": lambda value: torch.full((2, 3, 4, 4), value).to(
        memory_format=torch.channels_last
    ),
    "conjugated": lambda value: torch.full((2,), 1j * value).conj(),
    "negated": lambda value: torch.full((2,), 1j * value).conj().imag,
    "expanded": lambda value: torch.tensor([value]).expand(5),
    "sparse coo": _sparse(torch.sparse_coo),
    "sparse csr": _sparse(torch.sparse_csr),
    "sparse csc": _sparse(torch.sparse_csc),
    "sparse bsr": _sparse(torch.sparse_bsr, (2, 2)),
    "sparse bsc": _sparse(torch.sparse_bsc, (2, 2)),
    "nested": _nested,
    "jagged": _jagged,
    "8-bit floats": lambda value: Float8((2, 4), value),
    "4-bit floats": lambda value: FourBit((2, 4), value),
    "under way": lambda value: AsyncCollectiveTensor(torch.full((2, 4), value)),
    "another name": lambda value: torch.full((2, 4), value).as_subclass(Images),
    "answers": lambda value: torch.full((2, 4), value).as_subclass(Answers),
}
# The kinds that are left out, with the reason that the harness reports.
LEFT_OUT: Mapping[str, tuple[Make, str]] = {
    "meta": (
        lambda _: torch.empty(2, device="meta"),
        "tensors without plain memory are not supported",
    ),
    "quantized": (_quantized, "quantized tensors are not supported"),
    "mkldnn": (
        lambda value: torch.full((2, 4), value).to_mkldnn(),
        "layout torch._mkldnn is not supported",
    ),
    "not initialized": (_uninitialized, "it has not been initialized"),
    "freed": (_freed, "its memory has been freed"),
    "fake": (_fake, "FakeTensor does not name its inner tensors"),
    "names nothing": (
        lambda value: NamesNothing((2, 4), value),
        "NamesNothing does not name its inner tensors",
    ),
    "holds itself": (
        lambda value: HoldsItself((2, 4), value),
        "HoldsItself does not name its inner tensors",
    ),
    "wrapper": (
        lambda value: Wrapper((2, 4), value),
        "Wrapper does not name its inner tensors",
    ),
    "raises": (lambda value: Raises((2, 4), value), "Raises cannot be read: ValueError: not today"),
}
