"""Copies into the residual streams, from ``tile_kernels.mhc.expand_kernel``."""

from __future__ import annotations


def expand_to_mhc_fwd(x, o):
    """Copy ``x`` [tokens, hidden] into each stream of ``o`` [tokens, streams, hidden], written in place."""
    o.copy_(x.unsqueeze(-2))
