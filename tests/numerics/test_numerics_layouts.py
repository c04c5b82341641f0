"""Scale layouts: shapes, strides and bytes as tile-kernels makes them on Ascend; reading them back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neuron_numerics.casts import cast_blocks
from neuron_numerics.formats import quant_format
from neuron_numerics.layouts import (
    ScaleLayout,
    empty_scales,
    layout_of,
    read_scales,
    store_scales,
    stored_shape,
    write_scales,
)
from neuron_numerics.scales import ue8m0_decode


@pytest.mark.parametrize("rows, columns", [(1, 4), (5, 4), (5, 3), (1, 1), (70, 8), (0, 4)])
@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("scale", ["fp32", "pow2", "ue8m0"])
def test_as_the_reference_lays_them(tk: Any, rows: int, columns: int, column_major: bool, scale: str) -> None:
    x = torch.randn(rows, columns * 32)
    packed = scale == "ue8m0"
    _, expected = tk.cast(
        x, "e4m3", (1, 32), round_sf=scale != "fp32", use_packed_ue8m0=packed, use_tma_aligned_col_major_sf=column_major
    )
    fmt = quant_format("e4m3", scale)
    layout = ScaleLayout(column_major, packed)
    _, encoded = cast_blocks(x, fmt, (1, 32))
    actual = store_scales(encoded, fmt.scale, layout)
    assert actual.shape == expected.shape == stored_shape(rows, columns, layout) and actual.dtype == expected.dtype
    assert rows == 0 or actual.stride() == expected.stride()
    assert actual.tolist() == expected.tolist()
    if column_major:
        assert actual.stride() == (1, max(rows, 1)) or rows == 0
    read = read_scales(actual, layout)
    assert torch.equal(read[:, :columns], ue8m0_decode(encoded) if packed else encoded)
    # Missing bytes of the last pack are zero.
    assert (read[:, columns:] == 0).all()


@pytest.mark.parametrize("pack_dtype", [torch.int16, torch.int32])
@pytest.mark.parametrize("pack_rows", [False, True])
def test_bytes_of_a_pack(pack_dtype: torch.dtype, pack_rows: bool) -> None:
    encoded = torch.arange(1, 16, dtype=torch.int32).view(3, 5)
    layout = ScaleLayout(packed=True, pack_rows=pack_rows, pack_dtype=pack_dtype)
    stored = store_scales(encoded, quant_format("e4m3", "ue8m0").scale, layout)
    pack = pack_dtype.itemsize
    source = encoded.t() if pack_rows else encoded
    padded = torch.nn.functional.pad(source, (0, -source.shape[1] % pack))
    words = [
        [sum(int(b) << (8 * i) for i, b in enumerate(row[k : k + pack])) for k in range(0, len(row), pack)]
        for row in padded
    ]
    assert (stored.t() if pack_rows else stored).tolist() == words
    read = read_scales(stored, layout)
    assert torch.equal(read[:3, :5], ue8m0_decode(encoded))


def test_per_channel_packs_along_rows(tk: Any) -> None:
    x = torch.randn(256, 24)
    _, expected = tk.cast(x, "e4m3", (32, 1), round_sf=True, use_packed_ue8m0=True)
    _, encoded = cast_blocks(x, quant_format("e4m3", "ue8m0"), (32, 1))
    actual = store_scales(encoded, quant_format("e4m3", "ue8m0").scale, ScaleLayout(packed=True, pack_rows=True))
    assert actual.shape == (4, 24) and torch.equal(actual, expected)


def test_writing_into_a_given_tensor() -> None:
    encoded = torch.arange(12, dtype=torch.int32).view(3, 4)
    backing = torch.full((2, 10), 7, dtype=torch.int16)
    write_scales(backing[:, 2:5].t(), encoded, ScaleLayout(column_major=True, packed=True))
    assert backing[:, 2:5].t().tolist() == [[0x100, 0x302], [0x504, 0x706], [0x908, 0xB0A]]
    assert (backing[:, :2] == 7).all() and (backing[:, 5:] == 7).all()


def test_layout_from_the_tensor() -> None:
    scale = quant_format("e4m3", "ue8m0").scale
    for layout in (
        ScaleLayout(),
        ScaleLayout(column_major=True),
        ScaleLayout(packed=True),
        ScaleLayout(column_major=True, packed=True),
        ScaleLayout(packed=True, pack_dtype=torch.int32),
        ScaleLayout(packed=True, pack_rows=True),
    ):
        stored = empty_scales(
            6, 8, scale if layout.packed else quant_format("e4m3", "fp32").scale, layout, torch.device("cpu")
        )
        assert layout_of(stored, layout.pack_rows) == layout
