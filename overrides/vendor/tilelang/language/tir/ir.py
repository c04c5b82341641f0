"""Limits of dtypes, of ``tilelang.language.tir.ir``: plain numbers here, for there is no kernel to put them in."""

from __future__ import annotations

from typing import Any

from ..dtypes import dtype as _dtype

_FLOATS = {
    "bfloat16": float.fromhex("0x1.fffffep+127"),
    "float16": 65504.0,
    "float32": float.fromhex("0x1.fffffep+127"),
    "float64": float.fromhex("0x1.fffffffffffffp+1023"),
    "float8_e3m4": 31.0,
    "float8_e4m3": 448.0,
    "float8_e4m3b11fnuz": 30.0,
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 448.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
    "float8_e8m0fnu": 2.0**128,
    "float6_e2m3fn": 7.5,
    "float6_e3m2fn": 28.0,
    "float4_e2m1fn": 6.0,
    "custom[float4_e2m1_unpacked]8": 6.0,
}
# Formats without a negative zero, and the one without a sign, have 0 as their least number in TVM.
_FROM_ZERO = ("float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
_INT, _UINT = 0, 1


def max_value(dtype: Any, span: Any = None) -> float | int:
    """The largest finite number of a dtype. The numbers are TVM's, which gives bf16 fp32's.

    Raises:
        ValueError: the dtype has no such number.
    """
    scalar = _dtype(dtype)
    if scalar in _FLOATS:
        return _FLOATS[scalar]
    if scalar.type_code not in (_INT, _UINT):
        raise ValueError(f"{scalar} has no largest number")
    return (1 << (scalar.bits - (scalar.type_code == _INT))) - 1


def min_value(dtype: Any, span: Any = None) -> float | int:
    """The least finite number of a dtype; see ``max_value``.

    Raises:
        ValueError: the dtype has no such number.
    """
    scalar = _dtype(dtype)
    if scalar in _FLOATS:
        return 0.0 if scalar in _FROM_ZERO else -_FLOATS[scalar]
    if scalar.type_code not in (_INT, _UINT):
        raise ValueError(f"{scalar} has no least number")
    return -(1 << (scalar.bits - 1)) if scalar.type_code == _INT else 0
