"""Image embeddings and patches, after ``tilelang_ops.asc.image_embed_ops``."""

from __future__ import annotations

from typing import Any

import torch

from ._segments import count_at_or_before

_CHUNK_BYTES = 1 << 22


def replace_input_embeds_tl(hidden: int) -> Any:
    """Factory of the in-place fill of image tokens with image embeddings and of pad tokens with theirs."""
    assert hidden > 0 and hidden % 128 == 0, f"expected a positive multiple of 128, got {hidden}"
    rows_at_once = max(1, _CHUNK_BYTES // (2 * hidden))

    def replace_input_embeds(
        input_embeds: torch.Tensor,
        input_ids: torch.Tensor,
        images_embeds: torch.Tensor,
        image_token_id: int,
        image_token_offset: torch.Tensor,
        image_pad_token_ids: torch.Tensor,
        image_pad_embeds: torch.Tensor,
    ) -> None:
        """``input_embeds``: [n, hidden] bf16, written. ``input_ids``, ``image_token_offset`` (inclusive count): [n] int32.

        ``images_embeds``: [images, hidden] bf16, in token order. ``image_pad_token_ids``, ``image_pad_embeds``: [pads]
        int32 and [pads, hidden] bf16; of equal ids the last counts.
        """
        images, pads = images_embeds.shape[0], image_pad_embeds.shape[0]
        assert input_embeds.shape == (input_ids.shape[0], hidden), f"{input_embeds.shape=} {input_ids.shape=} {hidden=}"
        if images + pads == 0:
            return
        # Rows move as 32-bit words: they are copied, not computed with.
        source = torch.cat([images_embeds.view(torch.int32), image_pad_embeds.view(torch.int32)])
        row = (image_token_offset - 1).masked_fill_(input_ids != image_token_id, -1)
        if pads:
            pad = torch.arange(images, images + pads, dtype=torch.int32, device=input_ids.device)
            pad_row = pad.masked_fill(input_ids.unsqueeze(1) != image_pad_token_ids, -1).amax(1)
            row = torch.where(pad_row >= 0, pad_row, row)
        taken = (row >= 0).unsqueeze(1)
        row = row.clamp_(0, images + pads - 1)
        target = input_embeds.view(torch.int32)
        # In pieces, so that the rows in flight stay small beside the embeddings themselves.
        for piece in range(0, target.shape[0], rows_at_once):
            here = slice(piece, piece + rows_at_once)
            torch.where(taken[here], source.index_select(0, row[here]), target[here], out=target[here])

    return replace_input_embeds


def _narrow(wide: torch.Tensor) -> torch.Tensor:
    """Contiguous int64 numbers that fit an int32, as int32: their lower words, a strided view."""
    return wide.view(torch.int32).unflatten(-1, (-1, 2))[..., 0]


def _centred(gap: torch.Tensor) -> torch.Tensor:
    """``gap / 2`` rounded to the nearest, ties to the even."""
    half = gap >> 1
    return half + (gap & half & 1)


def rgb_pad_to_patches_tl(patch_size: int) -> Any:
    """Factory of normalised patches of images that are centred in their patch grids."""
    assert patch_size > 0, f"expected a positive patch size, got {patch_size}"

    def rgb_pad_to_patches(
        image_raw_concat: torch.Tensor,
        cu_raw_bytes: torch.Tensor,
        image_real_sizes: torch.Tensor,
        images_spatial_crop: torch.Tensor,
        cu_seqlens_vit: torch.Tensor,
        mean: float,
        std: float,
        pad_color: float,
        output: torch.Tensor,
    ) -> None:
        """``image_raw_concat``: [bytes] uint8, each image's rows of RGB; ``cu_raw_bytes``: [images + 1] int64 bounds.

        ``image_real_sizes``, ``images_spatial_crop``: [images, 2] int32, (width, height) in pixels and in patches;
        ``cu_seqlens_vit``: [images + 1] int32 bounds in patches. Written: ``output`` [patches, 3, patch_size,
        patch_size] bf16, ``(byte / 255 - mean) / std``, outside of the image that of ``pad_color``.
        """
        patches = output.shape[0]
        pixels = image_raw_concat.shape[0] // 3
        assert image_raw_concat.shape[0] == 3 * pixels, f"expected whole pixels, got {image_raw_concat.shape[0]} bytes"
        assert pixels < 1 << 29, f"expected fewer than 2**29 pixels, got {pixels}"
        device = image_raw_concat.device

        pad = torch.full((3,), pad_color, dtype=torch.float32, device=device)
        colour = torch.cat([image_raw_concat.to(torch.float32), pad])
        colour = colour.div_(255.0).sub_(mean).div_(std).to(torch.bfloat16).view(pixels + 1, 3)

        size = images_spatial_crop * patch_size
        corner = _centred(size - image_real_sizes)
        first_pixel = torch.div(_narrow(cu_raw_bytes)[:-1], 3, rounding_mode="floor").unsqueeze(1)
        table = torch.cat(
            [cu_seqlens_vit[:-1].unsqueeze(1), images_spatial_crop, image_real_sizes, corner, first_pixel], 1
        )
        owner = count_at_or_before(cu_seqlens_vit[1:], patches).clamp_(max=table.shape[0] - 1)
        start, columns, _, width, height, left, top, base = table.index_select(0, owner).unsqueeze(2).unbind(1)

        place = torch.arange(patches, dtype=torch.int32, device=device).unsqueeze(1) - start
        patch_row = torch.div(place, columns, rounding_mode="floor")
        lane = torch.arange(patch_size, dtype=torch.int32, device=device)
        y = patch_row * patch_size + lane - top
        x = (place - patch_row * columns) * patch_size + lane - left
        # Outside in either direction, the sum is at least the number of pixels, where the padding colour is.
        y = (y * width + base).masked_fill_((y < 0) | (y >= height), pixels)
        x = x.masked_fill((x < 0) | (x >= width), pixels)
        pixel = (y.unsqueeze(2) + x.unsqueeze(1)).clamp_(max=pixels)
        output.copy_(
            colour.index_select(0, pixel.view(-1)).view(patches, patch_size, patch_size, 3).permute(0, 3, 1, 2)
        )

    return rgb_pad_to_patches


def batch_downsample_tl(downsample_ratio: int, dim: int, do_downsample: bool, dtype: torch.dtype) -> Any:
    """Factory of the pooling (``do_downsample``: mean) or concatenation of square windows of patch features."""
    assert dtype in (torch.float32, torch.bfloat16), f"expected fp32 or bf16, got {dtype}"
    assert downsample_ratio > 0, f"expected a positive ratio, got {downsample_ratio}"
    assert (
        dim > 0 and dim % (128 if dtype == torch.bfloat16 else 64) == 0
    ), f"expected whole vectors of features, got {dim}"
    cells = downsample_ratio * downsample_ratio

    def batch_downsample(
        images_feature: torch.Tensor,
        images_id: torch.Tensor,
        images_spatial_crop: torch.Tensor,
        cu_seqlen_downsp: torch.Tensor,
        cu_seqlen: torch.Tensor,
        images_embeds: torch.Tensor | None,
        images_embeds_sum: torch.Tensor | None,
    ) -> None:
        """``images_feature``: [patches, dim]; ``images_id``: [windows], the image of each window; int64 from here on.

        ``images_spatial_crop``: [images, 2], (width, height) in patches; ``cu_seqlen_downsp``, ``cu_seqlen``:
        [images + 1], bounds in windows and in patches. Written: ``images_embeds_sum`` [windows, dim], or
        ``images_embeds`` [windows, dim, ratio, ratio] with zeros outside of the image.
        """
        assert (
            images_feature.shape[1] == dim and images_feature.dtype == dtype
        ), f"{images_feature.shape=} {images_feature.dtype=}"
        device = images_feature.device
        windows = images_id.shape[0]
        width, height = _narrow(images_spatial_crop).unbind(1)
        table = torch.stack([_narrow(cu_seqlen_downsp)[:-1], _narrow(cu_seqlen)[:-1], width, height], 1)
        first_window, first_patch, width, height = (
            table.index_select(0, _narrow(images_id).contiguous()).unsqueeze(2).unbind(1)
        )

        place = torch.arange(windows, dtype=torch.int32, device=device).unsqueeze(1) - first_window
        across = torch.div(width + (downsample_ratio - 1), downsample_ratio, rounding_mode="floor")
        window_row = torch.div(place, across, rounding_mode="floor")
        lane = torch.arange(downsample_ratio, dtype=torch.int32, device=device)
        y = window_row * downsample_ratio + lane
        x = (place - window_row * across) * downsample_ratio + lane
        inside = ((y < height).unsqueeze(2) & (x < width).unsqueeze(1)).view(windows, cells)
        patch = ((y * width + first_patch).unsqueeze(2) + x.unsqueeze(1)).view(windows, cells)
        patch = patch.clamp_(max=images_feature.shape[0] - 1)
        tile = images_feature.index_select(0, patch.view(-1)).view(windows, cells, dim)
        outside = (~inside).unsqueeze(2)
        if do_downsample:
            assert images_embeds_sum is not None
            total = tile.to(torch.float32).masked_fill_(outside, 0.0).sum(1)
            images_embeds_sum.copy_(total.mul_(inside.sum(1, keepdim=True, dtype=torch.float32).reciprocal_()))
        else:
            assert images_embeds is not None
            images_embeds.view(windows, dim, cells).copy_(tile.masked_fill_(outside, 0.0).transpose(1, 2))

    return batch_downsample
