"""A tensor's logical bytes: row-major, little-endian, whatever its device, strides or type."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

import torch

# The names of the safetensors layout, and in its manner C32, C128 and two 8-bit floats beside them.
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
    """A plain tensor without gaps, lazy conjugation or lazy negation; copied only if needed."""
    return tensor.resolve_conj().resolve_neg().contiguous()


def byte_size(tensor: torch.Tensor) -> int:
    """Bytes of all elements."""
    return tensor.numel() * tensor.element_size()


def use_bytes(tensor: torch.Tensor, consume: Callable[[memoryview], object]) -> None:
    """Hand the bytes of a plain tensor of any device to `consume`, which must not keep them.

    The view is made from the address, because NumPy, the ordinary way, is optional for torch and
    knows neither bfloat16 nor the 8-bit floats.
    """
    dense = row_major(tensor).cpu()
    size = byte_size(dense)
    if size == 0:
        consume(memoryview(b""))
        return
    address = dense.data_ptr()
    if address == 0:
        raise UnsupportedTensorError(f"{type(tensor).__name__} has no memory of its own")
    # valid while `dense` lives, which is to the end of this call: so nobody may keep the view
    consume(memoryview((ctypes.c_ubyte * size).from_address(address)))
