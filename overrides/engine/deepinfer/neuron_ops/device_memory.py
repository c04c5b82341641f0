"""Lets go of device memory behind a tensor that is not needed any more."""

from __future__ import annotations

import torch


def release(value: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
    """Replace each tensor's data by an empty tensor of its own dtype and device.

    An empty tensor of another device cannot take its place: torch refuses to swap data across device types that do
    not share an implementation. Nothing happens in a compiled graph: its compiler ends each tensor's life itself.
    """
    if torch.compiler.is_compiling():
        return
    for tensor in value if isinstance(value, tuple) else (value,):
        tensor.data = tensor.new_empty(0)
