"""The quantised formats as data. Numbers follow ``tile_kernels.config`` and ``tilelang_ops.common``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

ValueName = Literal["e4m3", "e2m1"]
ScaleName = Literal["fp32", "pow2", "ue8m0", "e4m3"]


@dataclass(frozen=True)
class ValueFormat:
    """How one quantised value is stored.

    ``maximum``: largest finite magnitude. ``storage``: torch dtype of the stored tensor. ``per_byte``: values a stored
    element holds (e2m1 packs two, the even one in the low nibble). ``exponent``/``carry``: ``maximum`` is
    ``(2 - (carry + 1) * 2**-23) * 2**exponent``, so adding ``carry`` to the bits of a magnitude moves it to the next power of
    two exactly when it exceeds ``maximum`` times a power of two.
    """

    name: ValueName
    maximum: float
    storage: torch.dtype
    per_byte: int
    exponent: int
    carry: int


E4M3 = ValueFormat("e4m3", 448.0, torch.float8_e4m3fn, per_byte=1, exponent=8, carry=0x001FFFFF)
E2M1 = ValueFormat("e2m1", 6.0, torch.int8, per_byte=2, exponent=2, carry=0x003FFFFF)
VALUE_FORMATS: dict[str, ValueFormat] = {"e4m3": E4M3, "e2m1": E2M1}


@dataclass(frozen=True)
class ScaleFormat:
    """How one scale is rounded and stored.

    ``storage``: torch dtype of a stored scale. ``power_of_two``: rounded up to a power of two.
    """

    name: ScaleName
    storage: torch.dtype
    power_of_two: bool


FP32 = ScaleFormat("fp32", torch.float32, power_of_two=False)
POW2 = ScaleFormat("pow2", torch.float32, power_of_two=True)
UE8M0 = ScaleFormat("ue8m0", torch.uint8, power_of_two=True)
E4M3_SCALE = ScaleFormat("e4m3", torch.float8_e4m3fn, power_of_two=False)

E4M3_MIN_POSITIVE = 2.0**-9


@dataclass(frozen=True)
class QuantFormat:
    """A value format with its scale format.

    ``floor``: the group's largest magnitude is raised to it before the scale is computed.
    """

    value: ValueFormat
    scale: ScaleFormat
    floor: float


def amax_floor(value: ValueFormat, scale: ScaleFormat) -> float:
    """Least magnitude a group is taken to have: the scale stays normal (ue8m0, fp32) or a positive e4m3."""
    if scale.name == "e4m3":
        return value.maximum * E4M3_MIN_POSITIVE
    return 1e-4 if value.name == "e4m3" else value.maximum * 2.0**-126


def quant_format(value: str, scale: str, round_sf: bool = False, floor: float | None = None) -> QuantFormat:
    """The format that upstream names by ``value`` (``e4m3``, ``e2m1``) and ``scale`` (``fp32``, ``ue8m0``, ``e4m3``).

    ``round_sf`` rounds fp32 scales up to powers of two; ue8m0 scales always are. ``floor`` replaces the default.
    """
    scales = {"fp32": POW2 if round_sf else FP32, "pow2": POW2, "ue8m0": UE8M0, "e4m3": E4M3_SCALE}
    value_format, scale_format = VALUE_FORMATS[value], scales[scale]
    return QuantFormat(value_format, scale_format, amax_floor(value_format, scale_format) if floor is None else floor)
