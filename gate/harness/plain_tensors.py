"""Reads tensors of any kind as plain bytes, and writes them as a safetensors file.

A distributed tensor is read as this rank's own part. Nothing here talks to another rank: a rank
that never gets here would make the others hang. A wrapper class (8-bit floats with their scales,
4-bit blocks, jagged rows) is read as its inner tensors. torch's protocol for wrappers,
`__tensor_flatten__`, names them.

The file's layout: 8 bytes little-endian header length; a JSON header that gives each name its
`dtype`, `shape` and `data_offsets` from the header's end; then the raw little-endian bytes without
gaps. Names are sorted here, and the header is padded with spaces to a multiple of 8. Its
`__metadata__` says that a name is a path with slashes, where other files have a single key.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

# The type names of safetensors; C32, C128 and two 8-bit floats are additions in the same style.
SAFETENSORS_TYPES: Final = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex32: "C32",
    torch.complex64: "C64",
    torch.complex128: "C128",
}


class UnsupportedTensorError(TypeError):
    """A tensor whose elements are not plain memory; the message says why."""


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor without gaps, lazy conjugation or negation; copies only if needed."""
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor  # nearly all: three questions cost less than three operators
    return tensor.resolve_conj().resolve_neg().contiguous()


def byte_size(tensor: torch.Tensor) -> int:
    """Return the size of all elements in bytes."""
    return tensor.numel() * tensor.element_size()


def use_bytes(tensor: torch.Tensor, consume: Callable[[memoryview], object]) -> None:
    """Pass the bytes of a plain tensor on any device to `consume`, which must not keep them.

    The view is made from the address. NumPy, the usual way, is optional for torch and knows neither
    bfloat16 nor the 8-bit floats. Raises `UnsupportedTensorError` for a tensor without memory.
    """
    dense = row_major(tensor)
    dense = dense if dense.is_cpu else dense.cpu()
    size = byte_size(dense)
    if size == 0:
        consume(memoryview(b""))
        return
    address = dense.data_ptr()
    if address == 0:
        raise UnsupportedTensorError(f"{type(tensor).__name__} has no memory of its own")
    # The view is valid while `dense` lives, until the end of this call. So `consume` must not keep
    # it.
    consume(memoryview((ctypes.c_ubyte * size).from_address(address)))


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
    """Return strided tensors with memory of their own, each with its path; "" is the tensor itself.

    Nothing is copied, and the results are detached from the graph. Raises `UnsupportedTensorError`
    for a tensor without such parts, and in place of any error from the code of its class.
    """
    try:
        if type(tensor) in _TORCHS_OWN and _of_layout(tensor) is None:
            return [("", _itself(tensor))]  # nearly all, thousands a step
        # a class may override attribute access; only its memory matters here
        with torch.no_grad(), _plain_attributes():
            return list(_parts("", tensor, 0))
    except UnsupportedTensorError:
        raise
    except Exception as error:
        inner = _inside_transforms(tensor)
        if inner is not None:
            return [("", inner)]
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON_LENGTH]
        raise UnsupportedTensorError(f"{type(tensor).__name__} cannot be read: {reason}") from error


def outside_transforms() -> AbstractContextManager[object]:
    """Return a context in which `torch.func.vmap`, `grad` and the like wrap no results."""
    if torch._C._functorch.maybe_current_level() is None:  # noqa: SLF001 - by no public name
        return nullcontext()
    cleared: AbstractContextManager[object] = sys.modules[
        "torch._functorch.pyfunctorch"
    ].temporarily_clear_interpreter_stack()
    return cleared


