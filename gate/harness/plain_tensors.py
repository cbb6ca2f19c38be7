"""The plain tensors that a tensor of any kind is made of: what a digest or a file can hold.

Of a distributed tensor that is this rank's own part, and nothing here talks to another rank: one
that never gets here would hang the rest. Of a wrapper class (8-bit floats with their scales, 4-bit
blocks, jagged rows) it is what torch's own protocol for them names, `__tensor_flatten__`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from .plain_bytes import SAFETENSORS_TYPES, UnsupportedTensorError

Part = tuple[str, torch.Tensor]
_plain_attributes: Final[Any] = torch._C.DisableTorchFunctionSubclass  # noqa: SLF001 - documented, by no public name
_NAMES_NOTHING: Final = "{} does not name its inner tensors"
MAX_DEPTH: Final = 8
MAX_REASON_LENGTH: Final = 120
_TORCHS_OWN: Final = (torch.Tensor, nn.Parameter)  # a buffer is a plain tensor
_COMPRESSED: Final = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def plain_parts(tensor: torch.Tensor) -> list[Part]:
    """Strided tensors with memory of their own, each under its path: "" is the tensor itself.

    Nothing is copied and the graph is left behind. Raises `UnsupportedTensorError` for a tensor
    without such parts, and in place of whatever the code of its class raised.
    """
    try:
        if type(tensor) in _TORCHS_OWN and _of_layout(tensor) is None:
            return [("", _itself(tensor))]  # nearly all, thousands a step
        # a class may answer for its attributes too; here it is asked for its memory alone
        with torch.no_grad(), _plain_attributes():
            return list(_parts("", tensor, 0))
    except UnsupportedTensorError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON_LENGTH]
        raise UnsupportedTensorError(f"{type(tensor).__name__} cannot be read: {reason}") from error


def type_and_shape(tensor: torch.Tensor) -> str:
    """Type and shape as text, without asking the tensor's class.

    A length that differs from row to row is a `*`: torch numbers such lengths as they come up, so
    its own name for one would be another in each run.
    """
    with _plain_attributes():
        if tensor.is_nested and tensor.layout is torch.strided:
            return f"{tensor.dtype} nested"
        if is_lazy(tensor):
            return f"{tensor.dtype} not initialized"
        sizes = tuple(size if type(size) is int else "*" for size in tensor.shape)
        return f"{tensor.dtype} {sizes}"


def structure(parameter: torch.Tensor) -> str:
    """Its type and shape, and whether it wants a gradient, as text."""
    with _plain_attributes():
        return f"{type_and_shape(parameter)} {parameter.requires_grad}"


def gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """Its gradient, without asking the parameter's class."""
    with _plain_attributes():
        return parameter.grad


def own_number(tensor: torch.Tensor) -> torch.Tensor | None:
    """The one element of this process's part of a tensor; None where that is not one element.

    To make a number of a distributed tensor itself would be a talk with all ranks. Raises
    `UnsupportedTensorError` for a tensor that cannot be read, or has other parts than itself.
    """
    parts = plain_parts(tensor)
    if [path for path, _ in parts] != [""]:
        raise UnsupportedTensorError(f"a {type(tensor).__name__} is made of several tensors")
    number = parts[0][1]
    return number if number.numel() == 1 else None


def _parts(path: str, tensor: torch.Tensor, depth: int) -> Iterator[Part]:
    own = type(tensor) in _TORCHS_OWN
    inner: Sequence[tuple[str, Any]] | None = None if own else _of_class(tensor)
    inner = _of_layout(tensor) if inner is None else inner
    if inner is None:
        yield path, _itself(tensor)
    else:
        for name, part in inner:
            if not isinstance(part, torch.Tensor) or depth == MAX_DEPTH:
                raise UnsupportedTensorError(_NAMES_NOTHING.format(type(tensor).__name__))
            yield from _parts(f"{path}{name}", part, depth + 1)


def _of_class(tensor: Any) -> list[tuple[str, Any]] | None:
    """What a wrapper's class hands out; None for one that has memory of its own."""
    kind = type(tensor)
    if hasattr(kind, "to_local"):  # DTensor
        return [("", tensor.to_local())]
    if hasattr(kind, "trigger_wait"):  # what a collective that is under way will have filled
        return [("", tensor.trigger_wait())]
    if hasattr(kind, "__tensor_flatten__"):
        return [(f"/{name}", getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0]]
    return None


def _of_layout(tensor: torch.Tensor) -> list[Part] | None:
    """What torch's own kinds are made of; None for the plain one."""
    if tensor.is_nested:
        return [(f"/{index}", part) for index, part in enumerate(tensor.unbind())]
    if tensor.layout is torch.sparse_coo:
        # the public names want equal indices brought together first, which is work
        return [("/indices", tensor._indices()), ("/values", tensor._values())]  # noqa: SLF001 - see above
    if tensor.layout in _COMPRESSED:
        return [(f"/{name}", getattr(tensor, name)()) for name in _COMPRESSED[tensor.layout]]
    if tensor.layout is not torch.strided:
        raise UnsupportedTensorError(f"layout {tensor.layout} is not supported")
    if tensor.is_quantized:
        raise UnsupportedTensorError("quantized tensors are not supported")
    if tensor.dtype not in SAFETENSORS_TYPES:
        # bits for which hardly an operator is there, such as two 4-bit floats in a byte
        return [(f"/{str(tensor.dtype).removeprefix('torch.')}", tensor.view(torch.uint8))]
    return None


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    """A plain view of a strided tensor, once it is known to have memory of its own."""
    if tensor.is_meta:
        raise UnsupportedTensorError("tensors without plain memory are not supported")
    if is_lazy(tensor):
        raise UnsupportedTensorError("it has not been initialized")
    plain = type(tensor) in _TORCHS_OWN
    if not plain and type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        # its operators are its own, and what they would give need not be all that it holds
        raise UnsupportedTensorError(_NAMES_NOTHING.format(type(tensor).__name__))
    if tensor.numel() and tensor.data_ptr() == 0:
        raise UnsupportedTensorError("its memory has been freed")  # as sharding does it
    return tensor.detach() if plain else tensor.as_subclass(torch.Tensor).detach()
