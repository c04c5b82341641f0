"""What ``tile_kernels.quant.common`` says about scale layouts and packed values, as on Ascend.

The macros of that module build kernels and have no counterpart here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tilelang import language as T

from neuron_numerics import e2m1
from neuron_numerics.layouts import ASCEND_PACK

from ..utils import ceil_div


@dataclass(frozen=True)
class BaseCastConfig:
    """Format of a tensor: its stored dtype and, for quantised ones, the block and layout of its scales.

    ``sf_block``: rows and columns that share a scale. ``use_tma_aligned_col_major_sf``: scales are stored transposed.
    ``use_packed_ue8m0``: scales are exponent bytes, two an int16. ``use_e4m3_sf``: scales are e4m3.
    """

    torch_dtype: torch.dtype = torch.float8_e4m3fn
    sf_block: tuple[int, int] = (1, 1)
    use_tma_aligned_col_major_sf: bool = False
    use_packed_ue8m0: bool = False
    use_e4m3_sf: bool = False

    @property
    def with_sf(self) -> bool:
        """Has the tensor scales?"""
        return self.torch_dtype in (torch.float8_e4m3fn, torch.int8, torch.uint32)

    @property
    def dtype(self) -> T.dtype:
        """TileLang's dtype of one value."""
        return T.float4_e2m1fn if self.torch_dtype == torch.int8 else T.dtype(self.torch_dtype)

    @property
    def sf_torch_dtype(self) -> torch.dtype:
        """Torch's dtype of one scale, before packing."""
        if self.use_packed_ue8m0:
            return torch.uint8
        return torch.float8_e4m3fn if self.use_e4m3_sf else torch.float32

    @property
    def sf_dtype(self) -> T.dtype:
        """TileLang's dtype of one scale, before packing."""
        return T.dtype(self.sf_torch_dtype)

    @property
    def sf_col_pack(self) -> bool:
        """Are scales packed along the rows (per-channel scales)?"""
        return self.use_packed_ue8m0 and self.sf_block[1] == 1


@dataclass(frozen=True)
class CastInputConfig(BaseCastConfig):
    """Format of a cast's input."""


@dataclass(frozen=True)
class CastOutputConfig(BaseCastConfig):
    """Format of a cast's output. ``round_sf``: scales are powers of two. ``clamp_min_value``: least magnitude of a group."""

    round_sf: bool = False
    clamp_min_value: float | None = None


def get_packed_ue8m0_pack_factor() -> int:
    """Exponent bytes in one packed scale: 2, as on Ascend."""
    return ASCEND_PACK.itemsize


def get_packed_ue8m0_torch_dtype() -> torch.dtype:
    """Dtype of packed scales: int16, as on Ascend."""
    return ASCEND_PACK


def get_logical_hidden(hidden: int, dtype: torch.dtype) -> int:
    """Values in a stored row of ``hidden`` elements: int8 holds two."""
    return hidden * 2 if dtype == torch.int8 else hidden


def get_physical_hidden(hidden: int, dtype: torch.dtype) -> int:
    """Elements of a stored row of ``hidden`` values: int8 holds two."""
    return hidden // 2 if dtype == torch.int8 else hidden


def get_sf_shape(shape: tuple[int, int], config: BaseCastConfig) -> tuple[int, int]:
    """Shape of the scales of a tensor of ``shape`` as they are stored, packed ones in bytes."""
    rows, columns = ceil_div(shape[0], config.sf_block[0]), ceil_div(shape[1], config.sf_block[1])
    pack = get_packed_ue8m0_pack_factor() if config.use_packed_ue8m0 else 1
    if config.sf_col_pack:
        return ceil_div(rows, pack), columns * pack
    columns = ceil_div(columns, pack)
    return (columns, rows * pack) if config.use_tma_aligned_col_major_sf else (rows, columns * pack)


def unpack_from_e2m1fn_x2(x: torch.Tensor, out_dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values of FP4 codes: ``x`` (int8 or uint8 [..., d], two codes a byte, the even one low) as ``out_dtype`` [..., 2 d].

    Raises:
        ValueError: ``x`` has no axis to double.
    """
    assert x.dtype in (torch.int8, torch.uint8), f"expected int8 or uint8, got {x.dtype}"
    if x.ndim == 0:
        raise ValueError("a scalar has no last axis to double")
    return e2m1.decode(x).to(out_dtype)
