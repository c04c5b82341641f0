"""Image embeddings into token rows, pixels into patches, windows into embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check_kernel, guard, wide_ops

from overrides.tilelang_ops.image_embed_ops import batch_downsample_tl, replace_input_embeds_tl, rgb_pad_to_patches_tl

IMAGE, PADS = 900, [901, 902, 903]


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("pads", [0, 3])
@pytest.mark.parametrize("ids", [[], [5], [900], [901, 900, 900, 902, 7, 903, 900], [900, 900, 900]])
def test_replaced_rows(pads: int, ids: list[int]) -> None:
    hidden, images = 128, 4
    embeds, features = torch.randn(len(ids), hidden).bfloat16(), torch.randn(images, hidden).bfloat16()
    pad_embeds = torch.randn(pads, hidden).bfloat16()
    if ids:
        embeds[0] = torch.nan
    offsets = ints([sum(i == IMAGE for i in ids[: k + 1]) for k in range(len(ids))])
    args = (
        guard(embeds),
        guard(ints(ids)),
        guard(features),
        IMAGE,
        guard(offsets),
        guard(ints(PADS[:pads])),
        guard(pad_embeds),
    )
    kernel = replace_input_embeds_tl(hidden)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("input_embeds",))
    seen = 0
    for k, token in enumerate(ids):
        if token == IMAGE:
            embeds[k], seen = features[seen], seen + 1
        elif token in PADS[:pads]:
            embeds[k] = pad_embeds[PADS.index(token)]
    assert torch.equal(args[0].view(torch.int16), embeds.view(torch.int16))


def test_rows_beyond_one_piece() -> None:
    hidden, rows = 1 << 15, 150
    ids = [IMAGE if k % 3 else 5 for k in range(rows)]
    features = torch.randn(rows, hidden).bfloat16()
    embeds = torch.zeros(rows, hidden).bfloat16()
    offsets = ints(ids).eq(IMAGE).cumsum(0, dtype=torch.int32)
    replace_input_embeds_tl(hidden)(embeds, ints(ids), features, IMAGE, offsets, ints([]), features[:0])
    images = torch.tensor([i == IMAGE for i in ids])
    assert torch.equal(embeds[images], features[: int(images.sum())]) and not embeds[~images].any()


def pixels_in_grid(image: torch.Tensor, grid: tuple[int, int], colour: float) -> torch.Tensor:
    """The image [h, w, 3] centred in a grid of (columns, rows) pixels, halves rounded to the even: [rows, columns, 3]."""
    canvas = torch.full((grid[1], grid[0], 3), colour)
    left, top = round((grid[0] - image.shape[1]) * 0.5), round((grid[1] - image.shape[0]) * 0.5)
    canvas[top : top + image.shape[0], left : left + image.shape[1]] = image.float()
    return canvas


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "grids, gaps",
    [([(1, 1)], [(0, 0)]), ([(2, 3), (4, 1)], [(1, 3), (2, 0)]), ([(3, 2), (2, 2), (1, 4)], [(3, 1), (0, 1), (1, 2)])],
)
def test_patches(size: int, grids: list[tuple[int, int]], gaps: list[tuple[int, int]]) -> None:
    mean, std, colour = 0.48, 0.27, 122.0
    shapes = [
        (max(1, w * size - gap_w), max(1, h * size - gap_h)) for (w, h), (gap_w, gap_h) in zip(grids, gaps, strict=True)
    ]
    images = [torch.randint(0, 256, (h, w, 3)).to(torch.uint8) for w, h in shapes]
    counts = [w * h for w, h in grids]
    raw_ends = torch.tensor([0, *(i.numel() for i in images)]).cumsum(0)
    out = guard(torch.full((sum(counts), 3, size, size), 7.0).bfloat16())
    bounds = ints([0, *counts]).cumsum(0, dtype=torch.int32)
    args = (
        guard(torch.cat([i.reshape(-1) for i in images])),
        guard(raw_ends),
        guard(ints(shapes)),
        guard(ints(grids)),
        guard(bounds),
        mean,
        std,
        colour,
        out,
    )
    kernel = rgb_pad_to_patches_tl(size)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("output",))
    want = []
    for image, (w, h) in zip(images, grids, strict=True):
        canvas = pixels_in_grid(image, (w * size, h * size), colour)
        canvas = ((canvas / torch.full_like(canvas, 255.0) - mean) / std).bfloat16()
        want.append(canvas.view(h, size, w, size, 3).permute(0, 2, 4, 1, 3).reshape(h * w, 3, size, size))
    assert torch.equal(out, torch.cat(want))


@pytest.mark.parametrize("ratio", [1, 2, 3])
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_windows(ratio: int, pool: bool, dtype: torch.dtype) -> None:
    dim, crops = 128, [(4, 3), (0, 0), (1, 1), (5, 2)]
    features = torch.randn(sum(w * h for w, h in crops), dim).to(dtype)
    counts = [-(-w // ratio) * -(-h // ratio) for w, h in crops]
    owner = torch.tensor([i for i, c in enumerate(counts) for _ in range(c)])
    bounds = [torch.tensor([0, *values]).cumsum(0) for values in (counts, [w * h for w, h in crops])]
    shape = (sum(counts), dim) if pool else (sum(counts), dim, ratio, ratio)
    out = guard(torch.full(shape, 7.0, dtype=dtype))
    args = (
        guard(features),
        guard(owner),
        guard(torch.tensor(crops)),
        *map(guard, bounds),
        None if pool else out,
        out if pool else None,
    )
    check_kernel(
        batch_downsample_tl(ratio, dim, pool, dtype), *args, written=("images_embeds_sum" if pool else "images_embeds",)
    )
    row, first = 0, 0
    for w, h in crops:
        grid = features[first : first + w * h].view(h, w, dim)
        for y in range(0, h, ratio):
            for x in range(0, w, ratio):
                tile = grid[y : y + ratio, x : x + ratio]
                if pool:
                    mean = tile.double().mean((0, 1))
                    assert torch.allclose(out[row].double(), mean, atol=1e-2 if dtype == torch.bfloat16 else 1e-6)
                else:
                    padded = torch.zeros(ratio, ratio, dim, dtype=dtype)
                    padded[: tile.shape[0], : tile.shape[1]] = tile
                    assert torch.equal(out[row], padded.permute(2, 0, 1))
                row += 1
        first += w * h
    assert row == sum(counts)


def test_against_the_references(upstream: Callable[[str], Any]) -> None:
    module = upstream("image_embed_ops")
    data = module._build_rgb_data(2, 4, 14, True)
    args = [
        data[k]
        for k in (
            "image_raw_concat",
            "cu_raw_bytes",
            "image_real_sizes",
            "images_spatial_crop",
            "cu_seqlens_vit",
            "total_patches",
        )
    ]
    args += [14, 0.5, 0.5, 127]
    assert torch.equal(module.rgb_pad_to_patches(*args), module.rgb_pad_to_patches_ref(*args))
    features, crops = torch.randn(30 * 7 * 2, 128), torch.tensor([[30, 7], [15, 14]])
    for mode in ("pooling_mlp_gelu", "identity"):
        got, want = module.batch_downsample(features, crops, 2, mode), module.batch_downsample_ref(
            features, crops, 2, mode
        )
        assert torch.allclose(got, want, atol=1e-6)
