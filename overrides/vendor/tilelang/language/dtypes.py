"""TileLang's dtypes, as ``tilelang.language.dtypes`` names them: strings that know their width and torch's counterpart.

They describe; nothing is built from them here. Calling one, which makes an expression of a kernel, raises NotImplementedError.
"""

from __future__ import annotations

import builtins
import re
from typing import Any

import torch

_CANONICAL = {
    "double": "float64",
    "float": "float32",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "uint": "uint32",
    "ulong": "uint64",
}
# DLPack's type codes, and TVM's own from 129 on.
_INT, _UINT, _FLOAT, _HANDLE, _BFLOAT, _BOOL = 0, 1, 2, 3, 4, 6
_SMALL_FLOATS = {
    "float8_e3m4": 7,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
    "float6_e2m3fn": 15,
    "float6_e3m2fn": 16,
    "float4_e2m1fn": 17,
}
_TFLOAT, _UNPACKED_FP4 = 130, 131
_CUSTOM = {"custom[tfloat32]": (_TFLOAT, 32), "custom[float4_e2m1_unpacked]8": (_UNPACKED_FP4, 8)}
_CODES = {"int": _INT, "uint": _UINT, "float": _FLOAT, "bfloat": _BFLOAT}
_PACKED_FP4 = "float4_e2m1fnx2"
# Names of torch dtypes that stand for a TileLang dtype of another name, and storage of those that torch has not.
_FROM_TORCH = {"float4_e2m1fn_x2": _PACKED_FP4}
_STORAGE = {
    "float8_e4m3": torch.float8_e4m3fn,
    "float4_e2m1fn": torch.float4_e2m1fn_x2,
    _PACKED_FP4: torch.float4_e2m1fn_x2,
    "custom[tfloat32]": torch.float32,
    "int4": torch.int8,
    "uint4": torch.uint8,
}
_TORCH_NAMES = frozenset(
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ]
)


class dtype(builtins.str):
    """A dtype by its name, ``float32`` or ``float32x4``; equal to that string.

    Made of a name, a torch dtype, a NumPy dtype or ``bool``, ``int``, ``float``.

    Raises:
        ValueError: the name is none. TypeError: the value stands for no dtype.
    """

    def __new__(cls, value: Any) -> dtype:
        """The dtype that ``value`` names."""
        if isinstance(value, dtype):
            return value
        name = _name_of(value)
        _parse(name)
        return builtins.str.__new__(cls, name)

    def __repr__(self) -> builtins.str:
        return f"dtype({builtins.str(self)!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Not here: it makes an expression of a kernel."""
        raise NotImplementedError(f"{self!s}: not supported on Neuron (basic mode)")

    @property
    def type_code(self) -> builtins.int:
        """DLPack's code of the kind of number."""
        return _parse(self)[0]

    @property
    def bits(self) -> builtins.int:
        """Bits of one number."""
        return _parse(self)[1]

    @property
    def lanes(self) -> builtins.int:
        """Numbers in a vector; 1 for a scalar."""
        return _parse(self)[2]

    @property
    def itemsize(self) -> builtins.int:
        """Bytes of the whole vector, rounded up."""
        return (self.bits * self.lanes + 7) // 8

    @property
    def bytes(self) -> builtins.int:
        """The same as ``itemsize``."""
        return self.itemsize

    def with_lanes(self, lanes: builtins.int) -> dtype:
        """A vector of this scalar."""
        return dtype(f"{self!s}x{lanes}" if lanes > 1 else builtins.str(self))

    def as_torch(self) -> torch.dtype | None:
        """Torch's dtype of it, or of its storage; None for a handle.

        Raises:
            ValueError: torch has none.
        """
        name = builtins.str(self)
        if name == "handle":
            return None
        if name in _STORAGE:
            return _STORAGE[name]
        if name in _TORCH_NAMES:
            found: torch.dtype = getattr(torch, name)
            return found
        raise ValueError(f"torch has no dtype {name!r}")

    def is_float4_e2m1fn(self) -> builtins.bool:
        """Is it FP4, two numbers a byte?"""
        return self.type_code == _SMALL_FLOATS["float4_e2m1fn"]

    def is_float4_e2m1_unpacked(self) -> builtins.bool:
        """Is it FP4, one number a byte?"""
        return self.type_code == _UNPACKED_FP4

    def is_float4(self) -> builtins.bool:
        """Is it FP4 in either form?"""
        return self.is_float4_e2m1fn() or self.is_float4_e2m1_unpacked()


