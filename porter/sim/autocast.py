"""Autocast: products in the low type, reductions that need range in float32, as torch does for other accelerators."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from porter.sim.names import NAME
from porter.sim.storage import on_device

_KEY = "AutocastPrivateUse1"
LOW = (
    "mm", "bmm", "addmm", "addmv", "matmul", "linear", "baddbmm", "addbmm", "conv1d", "conv2d", "conv3d", "mv",
    "scaled_dot_product_attention", "einsum",
)  # fmt: skip
WIDE = (
    "softmax.int", "log_softmax.int", "layer_norm", "rms_norm", "exp", "log", "log2", "log10", "log1p", "expm1", "rsqrt",
    "reciprocal", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "sum", "sum.dim_IntList", "prod", "cumsum", "norm.Scalar",
    "mse_loss", "nll_loss", "softplus", "erfinv", "acos", "asin", "cosh", "sinh", "tan",
)  # fmt: skip
_UNTOUCHED = {torch.float64} | {
    getattr(torch, name)
    for name in (
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
    )
    if hasattr(torch, name)
}


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if on_device(value) and value.is_floating_point() and value.dtype != dtype and value.dtype not in _UNTOUCHED:
        return value.to(dtype)
    return value


def _kernel(op: Any, low: bool) -> Any:
    names: Any = torch._C.DispatchKey
    keys: Any = torch._C.DispatchKeySet(names.AutocastPrivateUse1)
    guard: Any = torch._C._ExcludeDispatchKeyGuard

    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME) if low else torch.float32
        args, kwargs = pytree.tree_map(lambda value: _cast(value, dtype), (args, kwargs))
        with guard(keys):
            return op(*args, **kwargs)

    return run


def register(aten: Any, every: Any) -> None:
    """Register the kernels in library ``aten`` and let everything else through in library ``every``."""
    every.fallback(torch.library.fallthrough_kernel, _KEY)
    for names, low in ((LOW, True), (WIDE, False)):
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            aten.impl(name, _kernel(op, low), _KEY)
    torch.set_autocast_dtype(NAME, torch.bfloat16)
