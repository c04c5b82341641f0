"""Row gather with zero fill, after ``tilelang_ops.asc.gather``."""

from __future__ import annotations

from typing import Any

import torch

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def gather_tl(D: int, dtype: torch.dtype, index_dtype: torch.dtype, x_stride: int) -> Any:
    """Factory of ``Y[i] = X[INDEX[i]]`` where ``0 <= INDEX[i] < n``, else a row of zeros.

    ``D`` elements a row, ``x_stride`` elements from one row of ``X`` to the next.
    """
    assert D > 0, f"expected a positive row length, got {D}"

    def gather(X: torch.Tensor, INDEX: torch.Tensor, Y: torch.Tensor) -> None:
        """``X``: [n, D] ``dtype``, row stride ``x_stride``. ``INDEX``: [m] ``index_dtype``. ``Y``: [m, D] ``dtype``, written."""
        n = X.shape[0]
        assert X.shape[1] == D and Y.shape == (INDEX.shape[0], D), f"expected rows of {D}, got {X.shape} and {Y.shape}"
        assert (
            X.dtype == dtype and Y.dtype == dtype and INDEX.dtype == index_dtype
        ), f"{X.dtype=} {Y.dtype=} {INDEX.dtype=}"
        if n == 0:
            Y.zero_()
            return
        row = INDEX.clamp(0, n - 1)
        torch.index_select(X, 0, row, out=Y)
        # As integers, so that the product with 0 is 0 whatever the row holds.
        word = _WORDS[dtype.itemsize]
        Y.view(word).mul_((row == INDEX).to(word).unsqueeze(1))

    return gather