def _name_of(value: Any) -> builtins.str:
    if isinstance(value, builtins.str):
        return _CANONICAL.get(value, value)
    if isinstance(value, torch.dtype):
        name = builtins.str(value).removeprefix("torch.")
        if name in _TORCH_NAMES or name in _FROM_TORCH:
            return _FROM_TORCH.get(name, name)
    elif isinstance(value, type) and value in (builtins.bool, builtins.int, builtins.float):
        return _CANONICAL.get(value.__name__, value.__name__)
    elif type(value).__module__.partition(".")[0] == "numpy" or getattr(value, "__module__", "") == "numpy":
        # NumPy's own types and dtypes say their names.
        name = builtins.str(getattr(value, "name", getattr(value, "__name__", ""))).rstrip("_")
        if name in _TORCH_NAMES:
            return name
        if name == "longlong":
            return "int64"
    raise TypeError(f"{value!r} stands for no dtype: expected a name, a torch or NumPy dtype, or bool, int or float")


def _parse(text: builtins.str) -> tuple[builtins.int, builtins.int, builtins.int]:
    """(type code, bits, lanes) of a dtype's name."""
    name = builtins.str(text)
    for custom, (code, bits) in _CUSTOM.items():
        if name == custom or (name.startswith(custom + "x") and name[len(custom) + 1 :].isdigit()):
            return code, bits, builtins.int(name[len(custom) + 1 :] or 1)
    base, lanes = name, 1
    found = re.fullmatch(r"(.+?)x([1-9][0-9]*)", name)
    if found is not None:
        base, lanes = found.group(1), builtins.int(found.group(2))
    if base in _SMALL_FLOATS:
        return _SMALL_FLOATS[base], builtins.int(base[5]), lanes
    if base in ("bool", "handle"):
        return (_BOOL, 8, lanes) if base == "bool" else (_HANDLE, 64, lanes)
    plain = re.fullmatch(r"(int|uint|float|bfloat)([1-9][0-9]*)", base)
    if plain is None:
        raise ValueError(f"{name!r} names no dtype")
    return _CODES[plain.group(1)], builtins.int(plain.group(2)), lanes


def get_tvm_dtype(value: Any) -> dtype:
    """``dtype(value)``."""
    return dtype(value)


def is_float4_e2m1fn(value: Any) -> builtins.bool:
    """Is it FP4, two numbers a byte?"""
    return dtype(value).is_float4_e2m1fn()


def is_float4_e2m1_unpacked(value: Any) -> builtins.bool:
    """Is it FP4, one number a byte?"""
    return dtype(value).is_float4_e2m1_unpacked()


def is_float4(value: Any) -> builtins.bool:
    """Is it FP4 in either form?"""
    return dtype(value).is_float4()


def is_f8f6f4_family(value: Any) -> builtins.bool:
    """Is it a float of four, six or eight bits?"""
    found = dtype(value)
    return found.is_float4() or (found.bits in (6, 8) and found.startswith(f"float{found.bits}"))


def validate_gemm_ab_dtypes(
    a_dtype: Any, b_dtype: Any, *, a_in_tmem: builtins.bool = False, allow_f8f6f4_mixed: builtins.bool = False
) -> None:
    """Say whether a product may take operands of two dtypes: equal ones, or two small floats where they may be mixed.

    Raises:
        ValueError: it may not.
    """
    if a_in_tmem or a_dtype == b_dtype:
        return
    if not (allow_f8f6f4_mixed and is_f8f6f4_family(a_dtype) and is_f8f6f4_family(b_dtype)):
        raise ValueError(f"a product takes operands of one dtype, got {a_dtype} and {b_dtype}")


