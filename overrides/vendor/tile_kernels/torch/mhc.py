"""Plain hyper-connections of ``tile_kernels.torch.mhc``."""

from __future__ import annotations

import torch

from neuron_numerics.hyper_connections import sinkhorn, split_mixes

from ..mhc.post_kernel import mhc_post_fwd


def expand_to_mhc_ref(hidden: torch.Tensor, mhc_mult: int) -> torch.Tensor:
    """``hidden`` [.., d] copied into ``mhc_mult`` streams [.., streams, d]."""
    return hidden.unsqueeze(-2).repeat(*(1,) * (hidden.ndim - 1), mhc_mult, 1)


def sinkhorn_normalize_ref(x: torch.Tensor, repeat: int = 10, eps: float = 1e-6) -> torch.Tensor:
    """``tile_kernels.mhc.mhc_sinkhorn_fwd`` of fp32 ``x`` [.., n, n], in a new tensor."""
    return sinkhorn(x, repeat, eps)


def mhc_head_compute_mix_ref(
    input_mix: torch.Tensor, mhc_scale: torch.Tensor, mhc_base: torch.Tensor, mhc_pre_eps: float
) -> torch.Tensor:
    """``sigmoid(input_mix * mhc_scale + mhc_base) + mhc_pre_eps``."""
    return torch.sigmoid(input_mix * mhc_scale + mhc_base) + mhc_pre_eps


def mhc_pre_split_mixes_ref(
    input_mixes: torch.Tensor,
    mhc_scale: torch.Tensor,
    mhc_base: torch.Tensor,
    mhc_mult: int,
    mhc_post_mult_value: float,
    mhc_pre_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The three parts of ``input_mixes`` [.., 2 n + n * n]: [.., n, 1], [.., n, 1] and [.., n, n]; see ``mhc_pre_split_mixes_fwd``."""
    pre, post, comb = split_mixes(input_mixes, mhc_scale, mhc_base, mhc_mult, mhc_post_mult_value, mhc_pre_eps)
    return pre.unsqueeze(-1), post.unsqueeze(-1), comb.unflatten(-1, (mhc_mult, mhc_mult))


def mhc_pre_apply_mix_ref(x: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
    """The streams ``x`` [.., n, d] summed by ``mix`` [.., n, 1] in fp32, as bf16 [.., d]."""
    return mix.mT.matmul(x.to(torch.float32)).squeeze(-2).to(torch.bfloat16)


def mhc_post_ref(
    x: torch.Tensor, residual: torch.Tensor, post_layer_mix: torch.Tensor, comb_res_mix: torch.Tensor
) -> torch.Tensor:
    """``tile_kernels.mhc.mhc_post_fwd``."""
    return mhc_post_fwd(x, residual, post_layer_mix, comb_res_mix)


def mhc_pre_norm_fn_ref(
    residual: torch.Tensor, mhc_fn: torch.Tensor, mhc_norm_weight: torch.Tensor | None, mhc_norm_eps: float
) -> torch.Tensor:
    """Projections of the normalised streams: ``residual`` [a, b, n, d] by ``mhc_fn`` (fp32 [outputs, n * d]), fp32 [a, b, outputs]."""
    assert mhc_fn.dtype == torch.float32, f"expected fp32, got {mhc_fn.dtype}"
    weight = mhc_fn if mhc_norm_weight is None else mhc_fn * mhc_norm_weight
    wide = residual.flatten(2, 3).to(torch.float32)
    rstd = (wide.square().sum(-1, keepdim=True) / weight.shape[-1] + mhc_norm_eps).rsqrt_()
    return torch.nn.functional.linear(wide, weight).mul_(rstd)


def mhc_pre_norm_fn_partials_ref(
    residual: torch.Tensor, fn: torch.Tensor, n_splits: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Products and squares of ``mhc_pre_norm_fn_ref``, each in ``n_splits`` partial sums over the width.

    fp32 [splits, a * b, 1, outputs] and [splits, a * b, 1].
    """
    width = fn.shape[1]
    part = width // n_splits
    used = part * n_splits
    wide = residual.to(torch.float32).reshape(-1, width)[:, :used].unflatten(1, (n_splits, part)).transpose(0, 1)
    weight = fn[:, :used].unflatten(1, (n_splits, part)).permute(1, 2, 0)
    return torch.bmm(wide, weight).unsqueeze(2), wide.square().sum(-1).unsqueeze(2)
