"""Names and sizes of element types, as the safetensors layout spells them.

Both checkpoint readers speak this one vocabulary, so the same weights have the same digests however
they were saved. `RAW` is our own, for whole files; `F4_X2` is a byte with two numbers, where
safetensors counts the numbers (`F4`).
"""

from __future__ import annotations

from typing import Final

ELEMENT_BYTES: Final = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "F4_X2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "C32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
    "C128": 16,
}
COMPLEX_DTYPES: Final = frozenset(("C32", "C64", "C128"))
# The bytes of a file whose content is not understood.
RAW_DTYPE: Final = "RAW"

# `torch.<name>` in a pickle.
TORCH_DTYPES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "complex32": "C32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "complex128": "C128",
    "float4_e2m1fn_x2": "F4_X2",
}

# `torch.<name>` as the type of a storage; UntypedStorage counts bytes.
TORCH_STORAGES: Final = {
    "UntypedStorage": "U8",
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
    "ShortStorage": "I16",
    "IntStorage": "I32",
    "LongStorage": "I64",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "ComplexFloatStorage": "C64",
    "ComplexDoubleStorage": "C128",
}

# The integers that quantized storages hold, each in a whole number of bytes.
QUANTIZED_STORAGES: Final = {"QInt8Storage": "I8", "QUInt8Storage": "U8", "QInt32Storage": "I32"}