def _inside_transforms(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor that a transform of `torch.func` wraps; None for any other tensor.

    Called only if reading the tensor has failed, since this check costs more than all others.
    """
    wraps: Any = torch._C._functorch  # noqa: SLF001 - by no public name
    inner = tensor
    while wraps.is_functorch_wrapped_tensor(inner):
        inner = wraps.get_unwrapped(inner)
    if inner is tensor or type(inner) not in _TORCHS_OWN or _of_layout(inner) is not None:
        return None
    with outside_transforms():
        return _itself(inner)


def type_and_shape(tensor: torch.Tensor) -> str:
    """Return type and shape as text, without running code of the tensor's class.

    A length that differs from row to row is shown as `*`. torch numbers such lengths in the order
    in which they occur, so its own name for one would differ between runs.
    """
    if type(tensor) in _TORCHS_OWN:
        return _type_and_shape(tensor)
    with _plain_attributes():
        return _type_and_shape(tensor)


def _type_and_shape(tensor: torch.Tensor) -> str:
    if tensor.is_nested and tensor.layout is torch.strided:
        return f"{tensor.dtype} nested"
    if is_lazy(tensor):
        return f"{tensor.dtype} not initialized"
    sizes = tuple(size if type(size) is int else "*" for size in tensor.shape)
    return f"{tensor.dtype} {sizes}"


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether this is a strided tensor of torch's own, which `plain_parts` would return as it is.

    Nearly all tensors are. The answer ignores freed memory and types that hardly any operator
    supports.
    """
    own = type(tensor) in _TORCHS_OWN and tensor.layout is torch.strided
    return own and not (tensor.is_nested or tensor.is_meta or tensor.is_quantized)


def structure(parameter: torch.Tensor) -> str:
    """Return type and shape, and whether the parameter requires a gradient, as text."""
    with _plain_attributes():
        return f"{type_and_shape(parameter)} {parameter.requires_grad}"


def gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the parameter's gradient, without running code of the parameter's class."""
    with _plain_attributes():
        return parameter.grad


def own_number(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the only element of this process's part of a tensor; None if it has more or fewer.

    Converting a distributed tensor itself to a number would communicate with all ranks. Raises
    `UnsupportedTensorError` for a tensor that cannot be read or is made of others.
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
    """Return the inner tensors of a wrapper class; None for a class with memory of its own."""
    kind = type(tensor)
    if hasattr(kind, "to_local"):  # DTensor
        return [("", tensor.to_local())]
    if hasattr(kind, "trigger_wait"):  # what a collective that is under way will have filled
        return [("", tensor.trigger_wait())]
    if hasattr(kind, "__tensor_flatten__"):
        return [(f"/{name}", getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0]]
    return None


def _of_layout(tensor: torch.Tensor) -> list[Part] | None:
    """Return the parts of torch's own special kinds; None for a plain strided tensor."""
    if tensor.is_nested:
        return [(f"/{index}", part) for index, part in enumerate(tensor.unbind())]
    if tensor.layout is torch.sparse_coo:
        # the public methods require a coalesced tensor, and coalescing takes time
        return [("/indices", tensor._indices()), ("/values", tensor._values())]  # noqa: SLF001 - see above
    if tensor.layout in _COMPRESSED:
        return [(f"/{name}", getattr(tensor, name)()) for name in _COMPRESSED[tensor.layout]]
    if tensor.layout is not torch.strided:
        raise UnsupportedTensorError(f"layout {tensor.layout} is not supported")
    if tensor.is_quantized:
        raise UnsupportedTensorError("quantized tensors are not supported")
    if tensor.dtype not in SAFETENSORS_TYPES:
        # a type that hardly any operator supports, such as two 4-bit floats in a byte
        return [(f"/{str(tensor.dtype).removeprefix('torch.')}", tensor.view(torch.uint8))]
    return None


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached plain tensor over the same memory; raise if there is no memory."""
    if tensor.is_meta:
        raise UnsupportedTensorError("tensors without plain memory are not supported")
    if is_lazy(tensor):
        raise UnsupportedTensorError("it has not been initialized")
    plain = type(tensor) in _TORCHS_OWN
    if not plain and type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        # the class replaces operators: their results need not be everything that it contains
        raise UnsupportedTensorError(_NAMES_NOTHING.format(type(tensor).__name__))
    if tensor.numel() and tensor.data_ptr() == 0:
        raise UnsupportedTensorError("its memory has been freed")  # as sharding does it
    return tensor.detach() if plain else tensor.as_subclass(torch.Tensor).detach()


Tensors = Mapping[str, torch.Tensor]


def write_safetensors(path: Path, tensors: Tensors, on_left_out: Callable[[str], None]) -> None:
    """Write the file completely or not at all.

    A tensor that is made of others is written as those, each with its path after the name. A tensor
    that cannot be read is left out and reported to `on_left_out`. Raises `OSError` when the file
    cannot be written.
    """
    kept = _readable(tensors, on_left_out)
    temporary = path.with_name(f"{path.name}.part")
    try:
        with temporary.open("wb") as file:
            _write(file, kept)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # half a file would keep a full disk full


def _readable(tensors: Tensors, on_left_out: Callable[[str], None]) -> dict[str, torch.Tensor]:
    kept: dict[str, torch.Tensor] = {}
    for name in sorted(tensors):
        try:
            parts = plain_parts(tensors[name])
        except UnsupportedTensorError as error:
            on_left_out(f"{name} is left out of the state: {error}")
            continue
        for below, part in parts:
            if kept.setdefault(f"{name}{below}", part) is not part:
                on_left_out(f"{name}{below} is the name of two values, the second is left out")
    return dict(sorted(kept.items()))


def _write(file: BinaryIO, tensors: Tensors) -> None:
    header = _header(tensors)
    file.write(len(header).to_bytes(8, "little"))
    file.write(header)
    for tensor in tensors.values():
        use_bytes(tensor, file.write)


def _header(tensors: Tensors) -> bytes:
    entries: dict[str, dict[str, object]] = {"__metadata__": {"repro_gate_names": "paths"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + byte_size(tensor)
        entries[name] = {
            "dtype": SAFETENSORS_TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    return text + b" " * (-len(text) % 8)