bfloat16 = dtype("bfloat16")
bfloat16x2 = dtype("bfloat16x2")
bool = dtype("bool")
double = dtype("float64")
float = dtype("float32")
float16 = dtype("float16")
float16x16 = dtype("float16x16")
float16x2 = dtype("float16x2")
float16x32 = dtype("float16x32")
float16x4 = dtype("float16x4")
float16x64 = dtype("float16x64")
float16x8 = dtype("float16x8")
float32 = dtype("float32")
float32x16 = dtype("float32x16")
float32x2 = dtype("float32x2")
float32x32 = dtype("float32x32")
float32x4 = dtype("float32x4")
float32x64 = dtype("float32x64")
float32x8 = dtype("float32x8")
float4_e2m1_unpacked = dtype("custom[float4_e2m1_unpacked]8")
float4_e2m1fn = dtype("float4_e2m1fn")
float4_e2m1fnx16 = dtype("float4_e2m1fnx16")
float4_e2m1fnx2 = dtype("float4_e2m1fnx2")
float4_e2m1fnx32 = dtype("float4_e2m1fnx32")
float4_e2m1fnx4 = dtype("float4_e2m1fnx4")
float4_e2m1fnx64 = dtype("float4_e2m1fnx64")
float4_e2m1fnx8 = dtype("float4_e2m1fnx8")
float64 = dtype("float64")
float64x16 = dtype("float64x16")
float64x2 = dtype("float64x2")
float64x32 = dtype("float64x32")
float64x4 = dtype("float64x4")
float64x64 = dtype("float64x64")
float64x8 = dtype("float64x8")
float6_e2m3fn = dtype("float6_e2m3fn")
float6_e2m3fnx16 = dtype("float6_e2m3fnx16")
float6_e2m3fnx2 = dtype("float6_e2m3fnx2")
float6_e2m3fnx32 = dtype("float6_e2m3fnx32")
float6_e2m3fnx4 = dtype("float6_e2m3fnx4")
float6_e2m3fnx64 = dtype("float6_e2m3fnx64")
float6_e2m3fnx8 = dtype("float6_e2m3fnx8")
float6_e3m2fn = dtype("float6_e3m2fn")
float6_e3m2fnx16 = dtype("float6_e3m2fnx16")
float6_e3m2fnx2 = dtype("float6_e3m2fnx2")
float6_e3m2fnx32 = dtype("float6_e3m2fnx32")
float6_e3m2fnx4 = dtype("float6_e3m2fnx4")
float6_e3m2fnx64 = dtype("float6_e3m2fnx64")
float6_e3m2fnx8 = dtype("float6_e3m2fnx8")
float8_e3m4 = dtype("float8_e3m4")
float8_e3m4x16 = dtype("float8_e3m4x16")
float8_e3m4x2 = dtype("float8_e3m4x2")
float8_e3m4x32 = dtype("float8_e3m4x32")
float8_e3m4x4 = dtype("float8_e3m4x4")
float8_e3m4x64 = dtype("float8_e3m4x64")
float8_e3m4x8 = dtype("float8_e3m4x8")
float8_e4m3 = dtype("float8_e4m3")
float8_e4m3b11fnuz = dtype("float8_e4m3b11fnuz")
float8_e4m3b11fnuzx16 = dtype("float8_e4m3b11fnuzx16")
float8_e4m3b11fnuzx2 = dtype("float8_e4m3b11fnuzx2")
float8_e4m3b11fnuzx32 = dtype("float8_e4m3b11fnuzx32")
float8_e4m3b11fnuzx4 = dtype("float8_e4m3b11fnuzx4")
float8_e4m3b11fnuzx64 = dtype("float8_e4m3b11fnuzx64")
float8_e4m3b11fnuzx8 = dtype("float8_e4m3b11fnuzx8")
float8_e4m3fn = dtype("float8_e4m3fn")
float8_e4m3fnuz = dtype("float8_e4m3fnuz")
float8_e4m3fnuzx16 = dtype("float8_e4m3fnuzx16")
float8_e4m3fnuzx2 = dtype("float8_e4m3fnuzx2")
float8_e4m3fnuzx32 = dtype("float8_e4m3fnuzx32")
float8_e4m3fnuzx4 = dtype("float8_e4m3fnuzx4")
float8_e4m3fnuzx64 = dtype("float8_e4m3fnuzx64")
float8_e4m3fnuzx8 = dtype("float8_e4m3fnuzx8")
float8_e4m3fnx16 = dtype("float8_e4m3fnx16")
float8_e4m3fnx2 = dtype("float8_e4m3fnx2")
float8_e4m3fnx32 = dtype("float8_e4m3fnx32")
float8_e4m3fnx4 = dtype("float8_e4m3fnx4")
float8_e4m3fnx64 = dtype("float8_e4m3fnx64")
float8_e4m3fnx8 = dtype("float8_e4m3fnx8")
float8_e4m3x16 = dtype("float8_e4m3x16")
float8_e4m3x2 = dtype("float8_e4m3x2")
float8_e4m3x32 = dtype("float8_e4m3x32")
float8_e4m3x4 = dtype("float8_e4m3x4")
float8_e4m3x64 = dtype("float8_e4m3x64")
float8_e4m3x8 = dtype("float8_e4m3x8")
float8_e5m2 = dtype("float8_e5m2")
float8_e5m2fnuz = dtype("float8_e5m2fnuz")
float8_e5m2fnuzx16 = dtype("float8_e5m2fnuzx16")
float8_e5m2fnuzx2 = dtype("float8_e5m2fnuzx2")
float8_e5m2fnuzx32 = dtype("float8_e5m2fnuzx32")
float8_e5m2fnuzx4 = dtype("float8_e5m2fnuzx4")
float8_e5m2fnuzx64 = dtype("float8_e5m2fnuzx64")
float8_e5m2fnuzx8 = dtype("float8_e5m2fnuzx8")
float8_e5m2x16 = dtype("float8_e5m2x16")
float8_e5m2x2 = dtype("float8_e5m2x2")
float8_e5m2x32 = dtype("float8_e5m2x32")
float8_e5m2x4 = dtype("float8_e5m2x4")
float8_e5m2x64 = dtype("float8_e5m2x64")
float8_e5m2x8 = dtype("float8_e5m2x8")
float8_e8m0fnu = dtype("float8_e8m0fnu")
float8_e8m0fnux16 = dtype("float8_e8m0fnux16")
float8_e8m0fnux2 = dtype("float8_e8m0fnux2")
float8_e8m0fnux32 = dtype("float8_e8m0fnux32")
float8_e8m0fnux4 = dtype("float8_e8m0fnux4")
float8_e8m0fnux64 = dtype("float8_e8m0fnux64")
float8_e8m0fnux8 = dtype("float8_e8m0fnux8")
half = dtype("float16")
int = dtype("int32")
int16 = dtype("int16")
int16x16 = dtype("int16x16")
int16x2 = dtype("int16x2")
int16x32 = dtype("int16x32")
int16x4 = dtype("int16x4")
int16x64 = dtype("int16x64")
int16x8 = dtype("int16x8")
int32 = dtype("int32")
int32x16 = dtype("int32x16")
int32x2 = dtype("int32x2")
int32x32 = dtype("int32x32")
int32x4 = dtype("int32x4")
int32x64 = dtype("int32x64")
int32x8 = dtype("int32x8")
int4 = dtype("int4")
int64 = dtype("int64")
int64x16 = dtype("int64x16")
int64x2 = dtype("int64x2")
int64x32 = dtype("int64x32")
int64x4 = dtype("int64x4")
int64x64 = dtype("int64x64")
int64x8 = dtype("int64x8")
int8 = dtype("int8")
int8x16 = dtype("int8x16")
int8x2 = dtype("int8x2")
int8x32 = dtype("int8x32")
int8x4 = dtype("int8x4")
int8x64 = dtype("int8x64")
int8x8 = dtype("int8x8")
long = dtype("int64")
short = dtype("int16")
tfloat32 = dtype("custom[tfloat32]")
tfloat32x16 = dtype("custom[tfloat32]x16")
tfloat32x2 = dtype("custom[tfloat32]x2")
tfloat32x32 = dtype("custom[tfloat32]x32")
tfloat32x4 = dtype("custom[tfloat32]x4")
tfloat32x64 = dtype("custom[tfloat32]x64")
tfloat32x8 = dtype("custom[tfloat32]x8")
uint = dtype("uint32")
uint16 = dtype("uint16")
uint16x16 = dtype("uint16x16")
uint16x2 = dtype("uint16x2")
uint16x32 = dtype("uint16x32")
uint16x4 = dtype("uint16x4")
uint16x64 = dtype("uint16x64")
uint16x8 = dtype("uint16x8")
uint32 = dtype("uint32")
uint32x16 = dtype("uint32x16")
uint32x2 = dtype("uint32x2")
uint32x32 = dtype("uint32x32")
uint32x4 = dtype("uint32x4")
uint32x64 = dtype("uint32x64")
uint32x8 = dtype("uint32x8")
uint64 = dtype("uint64")
uint64x16 = dtype("uint64x16")
uint64x2 = dtype("uint64x2")
uint64x32 = dtype("uint64x32")
uint64x4 = dtype("uint64x4")
uint64x64 = dtype("uint64x64")
uint64x8 = dtype("uint64x8")
uint8 = dtype("uint8")
uint8x16 = dtype("uint8x16")
uint8x2 = dtype("uint8x2")
uint8x32 = dtype("uint8x32")
uint8x4 = dtype("uint8x4")
uint8x64 = dtype("uint8x64")
uint8x8 = dtype("uint8x8")
