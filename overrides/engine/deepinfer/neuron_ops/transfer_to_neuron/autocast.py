"""Autocast by device type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from deepinfer.neuron_ops.transfer_to_neuron.backend import Backend
from deepinfer.neuron_ops.transfer_to_neuron.patcher import Patcher
from torch.amp import autocast_mode

QUERIES = ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype")
"""torch functions whose first argument is a device type."""


def patch(patcher: Patcher, backend: Backend) -> None:
    """Map ``"cuda"`` in ``torch.autocast`` and in the functions that ask about it."""
    init = autocast_mode.autocast.__init__

    @functools.wraps(init)
    def mapped_init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        init(self, backend.map_device_type(device_type), *args, **kwargs)

    patcher.set(autocast_mode.autocast, "__init__", mapped_init)
    for name in QUERIES:
        patcher.set(torch, name, _by_device_type(getattr(torch, name), backend))


def _by_device_type(function: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    @functools.wraps(function)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        return function(*(backend.map_device_type(value) for value in args), **kwargs)

    return mapped
