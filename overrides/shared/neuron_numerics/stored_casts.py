"""Casts from stored tensors and to stored tensors: values and scales in any of upstream's layouts, in new or given buffers.

A ``Target`` says how a cast's result is stored. Rows may be strided, inputs may be quantised themselves, and a result may go
into buffers that the caller gives, whose shape and strides are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from neuron_numerics import casts, e2m1
from neuron_numerics.formats import QuantFormat, quant_format
from neuron_numerics.layouts import ScaleLayout, empty_scales, layout_of, read_scales, write_scales
from neuron_numerics.scales import group_scale

Block = tuple[int, int]
Quantised = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Target:
    """How a cast's result is stored: the format, the block that shares a scale, and where the scales lie."""

    fmt: QuantFormat
    block: Block
    layout: ScaleLayout


def target(
    value: str,
    block: Block,
    floor: float,
    *,
    column_major: bool = False,
    round_sf: bool = False,
    packed: bool = False,
    e4m3_scale: bool = False,
) -> Target:
    """The target that upstream's options name. ``floor``: the least magnitude of a group."""
    assert not packed or round_sf, "packed scales are powers of two: round_sf"
    assert not (round_sf and e4m3_scale), "e4m3 scales are not rounded to powers of two"
    scale = "ue8m0" if packed else "e4m3" if e4m3_scale else "fp32"
    layout = ScaleLayout(column_major=column_major, packed=packed, pack_rows=packed and block[1] == 1)
    return Target(quant_format(value, scale, round_sf, floor), block, layout)


def read_values(x: torch.Tensor | Quantised, block: Block | None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """``x`` itself, or the values of a quantised pair (e4m3 [m, k] or packed e2m1 [m, k / 2], with scales) as ``dtype`` [m, k]."""
    if isinstance(x, torch.Tensor):
        return x
    assert block is not None, "scales need the block that shares them"
    values, stored = x
    scale = read_scales(stored, layout_of(stored, pack_rows=block[1] == 1))
    return casts.cast_back_blocks(values, scale, block, dtype)


def cast(x: torch.Tensor, to: Target, out: torch.Tensor | None = None, out_sf: torch.Tensor | None = None) -> Quantised:
    """Quantise ``x`` (bf16 or fp32 [m, k], any strides) into ``out`` and ``out_sf``, or into new tensors.

    ``out``: e4m3 [m, k], or e2m1 as int8 [m, k / 2]. ``out_sf``: as ``to.layout`` says.
    """
    rows, columns = x.shape
    if out_sf is None:
        out_sf = _empty_scales(rows, columns, to, x.device)
    if rows == 0:
        width = columns // to.fmt.value.per_byte
        return (torch.empty((0, width), dtype=to.fmt.value.storage, device=x.device) if out is None else out), out_sf
    values, encoded = casts.cast_blocks(x, to.fmt, to.block)
    write_scales(out_sf, encoded, to.layout)
    return (values if out is None else out.copy_(values)), out_sf


def scales_only(x: torch.Tensor, to: Target, out_sf: torch.Tensor | None = None) -> torch.Tensor:
    """The scales that ``cast`` would store."""
    rows, columns = x.shape
    bm, bk = to.block
    if out_sf is None:
        out_sf = _empty_scales(rows, columns, to, x.device)
    if rows:
        magnitude = torch.nn.functional.pad(x.abs(), (0, -columns % bk, 0, -rows % bm))
        amax = magnitude.unflatten(1, (-1, bk)).unflatten(0, (-1, bm)).amax((1, 3)).to(torch.float32)
        write_scales(out_sf, group_scale(amax, to.fmt).encoded, to.layout)
    return out_sf


def cast_by_scales(x: torch.Tensor, to: Target, sf: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Quantise ``x`` by given scales (fp32, one a block), into ``out`` or a new tensor; see ``cast``."""
    values = casts.cast_with_scale(x, to.fmt.value, sf, to.block)
    return values if out is None else out.copy_(values)


def cast_there_and_back(x: torch.Tensor, to: Target) -> torch.Tensor:
    """``x`` [m, k] as its quantised values stand for it, in its own dtype; a scale for every ``to.block[1]`` of a row."""
    group = to.block[1]
    scaled, scale = casts.quantise_groups(x.to(torch.float32, copy=True), to.fmt, group)
    e4m3_scale = to.fmt.scale.name == "e4m3"
    stored = casts.store_values(scaled, to.fmt.value, clamp=e4m3_scale)
    back = stored.to(torch.float32) if to.fmt.value.name == "e4m3" else e2m1.decode(stored)
    # For every other format the encoded scale is the fp32 factor itself.
    factor = scale.encoded.to(torch.float32)
    back.unflatten(-1, (-1, group)).mul_(factor.unsqueeze(-1))
    return back.to(x.dtype)


def pack_columns(encoded: torch.Tensor, pack_dtype: torch.dtype) -> torch.Tensor:
    """Exponent bytes [..., n] (int32) packed along the last axis, the first in the low byte; missing ones are 0."""
    pack = pack_dtype.itemsize
    missing = -encoded.shape[-1] % pack
    padded = (torch.nn.functional.pad(encoded, (0, missing)) if missing else encoded).unflatten(-1, (-1, pack))
    return padded.to(torch.uint8, memory_format=torch.contiguous_format).view(pack_dtype).squeeze(-1)


def _empty_scales(rows: int, columns: int, to: Target, device: torch.device) -> torch.Tensor:
    bm, bk = to.block
    return empty_scales(-(-rows // bm), -(-columns // bk), to.fmt.scale, to.layout, device)


__all__ = [
    "Target",
    "cast",
    "cast_by_scales",
    "cast_there_and_back",
    "pack_columns",
    "read_values",
    "scales_only",
    "target",
]
