"""How scales lie in memory: row-major or column-major, fp32 or packed ue8m0 bytes.

Upstream packs ``pack_dtype.itemsize`` exponent bytes of consecutive scales in one integer, the first in the low byte: two in an
int16 on Ascend (which this backend follows), four in an int32 on CUDA. A column-major scale tensor is the transposed view of a
``[columns, rows]`` buffer; on Ascend its rows are not padded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from neuron_numerics.formats import ScaleFormat
from neuron_numerics.scales import decode_scale

ASCEND_PACK = torch.int16


@dataclass(frozen=True)
class ScaleLayout:
    """``column_major``: stored transposed. ``packed``: ue8m0 bytes packed in ``pack_dtype`` along the columns, or along the
    rows when ``pack_rows`` (per-channel scales). Unpacked scales are stored in their format's own dtype.
    """

    column_major: bool = False
    packed: bool = False
    pack_rows: bool = False
    pack_dtype: torch.dtype = ASCEND_PACK

    @property
    def pack(self) -> int:
        """Exponent bytes in one stored element."""
        return self.pack_dtype.itemsize if self.packed else 1


def stored_shape(rows: int, columns: int, layout: ScaleLayout) -> tuple[int, int]:
    """Shape of the stored tensor of ``[rows, columns]`` scales, as callers see it (before any transposition)."""
    if layout.pack_rows:
        return -(-rows // layout.pack), columns
    return rows, -(-columns // layout.pack)


def empty_scales(
    rows: int, columns: int, scale: ScaleFormat, layout: ScaleLayout, device: torch.device
) -> torch.Tensor:
    """An uninitialised scale tensor of ``stored_shape``; a column-major one has the strides ``(1, rows)``."""
    shape = stored_shape(rows, columns, layout)
    dtype = layout.pack_dtype if layout.packed else scale.storage
    if layout.column_major:
        return torch.empty_strided(shape, (1, shape[0]), dtype=dtype, device=device)
    return torch.empty(shape, dtype=dtype, device=device)


def write_scales(out: torch.Tensor, encoded: torch.Tensor, layout: ScaleLayout) -> None:
    """Store ``encoded`` [rows, columns] (as ``cast_blocks`` returns it) in ``out``, a tensor as ``empty_scales`` makes it.

    Missing bytes of the last pack are zero.
    """
    if not layout.packed:
        out.copy_(encoded)
        return
    pack = layout.pack
    if layout.pack_rows:
        padded = (
            torch.nn.functional.pad(encoded, (0, 0, 0, -encoded.shape[0] % pack))
            .unflatten(0, (-1, pack))
            .transpose(1, 2)
        )
    else:
        missing = -encoded.shape[1] % pack
        padded = (torch.nn.functional.pad(encoded, (0, missing)) if missing else encoded).unflatten(1, (-1, pack))
    out.copy_(padded.to(torch.uint8, memory_format=torch.contiguous_format).view(layout.pack_dtype).squeeze(-1))


def store_scales(encoded: torch.Tensor, scale: ScaleFormat, layout: ScaleLayout) -> torch.Tensor:
    """``empty_scales`` filled by ``write_scales``."""
    out = empty_scales(encoded.shape[0], encoded.shape[1], scale, layout, encoded.device)
    write_scales(out, encoded, layout)
    return out


def read_scales(stored: torch.Tensor, layout: ScaleLayout) -> torch.Tensor:
    """fp32 scales of a stored tensor of any strides; packed ones give all bytes of the last pack, padding included."""
    if not layout.packed:
        return decode_scale(stored)
    pack, byte = layout.pack, stored.contiguous().unsqueeze(-1).view(torch.uint8)
    decoded = decode_scale(byte)
    if layout.pack_rows:
        return decoded.transpose(1, 2).reshape(stored.shape[0] * pack, stored.shape[1])
    return decoded.reshape(stored.shape[0], stored.shape[1] * pack)


def layout_of(stored: torch.Tensor, pack_rows: bool = False) -> ScaleLayout:
    """Layout of a stored 2-D scale tensor, from its dtype and strides."""
    packed = stored.dtype in (torch.int16, torch.int32)
    pack_dtype = stored.dtype if packed else ASCEND_PACK
    column_major = stored.stride(0) == 1 and stored.stride(1) != 1
    return ScaleLayout(column_major, packed, pack_rows and packed, pack_dtype)


__all__ = [
    "ASCEND_PACK",
    "ScaleLayout",
    "empty_scales",
    "layout_of",
    "read_scales",
    "store_scales",
    "stored_shape",
    "write_scales",
]
