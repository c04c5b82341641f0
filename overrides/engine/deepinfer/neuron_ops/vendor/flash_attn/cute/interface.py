"""Name holder for ``flash_attn.cute.interface``: the vision tower imports it, basic mode never calls it."""

from __future__ import annotations

from typing import Any, NoReturn


def _flash_attn_fwd(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError("flash_attn.cute.interface._flash_attn_fwd: not supported on Neuron (basic mode)")
